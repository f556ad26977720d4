"""Stored notebooks are whole, canonical, self-contained and the same on every machine."""

from pathlib import Path

import pytest
from glassformer.lab import notebook as form
from glassformer.lab.record import record
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from support.hygiene import hygiene_problems
from support.project import CHAPTERS


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_stored_chapter(path: Path) -> None:
    assert hygiene_problems(form.read(path), path.parent) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_stored_chapter_is_canonical_and_its_outputs_belong_to_its_code(path: Path) -> None:
    assert record(path, execute=False, check=True).changes == ()


def cell(source="x = 1", outputs=(), tags=(), alt=""):
    metadata = {"tags": list(tags)} if tags else {}
    if alt:
        metadata["mystnb"] = {"image": {"alt": alt}}
    return new_code_cell(
        source, id="planted", execution_count=1, metadata=metadata, outputs=list(outputs)
    )


def shows(mime, text):
    return new_output("display_data", {mime: text})


PLANTED = {
    "a semicolon": (cell("plot();"), "semicolon"),
    "an override": (cell("# NBVAL_IGNORE_OUTPUT\nx"), "overrides"),
    "a skipped cell": (cell(tags=["nbval-skip"]), "skipped"),
    "a folder": (cell("open('/home/me/x')"), "folder"),
    "an error": (cell(outputs=[new_output("error", ename="E", evalue="", traceback=[])]), "error"),
    "stderr": (cell(outputs=[new_output("stream", name="stderr", text="!")]), "stderr"),
    "a bare figure": (cell(outputs=[shows("image/svg+xml", "<svg/>")]), "alt text"),
    "a short alt text": (cell(outputs=[shows("image/png", "AAAA")], alt="plot"), "alt text"),
    "a JPEG": (cell(outputs=[shows("image/jpeg", "AAAA")], alt="a photograph"), "no test"),
    "a foreign script": (
        cell(outputs=[shows("text/html", '<script src="https://cdn.example/x.js"></script>')]),
        "another host",
    ),
    "a foreign style": (
        cell(outputs=[shows("text/html", '<link rel="stylesheet" href="//cdn.example/x.css">')]),
        "another host",
    ),
    "an address": (cell(outputs=[shows("text/plain", "<f at 0x7f9ae2040a30>")]), "address"),
    "a printed folder": (
        cell(outputs=[new_output("stream", name="stdout", text="in /tmp/x/y.py")]),
        "folder",
    ),
    "a widget": (
        cell(outputs=[shows("application/vnd.jupyter.widget-view+json", "{}")]),
        "widget",
    ),
    "noise without facts": (cell(tags=["nbval-ignore-output"]), "no strict cell"),
    "a foreign image": (new_markdown_cell("![x](https://example.org/x.png)"), "another host"),
    "an image without alt": (new_markdown_cell("![](figures/x.svg)"), "without alt"),
    "a dead link": (new_markdown_cell("[next](nowhere.ipynb)"), "not there"),
}


@pytest.mark.parametrize(("planted", "named"), PLANTED.values(), ids=PLANTED)
def test_a_planted_defect_is_named(planted, named, tmp_path: Path) -> None:
    problems = hygiene_problems(new_notebook(cells=[planted]), tmp_path)
    assert len(problems) >= 1
    assert any(named in problem for problem in problems), problems


def test_a_clean_notebook_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "there.ipynb").touch()
    figure = '<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg>'
    clean = [
        new_markdown_cell("[next](there.ipynb) and [a page](https://example.org)"),
        cell("draw()", outputs=[shows("image/svg+xml", figure)], alt="a line that rises"),
    ]
    assert hygiene_problems(new_notebook(cells=clean), tmp_path) == []


def test_an_unrun_cell_is_named(tmp_path: Path) -> None:
    problems = hygiene_problems(new_notebook(cells=[new_code_cell("x", id="a")]), tmp_path)
    assert any("counts" in problem for problem in problems)


def test_more_than_four_noisy_cells_are_named(tmp_path: Path) -> None:
    cells = []
    for number in range(5):
        noisy = {"tags": ["nbval-ignore-output"]}
        cells.append(new_code_cell("t", id=f"n{number}", metadata=noisy))
        cells.append(new_code_cell("f", id=f"f{number}"))
    for number, code in enumerate(cells, start=1):
        code.execution_count = number
    problems = hygiene_problems(new_notebook(cells=cells), tmp_path)
    assert problems == ["noise: 5 noisy cells, at most 4: ['n0', 'n1', 'n2', 'n3', 'n4']"]
