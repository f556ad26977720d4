"""Cut one long list of token ids into overlapping windows, and account for every token.

Book: training
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from glassformer.errors import DataError

__all__ = ["Window", "Windows", "count_windows", "windows"]


class Window(NamedTuple):
    """One training example: ``targets[t]`` is the token that follows ``inputs[t]``.

    ``n_new`` says how many of the targets, counted from the end, no earlier window has had.

    Book: training
    """

    inputs: Int64[Tensor, " time"]
    targets: Int64[Tensor, " time"]
    n_new: int


def count_windows(n_ids: int, length: int, stride: int) -> int:
    """How many windows cover ``n_ids`` tokens: ``1 + ceil((n_ids - 1 - length) / stride)``.

    The ``n_ids - 1`` is the number of targets: the first token is never predicted. A text that
    fits into one window gives one.

    Raises:
        DataError: fewer than 2 ids, or not ``1 <= stride <= length``.

    Book: training
    """
    if n_ids < 2:
        raise DataError(f"{n_ids} token ids; predicting a next token needs at least 2")
    if length < 1:
        raise DataError(f"length={length} must be at least 1")
    if not 1 <= stride <= length:
        raise DataError(
            f"stride={stride} must be between 1 and length={length}: a larger stride would skip "
            f"tokens; try stride={length}"
        )
    beyond_first = max(0, n_ids - 1 - length)
    return 1 + -(-beyond_first // stride)


class Windows:
    """A sequence of :class:`Window`, made on demand; use :func:`windows` to build one.

    Book: training
    """

    def __init__(self, ids: Int64[Tensor, " n_ids"], length: int, stride: int) -> None:
        count = count_windows(len(ids), length, stride)
        self.ids = ids
        self.length = min(length, len(ids) - 1)
        last_start = len(ids) - 1 - self.length
        self.starts = [min(i * stride, last_start) for i in range(count)]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Window:
        start = self.starts[index]
        chunk = self.ids[start : start + self.length + 1]
        return Window(chunk[:-1], chunk[1:], self.n_new(index))

    def __iter__(self) -> Iterator[Window]:
        return (self[index] for index in range(len(self)))

    def n_new(self, index: int) -> int:
        """How many targets of this window, counted from its end, no earlier window has had."""
        index = range(len(self))[index]
        if index == 0:
            return self.length
        return self.starts[index] - self.starts[index - 1]

    def batch(
        self, indices: Sequence[int]
    ) -> tuple[Int64[Tensor, "batch time"], Int64[Tensor, "batch time"]]:
        """Stack the inputs and the targets of some windows."""
        starts = torch.tensor([self.starts[index] for index in indices], dtype=torch.int64)
        chunks = self.ids[starts[:, None] + torch.arange(self.length + 1)]
        return chunks[:, :-1], chunks[:, 1:]


def windows(ids: Sequence[int] | Tensor, length: int, stride: int) -> Windows:
    """Slide a window of ``length`` inputs over ``ids``, moving ``stride`` tokens each time.

    All windows have ``length`` inputs, so they stack without padding, and nothing is lost: if the
    last step would overshoot, the last window is moved back to end with the text, and overlaps
    the one before by more than ``length - stride``. A text shorter than a window gives one
    shorter window. With ``stride < length`` targets repeat; ``n_new`` tells which are new, and
    evaluation scores only those.

    Raises:
        DataError: fewer than 2 ids, ids that are not a flat list of whole numbers, or not
            ``1 <= stride <= length``.

    Book: training
    """
    tensor = torch.as_tensor(ids)
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if tensor.dim() != 1 or not (whole or tensor.numel() == 0):
        raise DataError(
            f"ids of shape {tuple(tensor.shape)} and {tensor.dtype}; windows need one flat list "
            "of whole numbers, such as tokenizer.encode_stream(lines) gives"
        )
    return Windows(tensor.to(torch.int64), length, stride)
