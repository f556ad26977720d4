"""The first line of every chapter: seeds, device, figures, and a check of what is loaded."""

import contextlib
import importlib
import os
import random
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import torch

from glassformer.devices import pick_device
from glassformer.errors import GlassformerError

__all__ = ["setup"]

# what chapters load whose distribution has the name of its module
_CHECKED = (
    "glassformer",
    "torch",
    "numpy",
    "matplotlib",
    "einops",
    "jaxtyping",
    "safetensors",
    "sentencepiece",
    "sacrebleu",
    "transformers",
)


def setup(seed: int = 0) -> torch.device:
    """Seed everything, make figures reproducible, and say where tensors should live.

    Args:
        seed: seeds ``random``, NumPy's global generator and every PyTorch generator.

    Returns:
        The device named by ``GLASSFORMER_DEVICE``, else CUDA, else MPS, else the CPU.

    Raises:
        GlassformerError: if a library was upgraded after it had been loaded (restart the kernel),
            or if ``GLASSFORMER_DEVICE`` names a device that is not here.
    """
    _refuse_stale_modules()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - libraries that still use the global generator
    torch.manual_seed(seed)
    _prepare_figures()
    wanted = os.environ.get("GLASSFORMER_DEVICE", "").strip()
    return pick_device(wanted or "auto", given_as="GLASSFORMER_DEVICE")


def _refuse_stale_modules() -> None:
    """An install cell cannot replace a module that is already loaded; say so at once."""
    for name in _CHECKED:
        module = sys.modules.get(name)
        if module is None:
            continue
        loaded = str(getattr(module, "__version__", ""))
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if loaded and _release(loaded) != _release(installed):
            raise GlassformerError(
                f"{name} {loaded} is loaded but {name} {installed} is installed: a running kernel "
                "keeps the version it imported first; restart it (Colab: Runtime, Restart session) "
                "and run this cell again"
            )


def _release(version: str) -> str:
    """The version without its local part: 2.13.0+cpu and 2.13.0 are the same release."""
    return version.partition("+")[0]


def _kernel_shell() -> Any:
    """The IPython shell of a notebook kernel, or None anywhere else."""
    if "IPython" not in sys.modules:
        return None
    shell = importlib.import_module("IPython").get_ipython()
    return shell if hasattr(shell, "kernel") else None


def _prepare_figures() -> None:
    """Inline SVG without dates or random ids, so that equal data gives equal bytes."""
    shell = _kernel_shell()
    if shell is None:
        return
    with contextlib.suppress(ImportError):
        import matplotlib as mpl
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        from glassformer import visualization

        shell.run_line_magic("matplotlib", "inline")
        visualization.style()
        mpl.rcParams["svg.hashsalt"] = "glassformer"
        set_formats: Callable[..., None] = set_matplotlib_formats
        set_formats("svg", metadata={"Date": None, "Creator": None})
