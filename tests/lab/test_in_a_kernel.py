"""What a chapter sees: a recorded notebook that uses the lab, kept as any chapter is."""

import sys
from pathlib import Path

import nbformat
import pytest
from glassformer.lab import notebook as form
from glassformer.lab.record import record
from glassformer.lab.trials import MIME, claims
from nbclient import NotebookClient
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


LIVE = """
import gc
import torch

def live_bytes():
    gc.collect()
    tensors = {t.untyped_storage()._cdata: t for t in gc.get_objects() if torch.is_tensor(t)}
    return sum(t.untyped_storage().nbytes() for t in tensors.values())

start = live_bytes()
"""
FAILING = """
def train():
    layer = torch.nn.Linear(1000, 500)
    loss = layer(torch.ones(300, 1000)).sum()
    loss.backward()
    raise RuntimeError("out of memory")

train()
"""


def test_N07_release_gives_back_what_a_failed_cell_held(tmp_path: Path) -> None:
    """In a real kernel: after an error its traceback keeps the tensors, and release() drops it."""
    cells = {
        "start": LIVE + "from glassformer import lab",
        "failing": FAILING,
        "held": "print(live_bytes() - start)",
        "freed": "lab.release()\nprint(live_bytes() - start)",
        "again": FAILING,
        "freed at once": "lab.release()\nprint(live_bytes() - start)",
    }
    notebook = new_notebook(cells=[new_code_cell(source) for source in cells.values()])
    client = NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=120)
    manager = client.create_kernel_manager()
    manager.kernel_spec.argv[0] = sys.executable
    client.execute()
    said = {
        name: cell.outputs[0]
        for name, cell in zip(cells, notebook.cells, strict=True)
        if cell.outputs
    }
    assert {said["failing"].ename, said["again"].ename} == {"RuntimeError"}
    assert int(said["held"].text) > 4 * 1000 * 500  # the weights and their gradient at least
    assert int(said["freed"].text) == 0
    assert int(said["freed at once"].text) == 0
