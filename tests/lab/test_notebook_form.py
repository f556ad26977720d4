"""The canonical form: what goes, what stays, and which names cells get."""

import copy
import json
from pathlib import Path

import nbformat
import pytest
from glassformer.lab import notebook as form
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

CONFIG = """\
repository:
  url: https://github.com/someone/a-book.git
  branch: trunk
"""


def test_what_an_editor_adds_goes() -> None:
    stream = [new_output("stream", name="stdout", text=text) for text in ("a", "b\rc\n")]
    cell = new_code_cell(
        "x",
        id="kept",
        execution_count=17,
        outputs=stream,
        metadata={"tags": ["t"], "execution": {"iopub": "now"}, "collapsed": False},
    )
    raw = new_notebook(
        cells=[cell],
        metadata={"widgets": {"state": 1}, "language_info": {"name": "py", "version": "3"}},
    )
    clean = form.canonical(raw)
    assert clean.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert clean.cells[0].metadata == {"tags": ["t"]}
    assert clean.cells[0].execution_count == 1
    assert [output.text for output in clean.cells[0].outputs] == ["c\n"]
    assert raw.cells[0].execution_count == 17  # the argument stays as it is


def test_results_get_the_count_of_their_cell() -> None:
    result = new_output("execute_result", {"text/plain": "1"}, execution_count=9)
    result.metadata = {"isolated": True, "needs_background": "light"}
    (cell,) = form.canonical(new_notebook(cells=[new_code_cell("1", outputs=[result])])).cells
    assert cell.outputs[0].execution_count == 1
    assert cell.outputs[0].metadata == {"needs_background": "light"}


def test_streams_of_different_names_stay_apart() -> None:
    outputs = [new_output("stream", name=n, text=n) for n in ("stdout", "stderr", "stdout")]
    (cell,) = form.canonical(new_notebook(cells=[new_code_cell("x", outputs=outputs)])).cells
    assert [output.text for output in cell.outputs] == ["stdout", "stderr", "stdout"]


def test_text_is_a_fixed_point() -> None:
    notebook = form.canonical(new_notebook(cells=[new_code_cell("x = 'é'", id="a")]))
    text = form.dumps(notebook)
    assert text.endswith("}\n")
    assert not text.endswith("\n\n")
    assert "é" in text
    assert form.dumps(form.canonical(nbformat.reads(text, as_version=4))) == text


def test_ids_are_kept_or_made_from_the_section(tmp_path: Path) -> None:
    cells = [
        new_code_cell("lab.setup()", id="0a1b2c3d"),
        new_markdown_cell("## What goes wrong", id="12345678-1234-1234-1234-123456789abc"),
        new_code_cell("x", id="leak"),
        new_code_cell("y", id="leak"),
        new_code_cell("z", id="what-goes-wrong-2"),
    ]
    notebook = new_notebook()
    notebook.cells = cells  # as a hand that copies a cell leaves it
    form.tidy(notebook, tmp_path / "x.ipynb")
    names = [cell.id for cell in notebook.cells]
    assert names == [
        "setup",
        "what-goes-wrong-1",
        "leak",
        "what-goes-wrong-3",
        "what-goes-wrong-2",
    ]
    again = copy.deepcopy(notebook)
    form.tidy(again, tmp_path / "x.ipynb")
    assert again == notebook


def test_sources_lose_windows_line_ends_and_a_trailing_gap(tmp_path: Path) -> None:
    notebook = new_notebook(cells=[new_code_cell("a\r\nb\n\n", id="a")])
    form.tidy(notebook, tmp_path / "x.ipynb")
    assert notebook.cells[0].source == "a\nb"


def test_addresses_come_from_the_config(tmp_path: Path) -> None:
    (tmp_path / "_config.yml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "book").mkdir()
    path = tmp_path / "book" / "masking.ipynb"
    old = "https://colab.research.google.com/github/old/name/blob/main/book/x.ipynb"
    notebook = new_notebook(
        cells=[new_markdown_cell(f"[Open in Colab]({old})."), new_code_cell("old", id="setup")]
    )
    form.tidy(notebook, path)
    assert notebook.cells[0].source == (
        "[Open in Colab](https://colab.research.google.com/github/"
        "someone/a-book/blob/trunk/book/masking.ipynb)."
    )
    assert "git+https://github.com/someone/a-book@trunk" in notebook.cells[1].source


@pytest.mark.parametrize("config", [None, "title: no address\n"])
def test_without_an_address_nothing_is_rewritten(config: str | None, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "_config.yml").write_text(config, encoding="utf-8")
    notebook = new_notebook(cells=[new_code_cell("mine", id="setup")])
    form.tidy(notebook, tmp_path / "x.ipynb")
    assert notebook.cells[0].source == "mine"


def test_the_digest_sees_code_and_not_prose() -> None:
    def digest(text: str, code: str) -> str:
        return form.source_digest(
            new_notebook(cells=[new_markdown_cell(text), new_code_cell(code)])
        )

    assert digest("a", "x") == digest("b", "x")
    assert digest("a", "x") != digest("a", "y")


def test_empty_attachments_go() -> None:
    cell = new_markdown_cell("x", attachments={})
    assert "attachments" not in form.canonical(new_notebook(cells=[cell])).cells[0]


@pytest.mark.parametrize("minor", [4, 5])
def test_missing_and_repeated_ids_are_read_quietly(minor: int, tmp_path: Path) -> None:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": "## On trial"}]
    if minor == 5:
        cells = [{**cells[0], "id": "same"}, {**cells[0], "id": "same"}, cells[0]]
    path = tmp_path / "old.ipynb"
    content = {"nbformat": 4, "nbformat_minor": minor, "metadata": {}, "cells": cells}
    path.write_text(json.dumps(content), encoding="utf-8")
    notebook = form.read(path)
    form.tidy(notebook, path)
    expected = ["on-trial-1"] if minor == 4 else ["same", "on-trial-1", "on-trial-2"]
    assert [cell.id for cell in form.canonical(notebook).cells] == expected
