"""The ledger: every claim with its verdict, read from the outputs stored in the chapters.

``python -m glassformer.lab.ledger`` prints the counts, ``--json`` as JSON.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from glassformer.errors import GlassformerError
from glassformer.lab.trials import MIME, VERDICTS, Claim, claims

__all__ = ["Row", "Tried", "chapters", "counts", "main", "rows", "trials"]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One trial as a chapter stores it."""

    id: str
    verdict: str
    criterion: str
    finding: str
    chapter: str
    cell: str
    tags: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One claim and what became of it. ``verdict`` is None until a chapter has tried it."""

    id: str
    chapter: str
    claim: str
    printed: str
    criterion: str
    source: str
    listing: str = ""
    verdict: str | None = None
    finding: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    link: str | None = None


def chapters(book: Path) -> list[Path]:
    """The notebooks of a book folder, in alphabetical order."""
    return sorted(path for path in book.glob("*.ipynb") if not path.name.startswith("."))


def trials(book: Path) -> list[Tried]:
    """Every trial stored in the notebooks of a book folder."""
    return [tried for path in chapters(book) for tried in _trials_of(path)]


def _trials_of(path: Path) -> Iterator[Tried]:
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise GlassformerError(f"{path.name} is no notebook: {error}") from error
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            bundle = output.get("data", {})
            if MIME not in bundle:
                continue
            data = bundle[MIME]
            yield Tried(
                id=data["id"],
                verdict=data["verdict"],
                criterion=data["criterion"],
                measured=data.get("measured", {}),
                finding=_finding(bundle.get("text/plain", "")),
                chapter=path.stem,
                cell=cell.get("id", ""),
                tags=tuple(cell.get("metadata", {}).get("tags", [])),
            )


def _finding(text: str | Sequence[str]) -> str:
    joined = text if isinstance(text, str) else "".join(text)
    label = "Finding: "
    found = [line.removeprefix(label) for line in joined.splitlines() if line.startswith(label)]
    return found[-1] if found else ""


def rows(book: Path, known: Mapping[str, Claim] | None = None) -> list[Row]:
    """Every claim, in the order of ``claims.yaml``, with the verdict of the chapter that tried it.

    Raises:
        GlassformerError: if a chapter tries an unknown claim, or a claim is tried twice.
    """
    known = claims() if known is None else known
    found: dict[str, Tried] = {}
    for tried in trials(book):
        if tried.id not in known:
            raise GlassformerError(
                f"{tried.chapter}, cell {tried.cell}: {tried.id} is no claim of claims.yaml"
            )
        if tried.id in found:
            first = found[tried.id]
            raise GlassformerError(
                f"{tried.id} is tried twice: in {first.chapter}, cell {first.cell}, and in "
                f"{tried.chapter}, cell {tried.cell}; keep one"
            )
        found[tried.id] = tried
    return [_row(claim, found.get(claim.id)) for claim in known.values()]


def _row(claim: Claim, tried: Tried | None) -> Row:
    base = {name: getattr(claim, name) for name in Claim.__dataclass_fields__}
    if tried is None:
        return Row(**base)
    return Row(
        **base,
        verdict=tried.verdict,
        finding=tried.finding,
        measured=tried.measured,
        link=f"{tried.chapter}.html#trial-{claim.id}",
    )


def counts(all_rows: Iterable[Row]) -> dict[str, Any]:
    """How many claims there are, how many are tried, and how many got each verdict."""
    listed = list(all_rows)
    by_verdict = {verdict: sum(row.verdict == verdict for row in listed) for verdict in VERDICTS}
    return {"total": len(listed), "tried": sum(by_verdict.values()), "by_verdict": by_verdict}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the counts of the ledger."""
    parser = argparse.ArgumentParser(
        prog="python -m glassformer.lab.ledger", description="Count the verdicts of the book."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--book", type=Path, default=Path("book"), help="folder of the chapters")
    options = parser.parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    if not options.book.is_dir():
        Console(stderr=True, highlight=False).print(
            f"There is no folder {options.book}; run this where the book is, or give --book FOLDER"
        )
        return 1
    try:
        result = counts(rows(options.book))
    except GlassformerError as error:
        Console(stderr=True, highlight=False, markup=False).print(str(error))
        return 1
    if options.json:
        console.out(json.dumps(result, indent=2))
        return 0
    console.print(f"{result['tried']} of {result['total']} claims tried")
    for verdict, number in result["by_verdict"].items():
        console.print(f"{number:5d}  {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
