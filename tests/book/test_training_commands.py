"""Every command line that the chapters on training show is one that the program understands."""

import ast
import re
import shlex

import nbformat
import pytest
import typer
from glassformer.cli import app
from support.project import BOOK

CHAPTERS = ("training", "translation")


def shown_commands(chapter: str) -> list[str]:
    cells = nbformat.read(BOOK / f"{chapter}.ipynb", as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    blocks = re.findall(r"```bash\n(.*?)```", prose, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip()]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_chapter_shows_commands(chapter: str) -> None:
    assert len(shown_commands(chapter)) >= 4


@pytest.mark.parametrize("line", [line for name in CHAPTERS for line in shown_commands(name)])
def test_a_shown_command_exists_with_its_options(line: str) -> None:
    line = re.sub(r"^torchrun --standalone --nproc-per-node \d+ -m ", "", line)
    program, name, *arguments = shlex.split(line)
    assert program == "glassformer"
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(arguments))  # raises on an unknown option or a wrong value


def test_the_first_command_is_the_run_of_the_chapter() -> None:
    """Its options and the arguments of the chapter's recipe are the same."""
    code = [
        cell.source
        for cell in nbformat.read(BOOK / "training.ipynb", as_version=4).cells
        if cell.cell_type == "code" and "recipe = Recipe(" in cell.source
    ]
    (call,) = (
        node
        for node in ast.walk(ast.parse(code[0]))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Recipe"
    )
    recipe = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    _, name, *arguments = shlex.split(shown_commands("training")[0])
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    typed = command.make_context(name, arguments).params
    default = command.make_context(name, []).params
    changed = {key: value for key, value in typed.items() if value != default[key] or key in recipe}
    changed.pop("out")
    assert {key: getattr(value, "value", value) for key, value in changed.items()} == recipe
