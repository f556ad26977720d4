"""Models that come with the package: trained by us, measured, ready without a download.

A model is a folder as :func:`glassformer.training.save_model` writes it with ``small=True``. Its
``record.json`` says how it came about and what it can do: the data with their checksum, licence
and split, the recipe, the curve, the machine and its minutes, and every score with its signature.

Book: assembling
"""

import json
from pathlib import Path
from typing import Any

import torch

from glassformer.errors import CheckpointError
from glassformer.training import read_record
from glassformer.translation import Translator, load_translator

__all__ = ["PRETRAINED", "load_pretrained", "pretrained_folder", "recorded_runs", "training_record"]

PRETRAINED = ("tatoeba-de-en", "cmudict-g2p")
"""The names: German to English, and English words to their sounds (ARPAbet, without stress)."""

_ROOT = Path(__file__).parent / "weights"
COMPARISONS = _ROOT / "comparisons.json"


def load_pretrained(name: str, *, device: str | torch.device = "cpu") -> Translator:
    """A trained translator, as ``load_pretrained("tatoeba-de-en").translate("Guten Morgen!")``.

    The model is in evaluation mode and float32; nothing is downloaded.

    Args:
        name: one of :data:`PRETRAINED`.
        device: where the model goes.

    Raises:
        CheckpointError: no such model, or its files are damaged or were not installed.

    Book: assembling
    """
    return load_translator(pretrained_folder(name), device=device)


def training_record(name: str) -> dict[str, Any]:
    """How a model came about and what it can do, as plain data.

    Raises:
        CheckpointError: as :func:`load_pretrained`.

    Book: assembling
    """
    return read_record(pretrained_folder(name))


def recorded_runs() -> dict[str, Any]:
    """Runs too long for a chapter, whose weights are not here: what was tried, and what came out.

    Book: translation
    """
    runs: dict[str, Any] = json.loads(COMPARISONS.read_bytes())
    return runs


def pretrained_folder(name: str) -> Path:
    """The folder of a model: what :func:`glassformer.training.load_model` and the commands take.

    Raises:
        CheckpointError: no such model.

    Book: assembling
    """
    if name not in PRETRAINED:
        raise CheckpointError(
            f"{name!r} is no model of this package; there are {', '.join(PRETRAINED)}"
        )
    return _ROOT / name
