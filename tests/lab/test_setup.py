"""lab.setup: seeds, device, and the check that what is loaded is what is installed (case N01)."""

import random
import sys
import types
from importlib import metadata

import numpy as np
import pytest
import torch
from glassformer import lab
from glassformer.errors import GlassformerError


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


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_a_module_older_than_the_installed_one(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = types.ModuleType(library)
    stale.__version__ = "0.9.0+cpu"
    monkeypatch.setitem(sys.modules, library, stale)
    with pytest.raises(GlassformerError, match=rf"{library} 0\.9\.0\+cpu is loaded .* restart it"):
        lab.setup()


def test_a_local_build_is_the_same_release(monkeypatch: pytest.MonkeyPatch) -> None:
    same = torch.__version__.partition("+")[0] + "+cu128"
    monkeypatch.setattr(torch, "__version__", same)
    assert lab.setup().type in {"cpu", "cuda", "mps"}


def test_a_library_without_metadata_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    assert lab.setup().type in {"cpu", "cuda", "mps"}
