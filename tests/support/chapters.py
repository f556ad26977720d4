"""Reading a chapter: its cells by section, its exercises, the names the package already uses."""

import ast
import re
from dataclasses import dataclass, field
from functools import cache

import yaml
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from support.project import BOOK, ROOT

PACKAGE = ROOT / "package" / "glassformer"

SECTIONS = [
    "The question",
    "Setup",
    "The idea",
    "The package's version",
    "On trial",
    "What goes wrong",
    "Exercises",
    "Summary",
]


@dataclass
class ExerciseCells:
    """One exercise as it stands in a chapter."""

    number: int
    title: str
    text: str
    starter: str = ""
    folded: str = ""

    @property
    def checked(self) -> list[str]:
        return re.findall(r"exercises\.check\(\s*[\"']([^\"']+)[\"']", self.starter)

    @property
    def solutions(self) -> list[str]:
        blocks = re.findall(r"<details>(.*?)</details>", self.folded, re.DOTALL)
        solved = [block for block in blocks if "<summary>Solution</summary>" in block]
        return [
            code
            for block in solved
            for code in re.findall(r"```python\n(.*?)```", block, re.DOTALL)
        ]


@dataclass
class Section:
    """The cells under one H2; a heading inside a cell starts a section there."""

    title: str
    text: str = ""
    cells: list[NotebookNode] = field(default_factory=list)


def without_code(markdown: str) -> str:
    """Markdown without fenced blocks, in which ``#`` is a comment."""
    return re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.MULTILINE | re.DOTALL)


def sections(notebook: NotebookNode) -> list[Section]:
    """The sections of a chapter; the first, without a title, is what stands before any H2."""
    found = [Section("")]
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            found[-1].cells.append(cell)
            continue
        for part in re.split(r"^(?=## )", without_code(cell.source), flags=re.MULTILINE):
            heading = re.match(r"## +(.+?)\s*$", part, re.MULTILINE)
            if heading:
                found.append(Section(heading[1]))
            found[-1].text += part + "\n"
        found[-1].cells.append(cell)
    return found


def exercises_in(notebook: NotebookNode) -> list[ExerciseCells]:
    """The exercises of a chapter, in order."""
    found: list[ExerciseCells] = []
    inside = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^##+ +(.+?)\s*$", without_code(cell.source), re.MULTILINE)
            numbered = re.fullmatch(r"Exercise (\d+): (.+)", headings[-1]) if headings else None
            if headings:
                inside = numbered is not None
            if numbered:
                found.append(ExerciseCells(int(numbered[1]), numbered[2], cell.source))
                continue
        if not inside:
            continue
        if cell.cell_type == "code":
            found[-1].starter += cell.source + "\n"
        else:
            found[-1].folded += cell.source + "\n"
    return found


def as_python(source: str) -> str:
    """A cell's source with IPython's magics turned into calls."""
    transformed: str = TransformerManager().transform_cell(source)
    return transformed


@cache
def public_names() -> frozenset[str]:
    """Every class and function that a module of the package lists in ``__all__``."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined = {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        for node in tree.body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and node.targets[0].id == "__all__"
            ):
                names |= set(ast.literal_eval(node.value)) & defined
    return frozenset(names)


@cache
def planned_chapters() -> frozenset[str]:
    """The slugs of all chapters, written or not."""
    parts = yaml.safe_load((BOOK / "chapters.yaml").read_text(encoding="utf-8"))
    return frozenset(chapter["slug"] for part in parts for chapter in part["chapters"])
