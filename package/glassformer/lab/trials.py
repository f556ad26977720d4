"""Verdict cards: a claim of the source articles, the criterion that decides, the outcome.

The claims, with what they print and the criterion that decides, stand in ``claims.yaml`` beside
this file. A chapter can therefore state a verdict and a finding, but not move the goalposts.
"""

import difflib
import functools
import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from glassformer.errors import GlassformerError

__all__ = [
    "MIME",
    "SIGNS",
    "VERDICTS",
    "Claim",
    "Trial",
    "claims",
    "read_claims",
    "trial",
    "verdict",
]

MIME = "application/vnd.glassformer.trial+json"
CLAIMS_FILE = Path(__file__).with_name("claims.yaml")

# a word and a sign for each, and a colour that is legible on white and on near-black;
# nothing depends on the colour alone
SIGNS = {
    "holds": ("✓", "#009e73"),
    "holds if": ("◐", "#3182bd"),
    "does not hold": ("✗", "#d55e00"),
    "not measurable here": ("?", "#808080"),
}
VERDICTS: tuple[str, ...] = tuple(SIGNS)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a source article, in our words, with the criterion that decides it."""

    id: str
    chapter: str
    source: str
    claim: str
    printed: str
    criterion: str
    listing: str = ""


_REQUIRED = ("id", "chapter", "source", "claim", "printed", "criterion")


@functools.cache
def read_claims(path: Path) -> Mapping[str, Claim]:
    """Read and check a file of claims.

    Raises:
        GlassformerError: if an entry lacks a key, or two entries have the same id.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    found: dict[str, Claim] = {}
    for number, entry in enumerate(entries, start=1):
        missing = [key for key in _REQUIRED if key not in entry]
        if missing:
            raise GlassformerError(
                f"{path.name}: entry {number} ({entry.get('id', 'no id')}) lacks "
                f"{', '.join(missing)}; every claim has {', '.join(_REQUIRED)}"
            )
        texts = {key: entry.get(key) for key in (*_REQUIRED, "listing")}
        claim = Claim(**{key: str(text or "").strip() for key, text in texts.items()})
        if claim.id in found:
            raise GlassformerError(f"{path.name}: id {claim.id} stands there twice; rename one")
        found[claim.id] = claim
    return found


def claims() -> Mapping[str, Claim]:
    """Every claim that the book tries, by id."""
    return read_claims(CLAIMS_FILE)


@dataclass(frozen=True)
class Trial:
    """A verdict on one claim. As the last expression of a cell it shows a card."""

    claim: Claim
    verdict: str
    finding: str
    measured: Mapping[str, Any] | None = field(default=None)

    def __repr__(self) -> str:
        lines = [f"{self.claim.id}: {self.verdict}"]
        lines += [f"{label}: {text}" for label, text in self._lines()]
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        data: dict[str, Any] = {
            "id": self.claim.id,
            "verdict": self.verdict,
            "criterion": self.claim.criterion,
        }
        if self.measured:
            data["measured"] = dict(self.measured)
        return {"text/plain": repr(self), "text/html": self._html(), MIME: data}

    def _lines(self) -> Iterable[tuple[str, str]]:
        yield "Claim", self.claim.claim
        if self.claim.printed:
            yield "Printed", self.claim.printed
        yield "Criterion", self.claim.criterion
        if self.measured:
            yield "Measured", ", ".join(f"{k} = {v}" for k, v in self.measured.items())
        yield "Finding", self.finding

    def _html(self) -> str:
        sign, colour = SIGNS[self.verdict]
        rows = "".join(
            f'<div style="margin:.35em 0 0"><span style="opacity:.75">{html.escape(label)}:</span> '
            f"{html.escape(text)}</div>"
            for label, text in self._lines()
        )
        return (
            f'<div id="trial-{self.claim.id}" class="glassformer-card" role="group" '
            f'aria-label="Verdict on {self.claim.id}: {self.verdict}" '
            f'style="border-left:.4em solid {colour};padding:.3em 0 .5em 1em;margin:.8em 0;'
            "max-width:44rem;background:transparent;color:inherit;line-height:1.45;"
            'overflow-wrap:anywhere;white-space:normal;text-align:left">'
            f'<div style="font-weight:bold;font-size:1.1em"><span aria-hidden="true">{sign}</span> '
            f'{self.verdict} <span style="font-weight:normal;opacity:.75;white-space:nowrap">'
            f"· {self.claim.id}</span></div>{rows}</div>"
        )


def verdict(fully: object, partly: object = False, measurable: object = True) -> str:
    """One of :data:`VERDICTS`, from what was measured.

    Args:
        fully: whether the claim holds as it stands.
        partly: whether it holds under a condition, which the finding then names.
        measurable: whether what it takes was at hand, such as a model that not every reader has.
    """
    if not measurable:
        return "not measurable here"
    return "holds" if fully else "holds if" if partly else "does not hold"


def trial(
    claim_id: str, verdict: str, finding: str, measured: Mapping[str, Any] | None = None
) -> Trial:
    """Give the verdict on a claim.

    Args:
        claim_id: an id of ``claims.yaml``, such as ``"ATT-05"``.
        verdict: one of :data:`VERDICTS`.
        finding: what was found, in one sentence.
        measured: figures that the next run repeats, rounded here to four significant digits.
            Leave out what is noise, such as seconds.

    Raises:
        GlassformerError: for an unknown id or verdict (with the nearest known ones), a finding of
            several lines, or a figure that is no finite number.
    """
    known = claims()
    if claim_id not in known:
        raise GlassformerError(
            f"{claim_id!r} is no claim of {CLAIMS_FILE.name}; {_nearest(claim_id, known)}"
        )
    if verdict not in VERDICTS:
        raise GlassformerError(
            f"{verdict!r} is no verdict; {_nearest(verdict, VERDICTS, show_all=True)}"
        )
    if not finding.strip() or "\n" in finding.strip():
        raise GlassformerError(
            f"the finding of {claim_id} must be one sentence on one line, not {finding!r}"
        )
    figures = {str(name): _stable(name, value) for name, value in (measured or {}).items()}
    return Trial(known[claim_id], verdict, finding.strip(), figures or None)


def _nearest(word: str, known: Iterable[str], *, show_all: bool = False) -> str:
    options = list(known)
    near = difflib.get_close_matches(word, options, n=3, cutoff=0.6)
    if near and not show_all:
        return f"did you mean {' or '.join(near)}?"
    if show_all or len(options) <= 5:
        return f"use one of: {', '.join(options)}"
    return f"there are {len(options)}, from {options[0]} to {options[-1]}; see lab.claims()"


def _stable(name: object, value: Any) -> bool | int | float | str:
    """A plain value that prints the same on every run: four significant digits, no NaN."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool | int | str):
        return plain
    if isinstance(plain, float) and math.isfinite(plain):
        return float(f"{plain:.4g}")
    raise GlassformerError(
        f"measured[{name!r}] is {plain!r}; a stored figure is a finite number, a bool or a string"
    )
