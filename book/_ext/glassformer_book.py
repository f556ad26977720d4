"""Local Sphinx extension: what the site needs beyond jupyter-book.

* fills the markers ``<!-- chapters -->``, ``<!-- verdicts -->``, ``<!-- refuted -->``,
  ``<!-- ledger -->``, ``<!-- api: module -->`` and ``<!-- cli -->`` in pages, so that none of them
  is kept by hand;
* warns of a notebook that was stored while a cell failed, and a warning fails the build;
* turns ``Book: attention`` in a docstring into a link to the chapter;
* serves MathJax from the installed package ``sphinx-mathjax-offline``, and only where a page has
  a formula; drops thebe, which would name a foreign host;
* writes ``404.html`` and ``.nojekyll``.
"""

import html
import importlib
import inspect
import json
import pkgutil
import re
import shutil
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from glassformer.lab import ledger
from glassformer.lab.trials import SIGNS
from sphinx.util import logging

BOOK = Path(__file__).parents[1]
# the classes of book.css
CSS = {"holds": "holds", "holds if": "if", "does not hold": "not", "not measurable here": "nm"}
NOT_TRIED = "not yet tried"


# --- chapters and their claims ----------------------------------------------------------------


def parts() -> list[dict[str, Any]]:
    """The parts of the book with their chapters, written or planned."""
    return yaml.safe_load((BOOK / "chapters.yaml").read_text(encoding="utf-8"))


def planned() -> dict[str, dict[str, str]]:
    """Every chapter by its slug."""
    return {chapter["slug"]: chapter for part in parts() for chapter in part["chapters"]}


def rows() -> list[Any]:
    """One row per claim: id, chapter, claim, criterion, and once tried verdict and finding."""
    return list(ledger.rows(BOOK))


def verdict_badge(verdict: str | None) -> str:
    css, sign = (CSS[verdict], SIGNS[verdict][0]) if verdict else ("open", "·")
    words = html.escape(verdict or NOT_TRIED)
    return (
        f'<span class="verdict verdict-{css}"><span aria-hidden="true">{sign}</span> {words}</span>'
    )


def verdicts_markdown(claims: list[Any]) -> str:
    """The counts by verdict, as a strip."""
    cells = []
    for verdict in [*SIGNS, None]:
        count = sum(row.verdict == verdict for row in claims)
        if not count:
            continue
        css = CSS[verdict] if verdict else "open"
        words = html.escape(verdict or NOT_TRIED)
        cells.append(f'<li class="verdict-{css}"><strong>{count}</strong> {words}</li>')
    return f'<ul class="verdict-counts">{"".join(cells)}</ul>\n'


def refuted_markdown(claims: list[Any]) -> str:
    """The claims that do not hold, each a link to its cell: what a visitor asks for first."""
    verdict = "does not hold"
    links = [f'<a href="{row.link}">{row.id}</a>' for row in claims if row.verdict == verdict]
    return f'<p class="refuted">{verdict_badge(verdict)} {" · ".join(links)}</p>\n'


def chapters_markdown(found: set[str], claims: list[Any]) -> str:
    """The table of chapters: a link where there is one, the plain title where it is to come."""
    lines = ["| | chapter | the question it answers | claims |", "|---|---|---|---|"]
    for part in parts():
        for n, chapter in enumerate(part["chapters"]):
            slug = chapter["slug"]
            mine = [row for row in claims if row.chapter == slug]
            tried = sum(row.verdict is not None for row in mine)
            there = f"book/{slug}" in found
            title = f"[{chapter['title']}]({slug}.ipynb)" if there else chapter["title"]
            count = f"{tried} of {len(mine)} tried" if there else f"{len(mine)} waiting"
            lines.append(
                f"| {part['part'] if n == 0 else ''} | {title} | {chapter['question']} | {count} |"
            )
    return ":::{div} chapters\n" + "\n".join(lines) + "\n:::\n"


