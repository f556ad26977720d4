"""Pairs of token ids: what a sequence-to-sequence model learns from, and how they are batched.

Book: translation
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.data.batches import pad_batch
from glassformer.errors import DataError

__all__ = ["LineEncoder", "PairBatch", "PairExamples", "collate_pairs", "encode_pairs"]

IdPair = tuple[Sequence[int], Sequence[int]]


@runtime_checkable
class LineEncoder(Protocol):
    """What turns texts into ids: a ``Tokenizer`` or a ``SymbolVocabulary``.

    Book: translation
    """

    def encode_lines(self, lines: Iterable[Any], /, *, eos: bool) -> list[list[int]]:
        """The ids of each text, with eos after it if asked."""
        ...


class PairBatch(NamedTuple):
    """One batch of pairs, padded on the right.

    ``inputs`` is what the decoder reads, bos first; ``targets`` is what it must say, eos last:
    ``targets[b, t]`` follows ``inputs[b, t]``. The masks are True where a token is real;
    ``target_mask`` holds for inputs and targets alike.

    Book: translation
    """

    source: Int64[Tensor, "batch source_time"]
    source_mask: Bool[Tensor, "batch source_time"]
    inputs: Int64[Tensor, "batch time"]
    targets: Int64[Tensor, "batch time"]
    target_mask: Bool[Tensor, "batch time"]


@dataclass(frozen=True)
class PairExamples:
    """Encoded pairs in order; a map-style data set, also for torch's ``DataLoader``.

    Both sides end with eos, and none begins with bos (:func:`collate_pairs` adds it).

    Book: translation
    """

    sources: list[list[int]]
    targets: list[list[int]]
    n_too_long: int = 0
    """Pairs left out because a side is longer than the limit."""

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """The lengths of both sides of every pair: what :class:`TokenBudgetBatches` takes."""
        return [(len(s), len(t)) for s, t in zip(self.sources, self.targets, strict=True)]

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[list[int], list[int]]:
        return self.sources[index], self.targets[index]


def encode_pairs(
    pairs: Iterable[tuple[Any, Any]],
    source_encoder: LineEncoder,
    target_encoder: LineEncoder | None = None,
    *,
    max_len: int | None = None,
) -> PairExamples:
    """Turn pairs of texts into pairs of ids, with eos at the end of both sides.

    A pair with a side of more than ``max_len`` ids, eos included, is left out and counted. It is
    never cut: a model that sees cut targets learns to stop anywhere, or not to stop at all. So
    evaluation, which must leave nothing out, sets no limit.

    Args:
        pairs: (source, target), as in a part of a ``ParallelCorpus``.
        source_encoder: a ``Tokenizer`` or a ``SymbolVocabulary``.
        target_encoder: the one of the target; by default the same.
        max_len: the longest side that is kept; ``None`` keeps all.

    Raises:
        DataError: no pairs, or none that is short enough.
        TokenizerError: a text that cannot be encoded.

    Book: translation
    """
    texts = list(pairs)
    sources = source_encoder.encode_lines([source for source, _ in texts], eos=True)
    targets = (target_encoder or source_encoder).encode_lines(
        [target for _, target in texts], eos=True
    )
    kept = [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if max_len is None or max(len(source), len(target)) <= max_len
    ]
    if not kept:
        raise DataError(
            f"{len(texts)} pairs, of which none has at most max_len={max_len} ids on both sides; "
            "give more pairs or a larger max_len"
        )
    kept_sources, kept_targets = map(list, zip(*kept, strict=True))
    return PairExamples(kept_sources, kept_targets, len(texts) - len(kept))


def collate_pairs(pairs: Sequence[IdPair], *, pad_id: int, bos_id: int) -> PairBatch:
    """Pad pairs of ids, both ending with eos, into one :class:`PairBatch`.

    The masks come from the lengths, so an unknown token, or one that has the id of the padding,
    is seen and counted like any other. For a ``DataLoader`` with workers, bind the ids with
    ``functools.partial``, which pickles.

    Raises:
        DataError: no pairs, or an empty side.

    Book: translation
    """
    source, source_mask = pad_batch([source for source, _ in pairs], pad_id)
    targets, target_mask = pad_batch([target for _, target in pairs], pad_id)
    inputs, _ = pad_batch([[bos_id, *target[:-1]] for _, target in pairs], pad_id)
    return PairBatch(source, source_mask, inputs, targets, target_mask)
