"""lab.setup: seeds, device, and the check that what is loaded is what is installed."""

import random
import sys
import types
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from glassformer import lab
from glassformer.errors import GlassformerError
from glassformer.lab import notebook as form
from glassformer.lab import session
from support.project import CHAPTERS


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def test_seeds_all_three_generators() -> None:
    lab.setup(seed=3)
    first = draws()
    lab.setup(seed=3)
    assert draws() == first
    lab.setup(seed=4)
    again = draws()
    assert all(a != b for a, b in zip(again, first, strict=True))


def test_the_environment_chooses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_DEVICE", "cpu")
    assert lab.setup() == torch.device("cpu")


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_fastest_device_is_the_default(
    cuda: bool, mps: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLASSFORMER_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert lab.setup().type == expected


@pytest.mark.parametrize("name", ["gpu", "cuda:99"])
def test_a_device_that_is_not_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_DEVICE", name)
    with pytest.raises(GlassformerError, match=f"GLASSFORMER_DEVICE={name} is no device"):
        lab.setup()


@pytest.mark.parametrize("library", session._CHECKED)
def test_N01_a_module_older_than_the_installed_one_is_named_with_the_remedy(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = types.ModuleType(library)
    stale.__version__ = "0.9.0+cpu"
    monkeypatch.setitem(sys.modules, library, stale)
    monkeypatch.setattr(session, "_prepare_figures", lambda: pytest.fail("something slow ran"))
    with pytest.raises(GlassformerError, match=rf"{library} 0\.9\.0\+cpu is loaded .* restart it"):
        lab.setup()


def test_N01_an_install_that_replaces_a_loaded_module_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other way round: the module is what it was, and the install cell brought a newer one."""
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "99.0" if n == "torch" else real(n))
    with pytest.raises(GlassformerError, match=r"torch .* is loaded but torch 99\.0 is installed"):
        lab.setup()


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_N01_every_chapter_begins_with_the_check(path: Path) -> None:
    """Its first code cell: the install, the import of the lab, the check, and nothing slow."""
    first = next(cell for cell in form.read(path).cells if cell.cell_type == "code")
    assert first.source == form.setup_source(form.find_address(path))
    steps = ["%pip install", "from glassformer import exercises, lab\n", "lab.setup(seed=0)"]
    places = [first.source.index(step) for step in steps]
    assert places == sorted(places)
    assert first.source.endswith(steps[-1])


def test_N01_a_local_build_is_the_same_release(monkeypatch: pytest.MonkeyPatch) -> None:
    same = torch.__version__.partition("+")[0] + "+cu128"
    monkeypatch.setattr(torch, "__version__", same)
    assert lab.setup().type in {"cpu", "cuda", "mps"}


def test_N01_a_library_without_metadata_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    assert lab.setup().type in {"cpu", "cuda", "mps"}
