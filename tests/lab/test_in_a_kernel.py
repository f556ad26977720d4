"""What a chapter sees: a recorded notebook that uses the lab, kept as any chapter is."""

from pathlib import Path

import nbformat
import pytest
from glassformer.lab import notebook as form
from glassformer.lab.record import record
from glassformer.lab.trials import MIME, claims
from nbformat.v4 import new_code_cell, new_notebook

FIRST = next(iter(claims()))
CODE = {
    "setup": "from glassformer import lab\ndevice = lab.setup(seed=0)",
    "tried": f"lab.trial({FIRST!r}, 'holds', 'So it is.', measured={{'n': 1/3}})",
    "shown": "from glassformer.functional import attend\nlab.show_source(attend)",
    "drawn": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "released": "lab.release()",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[nbformat.NotebookNode]]:
    path: Path = tmp_path_factory.mktemp("lab") / "chapter.ipynb"
    cells = [new_code_cell(source, id=name) for name, source in CODE.items()]
    path.write_text(nbformat.writes(new_notebook(cells=cells)), encoding="utf-8")
    record(path)
    return {cell.id: cell.outputs for cell in form.read(path).cells}


def test_setup_is_silent(outputs: dict) -> None:
    assert outputs["setup"] == []
    assert outputs["released"] == []


def test_a_trial_stores_a_card_and_its_data(outputs: dict) -> None:
    (output,) = outputs["tried"]
    assert set(output.data) == {"text/plain", "text/html", MIME}
    assert output.data[MIME]["measured"] == {"n": 0.3333}


def test_source_is_stored_as_markdown(outputs: dict) -> None:
    (output,) = outputs["shown"]
    assert set(output.data) == {"text/plain", "text/markdown"}


def test_figures_are_svg_without_dates(outputs: dict) -> None:
    (output,) = outputs["drawn"]
    assert set(output.data) == {"text/plain", "image/svg+xml"}
    picture = output.data["image/svg+xml"]
    assert "<dc:date>" not in picture
    assert "Matplotlib v" not in picture