def ledger_markdown(found: set[str], claims: list[Any]) -> str:
    """Every claim under its chapter, with its verdict and a link to the cell that measured it."""
    lines = []
    for slug, chapter in planned().items():
        mine = [row for row in claims if row.chapter == slug]
        tried = [row for row in mine if row.verdict]
        waiting = [row for row in mine if not row.verdict]
        if mine:
            lines += [f"## {chapter['title']}", ""]
        if tried:
            lines += _table("what we found", tried, finding_cell)
        if waiting:
            reason = "wait for this chapter" if f"book/{slug}" not in found else "are not yet tried"
            lines += [f"<details><summary>{len(waiting)} claims {reason}</summary>", ""]
            lines += _table(
                "what would convince us", waiting, lambda row: escape_cell(row.criterion)
            )
            lines += ["</details>", ""]
    return "\n".join(lines)


def _table(last: str, listed: list[Any], last_cell: Callable[[Any], str]) -> list[str]:
    lines = [":::{div} ledger", f"| claim | verdict | {last} |", "|---|---|---|"]
    for row in listed:
        label = f'<span class="claim-id">{row.id}</span>'
        if row.link:
            label = f'<a class="claim-id" href="{row.link}">{row.id}</a>'
        badge = verdict_badge(row.verdict)
        lines.append(f"| {label} {escape_cell(row.claim)} | {badge} | {last_cell(row)} |")
    return [*lines, ":::", ""]


def finding_cell(row: Any) -> str:
    """The finding, the figures that decided, 64 before 1,024, and, folded, the criterion."""
    figures = [f"{name}: {_written(row.measured[name])}" for name in sorted(row.measured, key=_by)]
    below = f"<small>{escape_cell('; '.join(figures))}</small>" if figures else ""
    asked = escape_cell(row.criterion)
    return (
        f"{escape_cell(row.finding)}{below}<details><summary>criterion</summary>{asked}</details>"
    )


