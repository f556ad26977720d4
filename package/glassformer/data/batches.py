"""Group examples into batches: the same for the same seed and epoch, every example once.

Book: training
"""

import random
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.errors import DataError

__all__ = ["TokenBudgetBatches", "pad_batch", "shuffled_batches"]


def _generator(seed: int, epoch: int) -> random.Random:
    return random.Random(f"seed {seed}, epoch {epoch}")


def shuffled_batches(n_items: int, batch_size: int, *, seed: int, epoch: int) -> list[list[int]]:
    """Shuffle ``range(n_items)`` and cut it into batches; the last one may be smaller.

    The order depends on seed and epoch alone. To resume after ``k`` batches, take ``[k:]``.

    Raises:
        DataError: ``n_items`` or ``batch_size`` below 1.

    Book: training
    """
    if n_items < 1 or batch_size < 1:
        raise DataError(f"n_items={n_items} and batch_size={batch_size} must both be at least 1")
    order = list(range(n_items))
    _generator(seed, epoch).shuffle(order)
    return [order[first : first + batch_size] for first in range(0, n_items, batch_size)]


class TokenBudgetBatches:
    """Batches of examples of similar length whose padded size stays within ``max_tokens``.

    A batch costs ``longest length x number of examples``, padding included. The length of a pair
    is a tuple ``(source, target)``, and its batch costs ``(longest source + longest target) x
    number of pairs``. Which examples share a batch depends on the seed and the epoch alone.

    An example longer than the whole budget becomes a batch of its own, in training and in
    evaluation alike, so nothing is ever dropped; ``n_oversized`` counts them.

    Args:
        lengths: the length of every example, or of both sides of every pair.
        max_tokens: the most that a batch of more than one example may cost.
        seed: decides the order together with the number of the epoch.

    Raises:
        DataError: no lengths, a length below 1, or ``max_tokens`` below 1.

    Book: translation
    """

    def __init__(
        self,
        lengths: Sequence[int] | Sequence[tuple[int, int]],
        max_tokens: int,
        *,
        seed: int = 0,
    ) -> None:
        if not lengths or max_tokens < 1:
            raise DataError(
                f"{len(lengths)} lengths and max_tokens={max_tokens}; both must be at least 1"
            )
        self.lengths = list(lengths)
        self._sides = [(size,) if isinstance(size, int) else tuple(size) for size in lengths]
        shortest = min(range(len(lengths)), key=lambda index: min(self._sides[index]))
        if min(self._sides[shortest]) < 1:
            raise DataError(
                f"length {lengths[shortest]} at index {shortest}; drop empty examples first"
            )
        self.max_tokens = max_tokens
        self.seed = seed
        self.n_oversized = sum(sum(sides) > max_tokens for sides in self._sides)

    def epoch(self, epoch: int) -> list[list[int]]:
        """The batches of one epoch, in order. To resume after ``k`` batches, take ``[k:]``."""
        generator = _generator(self.seed, epoch)
        order = list(range(len(self._sides)))
        generator.shuffle(order)
        order.sort(key=self._likeness)  # stable: equal lengths stay shuffled
        batches: list[list[int]] = [[]]
        longest: tuple[int, ...] = self._sides[order[0]]
        for index in order:
            sides = self._sides[index]
            longest = tuple(map(max, longest, sides))
            if batches[-1] and sum(longest) * (len(batches[-1]) + 1) > self.max_tokens:
                batches.append([])
                longest = sides
            batches[-1].append(index)
        generator.shuffle(batches)
        return batches

    def _likeness(self, index: int) -> tuple[int, ...]:
        """What neighbours share: the longer side, then the target's length, then the source's."""
        sides = self._sides[index]
        return (max(sides), *reversed(sides))

    def __len__(self) -> int:
        """Number of batches in an epoch, the same for all epochs."""
        return len(self.epoch(0))


def pad_batch(
    sequences: Sequence[Sequence[int]], pad_id: int, *, left: bool = False
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """Pad lists of ids to the longest; the mask is True where a token is real.

    The mask comes from the lengths, never from comparing ids with ``pad_id``, so a real token
    that happens to have that id stays visible. Training pads on the right, generation on the
    left (``left=True``), so that all rows end at the same column.

    Raises:
        DataError: no sequences, or an empty one.

    Book: translation
    """
    lengths = [len(sequence) for sequence in sequences]
    if not lengths or min(lengths) < 1:
        raise DataError(f"sequences of lengths {lengths}; need at least one, and none empty")
    longest = max(lengths)
    rows = []
    for sequence, length in zip(sequences, lengths, strict=True):
        padding = [pad_id] * (longest - length)
        rows.append([*padding, *sequence] if left else [*sequence, *padding])
    # column numbers, counted from the side where the real tokens stand
    columns = torch.arange(longest).flip(0) if left else torch.arange(longest)
    token_mask = columns < torch.tensor(lengths)[:, None]
    return torch.tensor(rows, dtype=torch.int64), token_mask
