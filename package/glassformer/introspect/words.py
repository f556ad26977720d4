"""Cross-attention between words, where models see pieces of words.

Book: cross_attention
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.data import Tokenizer
from glassformer.evaluation import device_of, evaluating, word_attention, word_indices
from glassformer.introspect.attention import capture_attention
from glassformer.models import EncoderDecoder

__all__ = ["WordMaps", "word_maps"]

_BYTE = re.compile("<0x[0-9A-F]{2}>")


class WordMaps(NamedTuple):
    """Cross-attention of one pair of sentences, from word to word, in two readings.

    Both map the names of the attentions, as :func:`capture_attention` gives them, to weights of
    shape (heads, target words, source words).

    Book: cross_attention
    """

    writes: dict[str, Float[Tensor, "n_heads target_words source_words"]]
    """Rows of the queries that are about to write a word."""
    reads: dict[str, Float[Tensor, "n_heads target_words source_words"]]
    """Rows of the queries that have just read it."""


def word_maps(model: EncoderDecoder, tokenizer: Tokenizer, source: str, target: str) -> WordMaps:
    """What a translator looks at while it reads a given translation.

    Words are what ``str.split`` makes of the texts, both counted from 0. Pieces without a letter
    or a digit belong to no word, so a full stop does not speak for the word before it. Feed a map,
    or a mean over heads, to :func:`glassformer.evaluation.align` for links.

    Args:
        model: the translator; it computes as in evaluation.
        tokenizer: that of the model.
        source, target: one sentence in both languages.

    Source: Clark et al. 2019, section 4.1 for words from pieces; Chen et al. 2020, section 3 for
    the two readings. Book: cross_attention
    """
    read = tokenizer.encode(source, eos=True)
    written = tokenizer.encode(target, bos=True)
    device = device_of(model)
    with evaluating(model), capture_attention(model) as maps:
        model(torch.tensor([read], device=device), torch.tensor([written], device=device))
    of_source, of_target = (_words(tokenizer.pieces(ids)) for ids in (read, written[1:]))

    def by_word(rows: slice) -> dict[str, Tensor]:
        cross = {name: map_[0, :, rows] for name, map_ in maps.items() if "cross_attn" in name}
        return {
            name: torch.stack([word_attention(head, of_target, of_source) for head in heads])
            for name, heads in cross.items()
            if len(heads)  # pruning may have taken them all
        }

    return WordMaps(writes=by_word(slice(-1)), reads=by_word(slice(1, None)))


def _words(pieces: Sequence[str]) -> list[int | None]:
    return [
        word if any(map(str.isalnum, text)) else None
        for word, text in zip(word_indices(pieces), _texts(pieces), strict=True)
    ]


def _texts(pieces: Sequence[str]) -> Iterator[str]:
    """What each piece spells; bytes such as ``<0xE2>`` what those in a row spell together."""
    for are_bytes, group in groupby(pieces, lambda piece: bool(_BYTE.fullmatch(piece))):
        row = list(group)
        if are_bytes:
            row = [bytes(int(byte[1:-1], 16) for byte in row).decode(errors="replace")] * len(row)
        yield from row
