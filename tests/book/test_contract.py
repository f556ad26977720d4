"""Every chapter keeps the contract: the same headings, set-up, trials and exercises."""

import copy
from pathlib import Path

import pytest
from glassformer.exercises import checking
from glassformer.lab import notebook as form
from glassformer.lab import source
from glassformer.lab.trials import MIME
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from support.chapters import planned_chapters
from support.contract import contract_problems
from support.project import BOOK, CHAPTERS, ROOT


@pytest.fixture(scope="module")
def address() -> form.Address:
    found = form.find_address(BOOK / "any.ipynb")
    assert found is not None
    return found


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter(path: Path, address: form.Address) -> None:
    assert contract_problems(form.read(path), path.stem, address) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_is_planned(path: Path) -> None:
    assert path.stem in planned_chapters()


def test_docstrings_name_chapters_that_are_planned() -> None:
    named = {chapter for door in source.doors() for chapter in door.chapters}
    assert named
    assert named <= planned_chapters()


def test_address_stands_only_in_the_config(address: form.Address) -> None:
    assert address.root == ROOT
    assert address.url.startswith("https://github.com/")


# A chapter written for this test keeps the contract; then one thing after another is broken.

WORDS = (
    "Some prose that says what this section is about, in rather more than fifteen words all told."
)


def complete(address: form.Address):
    colab = address.colab(BOOK / "sample.ipynb")
    card = new_output("execute_result", {MIME: {"id": "X-1"}}, execution_count=1)
    listed = new_output(
        "execute_result",
        {"text/markdown": "- [`do`](api/thing.html#glassformer.thing.do): It does."},
        execution_count=1,
    )
    cells = [
        new_markdown_cell(
            f"# Sample\n\n[Open in Colab]({colab})\n\n## The question\n\n{WORDS} Does it?\n\n"
            "**You will be able to**\n\n- see\n- do\n- tell\n\n"
            "**Minutes:** 10\n\n**Builds on:** nothing yet"
        ),
        new_markdown_cell(f"## Setup\n\n{WORDS}"),
        new_code_cell(form.setup_source(address), id="setup"),
        new_code_cell("import torch", id="imports"),
        new_markdown_cell(f"## The idea\n\n{WORDS}\n\n```python\n## no heading\n```"),
        new_markdown_cell(f"## The package's version\n\n{WORDS}"),
        new_code_cell("lab.show_source(do)\ntorch.testing.assert_close(a, b)", id="shown"),
        new_code_cell('lab.api("sample")', id="api", outputs=[listed]),
        new_markdown_cell(f"## On trial\n\n{WORDS}"),
        new_code_cell('lab.trial("X-1", "holds", "So.")', id="tried", outputs=[card]),
        new_markdown_cell(f"## What goes wrong\n\n{WORDS}"),
        new_markdown_cell(f"## Exercises\n\n{WORDS}"),
    ]
    for number in (1, 2, 3):
        cells += [
            new_markdown_cell(f"### Exercise {number}: A task\n\n*5 minutes, easy.* Do it."),
            new_code_cell(f'exercises.check("sample.task{number}", 1)', id=f"exercise-{number}"),
            new_markdown_cell(
                "<details><summary>Hint</summary>\n\nLook.\n\n</details>\n\n"
                "<details><summary>Solution</summary>\n\n```python\nx = 2\n```\n\n</details>"
            ),
        ]
    return new_notebook(cells=[*cells, new_markdown_cell(f"## Summary\n\n{WORDS}")])


@pytest.fixture
def sample(address: form.Address, monkeypatch: pytest.MonkeyPatch):
    """The complete chapter, with its exercises registered and one object of the package."""
    registered = {
        f"sample.task{number}": checking.Exercise(
            id=f"sample.task{number}", minutes=5, level="easy", checker=lambda learner: None
        )
        for number in (1, 2, 3)
    }
    monkeypatch.setattr(checking, "_registered", registered)
    door = source.Door(name="glassformer.thing.do", summary="It does.", chapters=("sample",))
    monkeypatch.setattr("support.contract.doors", lambda: (door,))
    return complete(address)


def test_a_complete_chapter_passes(sample, address: form.Address) -> None:
    assert contract_problems(sample, "sample", address) == []


def replace(cell_index, old, new):
    def change(notebook):
        cell = notebook.cells[cell_index]
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return change


def drop(cell_index):
    return lambda notebook: notebook.cells.pop(cell_index)


def silence(cell_index):
    return lambda notebook: notebook.cells[cell_index].outputs.clear()


def tag(cell_index):
    def change(notebook):
        notebook.cells[cell_index].metadata["tags"] = ["nbval-ignore-output"]

    return change


BROKEN = {
    "a heading renamed": (replace(4, "## The idea", "## Ideas"), "headings"),
    "two H1": (replace(0, "# Sample", "# Sample\n\n# More"), "one H1"),
    "another Colab link": (replace(0, "sample.ipynb", "other.ipynb"), "no link to"),
    "no question": (replace(0, "Does it?", "It does."), "no question"),
    "two points": (replace(0, "- tell\n", ""), "three points"),
    "no minutes": (replace(0, "**Minutes:** 10", ""), "no minutes"),
    "no base": (replace(0, "**Builds on:** nothing yet", ""), "builds on"),
    "another setup": (replace(2, "seed=0", "seed=1"), "all chapters share"),
    "no setup": (drop(2), "instead of setup"),
    "source not shown": (replace(6, "lab.show_source(do)", ""), "real source"),
    "no comparison": (replace(6, "torch.testing.assert_close(a, b)", ""), "not compared"),
    "API list not stored": (silence(7), "no cell shows"),
    "noisy verdict": (tag(9), "noisy"),
    "no card": (silence(9), "no card"),
    "no trial": (drop(9), "no claim"),
    "an exercise too few": (lambda notebook: [notebook.cells.pop(18) for _ in range(3)], "not 3"),
    "no minutes of an exercise": (replace(12, "*5 minutes, easy.* ", ""), "no minutes"),
    "other minutes": (replace(12, "5 minutes", "6 minutes"), "differ"),
    "an unknown exercise": (replace(13, "task1", "task9"), "not registered"),
    "no hint": (replace(14, "<summary>Hint</summary>", ""), "no hint"),
    "no solution": (replace(14, "```python\nx = 2\n```", ""), "0 folded"),
    "an open solution": (
        replace(14, "<details><summary>Sol", "<details open><summary>Sol"),
        "fold",
    ),
    "a public name": (replace(3, "import torch", "def attend(q): ..."), "public name"),
    "an empty section": (replace(10, WORDS, ""), "empty"),
}


@pytest.mark.parametrize(("change", "named"), BROKEN.values(), ids=BROKEN)
def test_a_broken_chapter_is_named(change, named, sample, address: form.Address) -> None:
    broken = copy.deepcopy(sample)
    change(broken)
    problems = contract_problems(broken, "sample", address)
    assert any(named in problem for problem in problems), problems


def test_a_missing_object_is_named(sample, address, monkeypatch: pytest.MonkeyPatch) -> None:
    doors = [
        source.Door(name=f"glassformer.thing.{name}", summary="", chapters=("sample",))
        for name in ("do", "undo")
    ]
    monkeypatch.setattr("support.contract.doors", lambda: doors)
    assert contract_problems(sample, "sample", address) == [
        "package: glassformer.thing.undo is not listed"
    ]
