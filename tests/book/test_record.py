"""Recording: a run that changes nothing changes no byte, and a failure changes nothing."""

import os
import runpy
from pathlib import Path

import nbformat
import pytest
from glassformer.errors import GlassformerError
from glassformer.lab import notebook as form
from glassformer.lab import record as recording
from glassformer.lab.record import main, record
from nbformat.v4 import new_code_cell
from support.project import CHAPTERS, ROOT
from support.sample import tiny

# a chapter that takes minutes is run by nbval; running it a second time here would cost minutes
LONG = {"pruning", "training"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of the tiny notebook after one recording."""
    path = tmp_path_factory.mktemp("book") / "tiny.ipynb"
    path.write_text(nbformat.writes(tiny()), encoding="utf-8")
    record(path)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path, recorded: str) -> Path:
    path = tmp_path / "tiny.ipynb"
    path.write_text(recorded, encoding="utf-8")
    return path


def edit(path: Path, cell_id: str, old: str, new: str) -> None:
    notebook = form.read(path)
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    assert old in cell.source
    cell.source = cell.source.replace(old, new)
    path.write_text(form.dumps(notebook), encoding="utf-8")


def output_of(path: Path, cell_id: str) -> str:
    cell = next(cell for cell in form.read(path).cells if cell.id == cell_id)
    return str(cell.outputs)


def test_N04_a_second_run_changes_no_byte(path: Path, recorded: str) -> None:
    result = record(path)
    assert not result.differs
    assert path.read_text(encoding="utf-8") == recorded


BARS = """\
from rich.progress import track

total = 0
for n in track(range(3)):
    total += n
print(total)"""


def test_N04_progress_bars_leave_no_trace_that_changes(tmp_path: Path) -> None:
    """Two runs with a progress bar give the same bytes: a bar belongs to terminals."""
    path = tmp_path / "bars.ipynb"
    path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=[new_code_cell(BARS)])))
    record(path)
    first = path.read_bytes()
    record(path)
    assert path.read_bytes() == first


@pytest.mark.slow
@pytest.mark.parametrize(
    "chapter", [path for path in CHAPTERS if path.stem not in LONG], ids=lambda path: path.stem
)
def test_N04_a_chapter_runs_to_the_same_bytes(chapter: Path) -> None:
    assert record(chapter, check=True).changes == ()


def test_noise_is_kept_while_nothing_strict_changes(path: Path) -> None:
    before = output_of(path, "noise")
    edit(path, "front", "A sample", "Another title")
    record(path)
    assert output_of(path, "noise") == before


def test_noise_is_replaced_when_code_changes(path: Path) -> None:
    before = output_of(path, "noise")
    edit(path, "digits", "3.142", "2.718")
    result = record(path)
    assert output_of(path, "noise") != before
    assert "cell digits (output)" in result.changes


def test_noise_is_replaced_when_a_strict_output_changes(path: Path) -> None:
    before = output_of(path, "noise")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("loss 3.142", "loss 3.141"), encoding="utf-8")
    record(path)
    assert output_of(path, "noise") != before
    assert "3.142" in output_of(path, "digits")


def test_check_reports_and_writes_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = path.read_text(encoding="utf-8").replace("loss 3.142", "loss 3.141")
    path.write_text(text, encoding="utf-8")
    assert main(["--check", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == text
    assert "cell digits (output)" in capsys.readouterr().out


def test_check_without_running_finds_stale_outputs(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", "--no-exec", str(path)]) == 0
    edit(path, "digits", "3.142", "2.718")
    assert main(["--check", "--no-exec", str(path)]) == 1
    assert "code has changed since" in capsys.readouterr().out


def test_N06_a_failing_cell_is_named_and_leaves_the_file_untouched(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(path, "digits", "print(", "print(undefined, ")
    before = path.read_bytes()
    assert main([str(path)]) == 1
    assert path.read_bytes() == before
    told = capsys.readouterr().out
    assert "cell digits" in told
    assert "NameError: name 'undefined' is not defined" in told
    assert "unchanged" in told


def test_N06_a_cell_that_takes_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / "slow.ipynb"
    notebook = nbformat.v4.new_notebook(
        cells=[new_code_cell("import time\ntime.sleep(30)", id="sleeper")]
    )
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(GlassformerError, match=r"cell sleeper: .*longer than 1 seconds"):
        record(path, timeout=1)
    assert path.read_bytes() == before


def test_an_interrupted_write_keeps_the_old_file(
    path: Path, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recording.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        recording.write_atomically(path, "half a noteb")
    assert path.read_text(encoding="utf-8") == recorded
    assert [file.name for file in path.parent.iterdir()] == ["tiny.ipynb"]


@pytest.mark.parametrize("text", ["", "no notebook", "[]", '{"cells": 3}'])
def test_a_file_that_is_no_notebook(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.ipynb"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(GlassformerError, match="no notebook"):
        record(path)
    assert path.read_text(encoding="utf-8") == text


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.ipynb")]) == 1
    assert "there is no notebook" in capsys.readouterr().out


def test_every_test_run_uses_the_environment_of_recording() -> None:
    root = runpy.run_path(str(ROOT / "conftest.py"))
    wanted = recording.kernel_environment()
    assert wanted.pop("GLASSFORMER_DEVICE") == "cpu"
    assert root["KERNEL_ENVIRONMENT"] == wanted
    assert {name: os.environ.get(name) for name in wanted} == wanted
