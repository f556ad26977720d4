"""What a training step eats, and where the loop gets it.

Book: training
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.data import (
    PairExamples,
    TokenBudgetBatches,
    Windows,
    collate_pairs,
    shuffled_batches,
)

__all__ = ["Batch", "PairBatches", "TrainingData", "WindowBatches"]


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


class PairBatches:
    """Pairs of source and target, of similar length together, shuffled anew in every epoch.

    The encoder reads the ids of the source and eos. The decoder reads bos and the ids of the
    target, and is asked for the same ids and eos.

    Args:
        examples: pairs of ids.
        max_tokens: of a micro-batch, both sides and their padding; a longer pair is one alone.
        pad_id: fills the rows.
        bos_id: begins what the decoder reads.
        seed: decides the order together with the number of the epoch.

    Raises:
        DataError: no pairs, an empty side, or ``max_tokens`` below 1.

    Book: translation
    """

    def __init__(
        self, examples: PairExamples, max_tokens: int, *, pad_id: int, bos_id: int, seed: int = 0
    ) -> None:
        self.examples = examples
        self.pad_id = pad_id
        self.bos_id = bos_id
        self._budget = TokenBudgetBatches(examples.lengths, max_tokens, seed=seed)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all pairs, and the numbers that decide how they are batched and shuffled."""
        sides = (self.examples.sources, self.examples.targets)
        pairs = hashlib.sha256(repr(sides).encode()).hexdigest()[:16]
        budget = f"max_tokens {self._budget.max_tokens}, seed {self._budget.seed}"
        return f"pairs {pairs}, {len(self.examples)} of them, bos {self.bos_id}, {budget}"

    def epoch(self, epoch: int) -> list[list[int]]:
        """The micro-batches of an epoch: every pair once."""
        return self._budget.epoch(epoch)

    def load(self, indices: Sequence[int]) -> Batch:
        """Both sides of some pairs, padded on the right."""
        pairs = [self.examples[index] for index in indices]
        batch = collate_pairs(pairs, pad_id=self.pad_id, bos_id=self.bos_id)
        return Batch(
            batch.inputs, batch.targets, batch.target_mask, batch.source, batch.source_mask
        )
