"""What a training step eats, and where the loop gets it.

Book: training
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.data import Windows, shuffled_batches

__all__ = ["Batch", "TrainingData", "WindowBatches"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Tokens to read and tokens to predict; ``targets[b, t]`` follows ``inputs[b, t]``.

    Padding stands on the right, where causality already hides it from the real tokens.

    Book: training
    """

    inputs: Int64[Tensor, "batch time"]
    targets: Int64[Tensor, "batch time"]
    target_mask: Bool[Tensor, "batch time"] | None = None
    """True where a target counts; ``None`` if all do."""
    source: Int64[Tensor, "batch source"] | None = None
    """What an encoder reads."""
    source_mask: Bool[Tensor, "batch source"] | None = None
    """True where a source token is real."""

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        tensors = (self.inputs, self.targets, self.target_mask, self.source, self.source_mask)
        return Batch(*(None if x is None else x.to(device) for x in tensors))  # type: ignore[arg-type]


@runtime_checkable
class TrainingData(Protocol):
    """What :class:`Trainer` asks of its data.

    Which examples form a micro-batch must depend on the epoch alone, so that a run can be taken
    up again in the middle of it. Random changes to the examples belong in ``load`` and draw from
    torch's random numbers, whose state is part of a checkpoint.

    Book: training
    """

    @property
    def fingerprint(self) -> str:
        """Differs for data that differ in content or order."""
        ...

    def epoch(self, epoch: int) -> Sequence[Sequence[int]]:
        """The micro-batches of an epoch, each a list of example numbers."""
        ...

    def load(self, indices: Sequence[int]) -> Batch:
        """The tensors of one micro-batch, on the CPU."""
        ...


class WindowBatches:
    """Windows of one long text, shuffled anew in every epoch.

    Args:
        windows: the examples.
        batch_size: windows per micro-batch; the last one of an epoch may be smaller.
        seed: decides the order together with the number of the epoch.

    Raises:
        DataError: ``batch_size`` below 1.

    Book: training
    """

    def __init__(self, windows: Windows, batch_size: int, *, seed: int = 0) -> None:
        self.windows = windows
        self.batch_size = batch_size
        self.seed = seed
        self._n_batches = len(self.epoch(0))

    def __len__(self) -> int:
        """Micro-batches in an epoch."""
        return self._n_batches

    @property
    def fingerprint(self) -> str:
        """A hash of the text, and the numbers that decide how it is cut and shuffled."""
        text = hashlib.sha256(self.windows.ids.numpy().tobytes()).hexdigest()[:16]
        cut = f"{len(self.windows)} windows of {self.windows.length}"
        return f"text {text}, {cut}, batch_size {self.batch_size}, seed {self.seed}"

    def epoch(self, epoch: int) -> list[list[int]]:
        """The micro-batches of an epoch: every window once."""
        return shuffled_batches(len(self.windows), self.batch_size, seed=self.seed, epoch=epoch)

    def load(self, indices: Sequence[int]) -> Batch:
        """Inputs and targets of some windows."""
        return Batch(*self.windows.batch(indices))
