"""Rules for stored notebooks that nbval itself does not enforce, as a list of what is wrong."""

import re
from pathlib import Path

from glassformer.lab import notebook as form
from nbformat import NotebookNode

MOST_NOISY_CELLS = 4  # such as the log of a run, its curve, its samples and a time
FIGURES = ("image/png", "image/svg+xml", "image/jpeg")
_LOADED = re.compile(
    r"""<(?:script|img|iframe|video|audio|source|embed|object)\b[^>]*\b(?:src|data)\s*=\s*["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\bhref\s*=\s*["']?(?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import""",
    re.IGNORECASE,
)
_FOREIGN_IMAGE = re.compile(r"!\[[^\]]*\]\(\s*<?(?:https?:)?//")
_PATHS = re.compile(
    r"(?<![\w.:/])/(?:home|tmp|root|Users|usr|var|opt|work|content)/|[A-Z]:\\\\?Users|site-packages"
    r"|ipykernel_\d"
)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")
_LOCAL_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(?:#[^)\s]*)?\)")


def hygiene_problems(notebook: NotebookNode, folder: Path) -> list[str]:
    """Everything about a stored notebook that would mislead a reader or a test."""
    found = []
    code = form.code_cells(notebook)
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("counts: cells were not run once, from first to last")
    noisy = [cell.id for cell in code if form.is_noisy(cell)]
    if len(noisy) > MOST_NOISY_CELLS:
        found.append(f"noise: {len(noisy)} noisy cells, at most {MOST_NOISY_CELLS}: {noisy}")
    for place, cell in enumerate(code):
        found += [f"{cell.id}: {problem}" for problem in _code_problems(cell)]
        after = code[place + 1] if place + 1 < len(code) else None
        if form.is_noisy(cell) and (after is None or form.is_noisy(after)):
            found.append(f"{cell.id}: no strict cell follows that says what must hold")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            found += [f"{cell.id}: {problem}" for problem in _text_problems(cell.source, folder)]
    if notebook.metadata.get("widgets"):
        found.append("metadata: widget state")
    return found


def _code_problems(cell: NotebookNode) -> list[str]:
    found = []
    tags = cell.metadata.get("tags", [])
    if cell.source.rstrip().endswith(";"):
        found.append("ends with a semicolon, which hides nothing under nbval")
    if "NBVAL_" in cell.source:
        found.append("a comment overrides the tags")
    if {"nbval-skip", "skip-execution"} & set(tags):
        found.append("is skipped")
    if _PATHS.search(cell.source):
        found.append("names a folder of one machine")
    for output in cell.outputs:
        if output.output_type == "error" and "raises-exception" not in tags:
            found.append("stores an error")
        if output.output_type == "stream" and output.name == "stderr":
            found.append("writes to stderr")
        data = output.get("data", {})
        if any(kind in data for kind in FIGURES):
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            if len(alt) < 10:
                found.append("a figure without alt text")
        found += _output_problems(output, data)
    return found


def _output_problems(output: NotebookNode, data: dict[str, object]) -> list[str]:
    found = []
    if "image/jpeg" in data:
        found.append("a JPEG, which no test compares")
    if any("widget" in kind for kind in data):
        found.append("a widget, which is empty without its kernel")
    texts = [value for kind, value in data.items() if isinstance(value, str) and "png" not in kind]
    for text in [*texts, output.get("text", ""), output.get("evalue", "")]:
        if _LOADED.search(text):
            found.append("loads something from another host")
        if _PATHS.search(text):
            found.append("an output names a folder of one machine")
        if _ADDRESS.search(text):
            found.append("an output shows a memory address")
    return found


def _text_problems(source: str, folder: Path) -> list[str]:
    found = []
    if _LOADED.search(source) or _FOREIGN_IMAGE.search(source):
        found.append("loads something from another host")
    if _PATHS.search(source):
        found.append("names a folder of one machine")
    if re.search(r"!\[\s*\]\(", source) or re.search(r"<img(?![^>]*\balt=[\"'][^\"']+)", source):
        found.append("a picture without alt text")
    for target in _LOCAL_LINK.findall(source):
        exists = (folder / target).exists() or (folder / target).with_suffix(".md").exists()
        if not exists:
            found.append(f"links to {target}, which is not there")
    return found