def _written(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _by(name: str) -> list[tuple[int, str]]:
    """Numbers in a name compare as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def escape_cell(text: str) -> str:
    """Plain text for a Markdown table cell: nothing in it may act as markup."""
    text = re.sub(r"\s+", " ", str(text)).strip()
    return re.sub(r"([\\`*_{}\[\]<>|$#~])", r"\\\1", text)


# --- API pages -----------------------------------------------------------------------------------


def api_markdown(name: str) -> str:
    """One section for the module, or for each public module of the package, with all members."""
    module = importlib.import_module(name)
    lines = [inspect.cleandoc(module.__doc__ or "").split("\n\n")[0], ""]
    if not hasattr(module, "__path__"):
        return "\n".join([*lines, *_automodule(name)])
    own = [n for n in getattr(module, "__all__", []) if _defined_in(module, n)]
    if own:
        lines += _automodule(name, own)
    for info in pkgutil.iter_modules(module.__path__):
        if not info.name.startswith("_"):
            lines += [f"## `{info.name}`", "", *_automodule(f"{name}.{info.name}")]
    return "\n".join(lines)


def _defined_in(module: Any, name: str) -> bool:
    return getattr(getattr(module, name), "__module__", None) == module.__name__


def _automodule(name: str, members: list[str] | None = None) -> list[str]:
    shown = f"   :members: {', '.join(members)}" if members else "   :members:"
    return ["```{eval-rst}", f".. automodule:: {name}", shown, "   :show-inheritance:", "```", ""]


def cli_markdown() -> str:
    """Each command of ``glassformer`` with its options, read from the program itself."""
    import typer
    from glassformer.cli import app

    lines = []
    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        lines += [f"## `glassformer {name}`", "", (command.help or "").strip(), ""]
        lines += [":::{div} options", "| option | default | meaning |", "|---|---|---|"]
        for param in command.params:
            if param.name in ("help", "install_completion", "show_completion"):
                continue
            label = ", ".join([*param.opts, *param.secondary_opts])
            if param.param_type_name == "argument":
                label = (param.name or "").upper()  # typer's own class has no other
            default = "" if callable(param.default) or param.default is None else str(param.default)
            default = f"`{default}`" if default else ""
            meaning = " ".join((getattr(param, "help", "") or "").split()).replace("|", "\\|")
            lines.append(f"| `{label}` | {default} | {meaning} |")
        lines += [":::", ""]
    return "\n".join(lines)


# --- hooks ------------------------------------------------------------------------------------


def fill_markers(app: Any, docname: str, source: list[str]) -> None:
    """Replace the markers of a page by what they stand for."""
    found, text = app.env.found_docs, source[0]
    if "<!-- " not in text or app.env.doc2path(docname).endswith(".ipynb"):
        return
    if "<!-- chapters -->" in text:
        text = text.replace("<!-- chapters -->", chapters_markdown(found, rows()))
    if "<!-- verdicts -->" in text:
        text = text.replace("<!-- verdicts -->", verdicts_markdown(rows()))
    if "<!-- refuted -->" in text:
        text = text.replace("<!-- refuted -->", refuted_markdown(rows()))
    if "<!-- ledger -->" in text:
        text = text.replace("<!-- ledger -->", ledger_markdown(found, rows()))
    if "<!-- cli -->" in text:
        text = text.replace("<!-- cli -->", cli_markdown())
    source[0] = re.sub(r"<!-- api: ([\w.]+) -->", lambda m: api_markdown(m[1]), text)


def name_failed_cells(app: Any, docname: str, source: list[str]) -> None:
    """The stored outputs are the site's, so a stored error is an error of the build."""
    if not app.env.doc2path(docname).endswith(".ipynb"):
        return
    for cell in json.loads(source[0])["cells"]:
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                logging.getLogger(__name__).warning(
                    "cell %s failed when it was recorded: %s: %s",
                    cell.get("id", "?"),
                    output["ename"],
                    output["evalue"],
                    location=docname,
                )


def always_fresh(
    app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Pages that are made of other files: read them again in every build."""
    derived = ("book/index", "book/ledger")
    return [name for name in env.found_docs if name in derived or name.startswith("book/api/")]


def link_chapters(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """``Book: attention`` becomes a link, or the plain title while the chapter is to come."""

    def link(match: re.Match[str]) -> str:
        slugs = re.split(r",\s*", match[1])
        return "Book: " + ", ".join(
            f":doc:`/book/{slug}`"
            if f"book/{slug}" in app.env.found_docs
            else f"{planned()[slug]['title']} (to come)"
            for slug in slugs
        )

    known = "|".join(planned())
    pattern = re.compile(rf"\bBook: ((?:{known})(?:,\s*(?:{known}))*)\b")
    lines[:] = [pattern.sub(link, line) for line in lines]


def trim_assets(
    app: Any, pagename: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """No thebe anywhere, no MathJax on a page without a formula, nothing twice."""
    unwanted = ["thebe"] + ([] if 'class="math' in context.get("body", "") else ["mathjax"])
    for key in ("script_files", "css_files"):
        kept = {}
        for asset in context.get(key, []):
            body = str(getattr(asset, "attributes", {}).get("body", ""))
            signature = f"{getattr(asset, 'filename', asset)} {body}"
            if not any(word in signature.lower() for word in unwanted):
                kept.setdefault(signature, asset)
        context[key] = list(kept.values())


def finish(app: Any, exception: Exception | None) -> None:
    """Write what belongs beside the pages."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    mathjax = Path(distribution("sphinx-mathjax-offline").locate_file("sphinx-mathjax-offline"))
    fonts = "output/chtml/fonts/woff-v2"
    (out / "mathjax").mkdir(exist_ok=True)
    shutil.copy(mathjax / "static/mathjax/tex-chtml-full.js", out / "mathjax")
    shutil.copytree(mathjax / "static/mathjax" / fonts, out / "mathjax" / fonts, dirs_exist_ok=True)
    (out / ".nojekyll").touch()
    page = (BOOK / "_static/404.html").read_text(encoding="utf-8")
    address = app.config.html_theme_options["repository_url"]
    base = f"/{urlsplit(address).path.strip('/').split('/')[-1]}/"
    (out / "404.html").write_text(page.replace("@BASE@", base), encoding="utf-8")
    for source in (out / "_static").glob("*.html"):
        source.unlink()  # sources of pages, no pages


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry point."""
    app.connect("source-read", fill_markers)
    app.connect("source-read", name_failed_cells)
    app.connect("env-get-outdated", always_fresh)
    app.connect("autodoc-process-docstring", link_chapters, priority=100)
    app.connect("html-page-context", trim_assets, priority=900)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
