"""nbval, as this repository runs it, goes red when a stored output is not what the code gives.

A notebook that passes is copied and one thing in each copy is changed. All copies run in one
pytest of their own.
"""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from glassformer.lab import notebook as form
from glassformer.lab.record import record
from support.project import BOOK, ROOT
from support.sample import tiny


def nbval(folder: Path) -> dict[str, bool]:
    """Run strict nbval over a folder; notebook name -> whether every cell passed."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env"]
    command += ["-p", "conftest", "-p", "no:cacheprovider", "-q", "--nbval-cell-timeout", "300"]
    command += [f"--rootdir={folder}", f"--junit-xml={report}", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)  # shown if a test here fails
    assert report.exists()
    passed: dict[str, bool] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.get("classname", "").removesuffix(".ipynb").rpartition(".")[2]
        failed = any(child.tag in {"failure", "error", "skipped"} for child in case)
        passed[name] = passed.get(name, True) and not failed
    return passed


def cell_of(notebook: nbformat.NotebookNode, cell_id: str) -> nbformat.NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == cell_id)


def change_digit(notebook):
    cell_of(notebook, "digits").outputs[0].text = "loss 3.141\n"


def change_result(notebook):
    cell_of(notebook, "digits").outputs[1].data["text/plain"] = "[1, 2, 4]"


def change_svg(notebook):
    cell_of(notebook, "svg").source = cell_of(notebook, "svg").source.replace("4", "4.1")


def change_png(notebook):
    cell_of(notebook, "png").source = cell_of(notebook, "png").source.replace("4", "4.1")


def delete_output(notebook):
    cell_of(notebook, "facts").outputs = []


def delete_figure(notebook):
    cell_of(notebook, "png").outputs = []


def reach_for_the_network(notebook):
    lines = ["import socket, contextlib", "with contextlib.suppress(OSError):"]
    lines.append("    socket.create_connection(('example.org', 80), timeout=1).close()")
    cell = cell_of(notebook, "digits")
    cell.source = "\n".join([*lines, cell.source])


MUTATIONS = [
    change_digit,
    change_result,
    change_svg,
    change_png,
    delete_output,
    delete_figure,
    reach_for_the_network,
]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    folder = tmp_path_factory.mktemp("mutated")
    untouched = folder / "untouched.ipynb"
    untouched.write_text(nbformat.writes(tiny()), encoding="utf-8")
    record(untouched)
    good = form.read(untouched)
    for mutate in MUTATIONS:
        changed = copy.deepcopy(good)
        mutate(changed)
        (folder / f"{mutate.__name__}.ipynb").write_text(form.dumps(changed), encoding="utf-8")
    return nbval(folder)


def test_an_untouched_notebook_is_green(outcome: dict[str, bool]) -> None:
    assert outcome["untouched"]


@pytest.mark.parametrize("mutation", [mutate.__name__ for mutate in MUTATIONS])
def test_a_mutated_notebook_is_red(mutation: str, outcome: dict[str, bool]) -> None:
    assert not outcome[mutation]


def opening_of(chapter: Path) -> nbformat.NotebookNode:
    """A real chapter up to its first figure, which is enough to see it go red."""
    notebook = form.read(chapter)
    for place, cell in enumerate(notebook.cells):
        if any("image/svg+xml" in output.get("data", {}) for output in cell.get("outputs", [])):
            notebook.cells = notebook.cells[: place + 1]
            return notebook
    raise AssertionError(f"{chapter.stem} has no figure")


def raise_a_digit(match: re.Match[str]) -> str:
    return f"{match[1]}{(int(match[2]) + 1) % 10}"


def test_a_real_chapter_goes_red(tmp_path: Path) -> None:
    good = opening_of(BOOK / "attention.ipynb")
    figure, printed = copy.deepcopy(good), copy.deepcopy(good)
    picture = figure.cells[-1].outputs[-1].data
    picture["image/svg+xml"] = re.sub(
        r"(<path d=\"M \d*)(\d)", raise_a_digit, picture["image/svg+xml"], count=1
    )
    streams = [
        output
        for cell in printed.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream" and re.search(r"\d\.\d", output.text)
    ]
    streams[0].text = re.sub(r"(\d\.)(\d)", raise_a_digit, streams[0].text, count=1)
    for name, notebook in {"good": good, "figure": figure, "printed": printed}.items():
        assert notebook == good or name != "good"
        (tmp_path / f"{name}.ipynb").write_text(form.dumps(notebook), encoding="utf-8")
    assert form.dumps(figure) != form.dumps(good) != form.dumps(printed)
    assert nbval(tmp_path) == {"good": True, "figure": False, "printed": False}
