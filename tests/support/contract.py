"""The contract that every chapter keeps, as a list of what is missing."""

import ast
import re

from glassformer import exercises
from glassformer.lab import notebook as form
from glassformer.lab.source import doors
from glassformer.lab.trials import MIME
from nbformat import NotebookNode
from support.chapters import (
    SECTIONS,
    Section,
    as_python,
    exercises_in,
    public_names,
    sections,
)

FEWEST_EXERCISES, MOST_EXERCISES = 3, 6


def contract_problems(notebook: NotebookNode, slug: str, address: form.Address) -> list[str]:
    """Everything that a chapter owes its reader and does not give."""
    parts = sections(notebook)
    titles = [part.title for part in parts[1:]]
    if titles != SECTIONS:
        return [f"headings: {titles} instead of {SECTIONS}"]
    by_title = {part.title: part for part in parts}
    return [
        *_front(parts[0], by_title["The question"], slug, address),
        *_setup(by_title["Setup"], address),
        *_package_version(by_title["The package's version"], slug),
        *_trials(parts),
        *_exercises(notebook, slug),
        *_redefinitions(notebook),
        *[f"empty: {part.title}" for part in parts[1:] if len(part.text.split()) < 15],
    ]


def _front(head: Section, question: Section, slug: str, address: form.Address) -> list[str]:
    found = []
    if len(re.findall(r"^# .+", head.text, re.MULTILINE)) != 1 or not head.text.startswith("# "):
        found.append("front: the chapter does not start with one H1")
    colab = address.colab(address.root / "book" / f"{slug}.ipynb")
    if f"]({colab})" not in head.text + question.text:
        found.append(f"front: no link to {colab}")
    text = question.text
    if "?" not in text.partition("You will be able to")[0]:
        found.append("front: no question")
    points = re.search(r"\*\*You will be able to:?\*\*:?\s*\n+((?:\s*[-*] .+\n(?:  .+\n)*)+)", text)
    if not points or len(re.findall(r"^\s*[-*] ", points[1], re.MULTILINE)) != 3:
        found.append("front: 'You will be able to' does not list three points")
    if not re.search(r"\*\*Minutes:?\*\*:? *\d+", text):
        found.append("front: no minutes")
    if not re.search(r"\*\*Builds on:?\*\*:? *\S+", text):
        found.append("front: not said what it builds on")
    return found


def _setup(setup: Section, address: form.Address) -> list[str]:
    code = [cell for cell in setup.cells if cell.cell_type == "code"]
    found = []
    if [cell.id for cell in code] not in (["setup"], ["setup", "imports"]):
        return [f"setup: cells {[cell.id for cell in code]} instead of setup and imports"]
    if code[0].source != form.setup_source(address):
        found.append("setup: the cell is not the one that all chapters share")
    if any(cell.outputs for cell in code):
        found.append("setup: the cells print something")
    return found


def _package_version(part: Section, slug: str) -> list[str]:
    source = "\n".join(cell.source for cell in part.cells if cell.cell_type == "code")
    found = []
    if "lab.show_source(" not in source:
        found.append("package: the real source is not shown")
    if not re.search(r"assert_close|equal|allclose|lab\.trial", source):
        found.append("package: not compared with ours or PyTorch's")
    shown = "".join(
        output.get("data", {}).get("text/markdown", "")
        for cell in part.cells
        if cell.cell_type == "code" and f'lab.api("{slug}")' in cell.source
        for output in cell.outputs
    )
    if not shown:
        found.append(f'package: no cell shows lab.api("{slug}")')
    mine = {door.name for door in doors() if slug in door.chapters}
    listed = set(re.findall(r"\.html#([\w.]+)\)", shown))
    found += [f"package: {name} is not listed" for name in sorted(mine - listed)]
    found += [f"package: {name} does not name this chapter" for name in sorted(listed - mine)]
    return found


def _trials(parts: list[Section]) -> list[str]:
    found = []
    places = set()
    for part in parts:
        for cell in part.cells:
            if cell.cell_type != "code" or "lab.trial(" not in cell.source:
                continue
            places.add(part.title)
            if form.is_noisy(cell):
                found.append(f"trial: {cell.id} is noisy; a verdict compares strictly")
            if not any(MIME in output.get("data", {}) for output in cell.outputs):
                found.append(f"trial: {cell.id} stores no card; it must end with lab.trial(...)")
    if "On trial" not in places:
        found.append("trial: no claim is on trial")
    return found


def _exercises(notebook: NotebookNode, slug: str) -> list[str]:
    listed = exercises_in(notebook)
    found = []
    if not FEWEST_EXERCISES <= len(listed) <= MOST_EXERCISES:
        found.append(f"exercises: {len(listed)}, not {FEWEST_EXERCISES} to {MOST_EXERCISES}")
    if [entry.number for entry in listed] != list(range(1, len(listed) + 1)):
        found.append("exercises: not numbered from 1")
    registered = exercises.exercises_of(slug)
    checked = []
    for entry in listed:
        name = f"exercise {entry.number}"
        stated = re.search(r"\*(\d+) minutes, (easy|medium|hard)\.?\*", entry.text)
        if not stated:
            found.append(f"{name}: no minutes and difficulty")
        if len(entry.checked) != 1:
            found.append(f"{name}: {len(entry.checked)} checks instead of one")
        checked += entry.checked
        for exercise_id in entry.checked:
            known = registered.get(exercise_id)
            if known is None:
                found.append(f"{name}: {exercise_id} is not registered for {slug}")
            elif stated and (int(stated[1]), stated[2]) != (known.minutes, known.level):
                found.append(f"{name}: minutes or difficulty differ from the checker's")
        if "<summary>Hint</summary>" not in entry.folded:
            found.append(f"{name}: no hint")
        if len(entry.solutions) != 1:
            found.append(f"{name}: {len(entry.solutions)} folded solutions instead of one")
        if "<details open" in entry.folded:
            found.append(f"{name}: the solution is not folded")
    found += [f"exercises: {name} stands in no cell" for name in registered if name not in checked]
    return found


def _redefinitions(notebook: NotebookNode) -> list[str]:
    sources = [(cell.id, as_python(cell.source)) for cell in form.code_cells(notebook)]
    for entry in exercises_in(notebook):
        sources += [(f"solution {entry.number}", code) for code in entry.solutions]
    return [
        f"{place}: defines {node.name}, a public name of the package"
        for place, source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.name in public_names()
        and not _is_method(node, source)
    ]


def _is_method(target: ast.FunctionDef | ast.ClassDef, source: str) -> bool:
    return any(
        isinstance(node, ast.ClassDef)
        and any(
            isinstance(child, ast.FunctionDef | ast.ClassDef)
            and (child.name, child.lineno) == (target.name, target.lineno)
            for child in node.body
        )
        for node in ast.walk(ast.parse(source))
    )
