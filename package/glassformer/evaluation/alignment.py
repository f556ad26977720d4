"""Which source word does each target word come from? Attention against gold alignments.

A link is a pair (source word, target word), both counted from 0.

Book: cross_attention
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import DataError

__all__ = ["AlignmentScore", "align", "alignment_score", "word_attention", "word_indices"]

Link = tuple[int, int]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_CONTROL = ("<pad>", "<s>", "</s>")


@dataclass(frozen=True)
class AlignmentScore:
    """Counts over all sentences; the rates are taken once, from the totals.

    Book: cross_attention
    """

    n_predicted: int
    n_sure: int
    hits_sure: int
    """Predicted links that are sure."""
    hits_possible: int
    """Predicted links that are possible; sure ones are."""

    @property
    def precision(self) -> float:
        """Share of the predicted links that are possible: the accuracy of one link per word."""
        return self.hits_possible / self.n_predicted if self.n_predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the sure links that were predicted."""
        return self.hits_sure / self.n_sure if self.n_sure else 0.0

    @property
    def aer(self) -> float:
        """Alignment error rate: 0 is perfect, 1 has nothing right."""
        total = self.n_predicted + self.n_sure
        return 1 - (self.hits_sure + self.hits_possible) / total if total else 0.0


def alignment_score(
    predicted: Sequence[AbstractSet[Link]],
    sure: Sequence[AbstractSet[Link]],
    possible: Sequence[AbstractSet[Link]] | None = None,
) -> AlignmentScore:
    """Compare the links of each sentence with those that people drew.

    Args:
        predicted: links of each sentence.
        sure: links that must be there.
        possible: links that may be there; sure ones may, whether they are listed or not.

    Raises:
        DataError: numbers of sentences that differ, or no sentences.

    Source: Och & Ney 2003, section 5. Book: cross_attention
    """
    allowed = sure if possible is None else possible
    if not len(predicted) == len(sure) == len(allowed):
        raise DataError(
            f"links of {len(predicted)} sentences, sure ones of {len(sure)} and possible ones of "
            f"{len(allowed)}; each sentence needs all, so keep an empty set where there are none"
        )
    if not predicted:
        raise DataError("no sentences, so there is nothing to score; give at least one")
    rows = list(zip(predicted, sure, allowed, strict=True))
    return AlignmentScore(
        n_predicted=sum(len(links) for links, _, _ in rows),
        n_sure=sum(len(gold) for _, gold, _ in rows),
        hits_sure=sum(len(links & gold) for links, gold, _ in rows),
        hits_possible=sum(len(links & (gold | may)) for links, gold, may in rows),
    )


def align(weights: Float[Tensor, "target source"]) -> set[Link]:
    """Link each target position to the source position that it attends to most.

    Args:
        weights: attention of one sentence without padding, of one head or a mean over several; a
            row that attends to nothing gets no link.

    Raises:
        DataError: there are no source positions.

    Book: cross_attention
    """
    if weights.shape[1] == 0:
        raise DataError(f"weights of shape {tuple(weights.shape)} have no source to point to")
    nearest = weights.argmax(dim=1).tolist()
    attends = (weights > 0).any(dim=1).tolist()
    return {(source, t) for t, source in enumerate(nearest) if attends[t]}


def word_indices(pieces: Sequence[str]) -> list[int | None]:
    """The word of each sentencepiece piece: ``["▁So", "it", "▁is", "</s>"]`` gives 0, 0, 1, None.

    Words are what ``str.split`` makes of the text: the first piece begins one, and so does each
    that starts with ``▁``. Control pieces, and blanks that no word follows, belong to none.

    Book: cross_attention
    """
    indices: list[int | None] = []
    words, inside = 0, False
    for index, piece in enumerate(pieces):
        following = pieces[index + 1 : index + 2]
        blank = not piece.strip(_SPACE)
        if piece in _CONTROL or (blank and (not following or _begins(following[0]))):
            indices.append(None)
            inside = False
            continue
        if not inside or piece.startswith(_SPACE):
            words, inside = words + 1, True
        indices.append(words - 1)
    return indices


def word_attention(
    weights: Float[Tensor, "target source"],
    target_words: Sequence[int | None],
    source_words: Sequence[int | None],
) -> Float[Tensor, "target_words source_words"]:
    """Attention between words from attention between their pieces.

    A word is attended to as much as its pieces together, and attends as its pieces do on average.

    Args:
        weights: attention of one sentence.
        target_words, source_words: the word of each piece, as :func:`word_indices` gives them;
            pieces of no word are left out. A word whose pieces were all left out attends to
            nothing and gets nothing.

    Raises:
        DataError: not one word index for each position.

    Source: Clark et al. 2019, section 4.1. Book: cross_attention
    """
    if weights.shape != (len(target_words), len(source_words)):
        raise DataError(
            f"weights of shape {tuple(weights.shape)} for {len(target_words)} target and "
            f"{len(source_words)} source pieces; give one word index for each position"
        )
    target, source = (_members(words, weights) for words in (target_words, source_words))
    return (target / target.sum(dim=1, keepdim=True).clamp(min=1)) @ weights @ source.T


def _members(
    words: Sequence[int | None], like: Float[Tensor, "target source"]
) -> Float[Tensor, "words pieces"]:
    """1 where a piece is part of a word."""
    n_words = max((word for word in words if word is not None), default=-1) + 1
    numbers = torch.tensor([-1 if word is None else word for word in words], device=like.device)
    return (numbers == torch.arange(n_words, device=like.device)[:, None]).to(like.dtype)


def _begins(piece: str) -> bool:
    return piece.startswith(_SPACE) or piece in _CONTROL
