"""In every exercise the starter fails with a named property and the folded solution passes."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from glassformer import exercises
from glassformer.lab import notebook as form
from support.chapters import ExerciseCells, as_python, exercises_in, sections
from support.project import BOOK, CHAPTERS

TASKS = [
    pytest.param(path, entry, id=f"{path.stem}-{entry.number}")
    for path in CHAPTERS
    for entry in exercises_in(form.read(path))
]


@cache
def setup_code(path: Path) -> str:
    part = next(part for part in sections(form.read(path)) if part.title == "Setup")
    return "\n".join(as_python(cell.source) for cell in part.cells if cell.cell_type == "code")


def run(path: Path, *sources: str) -> list[exercises.Report]:
    """Run code as after the chapter's set-up and return the reports of its checks."""
    reports: list[exercises.Report] = []
    real = exercises.check

    def remember(exercise_id: str, learner: Any) -> exercises.Report:
        reports.append(real(exercise_id, learner))
        return reports[-1]

    space: dict[str, Any] = {"__name__": "__main__"}
    # a chapter may switch gradients off for its own kernel; here it shares the process
    with torch.enable_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(exercises, "check", remember)
        patch.chdir(BOOK)
        for source in (setup_code(path), *sources):
            exec(compile(as_python(source), f"<{path.stem}>", "exec"), space)
    return reports


def check_line(starter: str) -> str:
    """The statements of a starter that call ``exercises.check``."""
    tree = ast.parse(as_python(starter))
    return "\n".join(
        ast.unparse(node) for node in tree.body if "exercises.check" in ast.unparse(node)
    )


@pytest.mark.parametrize(("path", "entry"), TASKS)
def test_starter_fails_with_a_named_property(path: Path, entry: ExerciseCells) -> None:
    (report,) = run(path, entry.starter)
    assert not report.passed
    assert report.property
    assert report.hint
    assert "NotImplementedError" not in report.got


@pytest.mark.parametrize(("path", "entry"), TASKS)
def test_solution_passes(path: Path, entry: ExerciseCells) -> None:
    (solution,) = entry.solutions
    line = "" if "exercises.check(" in solution else check_line(entry.starter)
    (report,) = run(path, solution, line)
    assert report.passed, repr(report)
