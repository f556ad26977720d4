"""A vocabulary of whole symbols, such as letters or phones, with the tokenizer's special ids.

Book: cross_attention
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glassformer._files import write_whole
from glassformer.errors import TokenizerError

__all__ = ["SymbolVocabulary"]

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class SymbolVocabulary:
    """One id per symbol; 0 to 3 are pad, unk, bos and eos, as in :class:`Tokenizer`.

    No symbol of a text can become a special id: one that is not in the vocabulary, also one that
    is spelt ``</s>``, is unk.

    Args:
        symbols: what ids 4 and up stand for, each once.

    Raises:
        TokenizerError: no symbols, one that occurs twice, or an empty one.

    Book: cross_attention
    """

    symbols: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    pad_id: ClassVar[int] = 0
    """Id of the padding."""
    unk_id: ClassVar[int] = 1
    """Id of every symbol that the vocabulary does not have."""
    bos_id: ClassVar[int] = 2
    """Id that begins a sequence."""
    eos_id: ClassVar[int] = 3
    """Id that ends a sequence."""

    def __post_init__(self) -> None:
        ids = {symbol: number for number, symbol in enumerate(self.symbols, len(SPECIALS))}
        if not ids or len(ids) < len(self.symbols) or "" in ids:
            raise TokenizerError(
                f"{len(self.symbols)} symbols, {len(ids)} of them different; a vocabulary needs "
                "at least one, each once and none empty: SymbolVocabulary.of(sequences) sees to it"
            )
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def of(cls, sequences: Iterable[Iterable[str]]) -> "SymbolVocabulary":
        """The vocabulary of all symbols that occur in some sequences, sorted.

        A string is a sequence of its characters.

        Raises:
            TokenizerError: there are none.
        """
        return cls(tuple(sorted({symbol for sequence in sequences for symbol in sequence})))

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return len(SPECIALS) + len(self.symbols)

    def encode(self, symbols: Iterable[str], *, bos: bool = False, eos: bool = False) -> list[int]:
        """Turn symbols into ids; a string is taken letter by letter."""
        ids = [self._ids.get(symbol, self.unk_id) for symbol in symbols]
        return [self.bos_id] * bos + ids + [self.eos_id] * eos

    def encode_lines(
        self, sequences: Iterable[Iterable[str]], *, bos: bool = False, eos: bool = False
    ) -> list[list[int]]:
        """Encode each sequence on its own."""
        return [self.encode(symbols, bos=bos, eos=eos) for symbols in sequences]

    def decode(self, ids: Iterable[int] | Tensor) -> list[str]:
        """Turn ids into symbols; pad, bos and eos vanish, unk becomes U+FFFD.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        vanish = (self.pad_id, self.bos_id, self.eos_id)
        names = (UNKNOWN,) * len(SPECIALS) + self.symbols
        return [names[i] for i in self._checked(ids) if i not in vanish]

    def pieces(self, ids: Iterable[int] | Tensor) -> list[str]:
        """One printable piece per id, for pictures.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        names = SPECIALS + self.symbols
        return [names[i] for i in self._checked(ids)]

    def _checked(self, ids: Iterable[int] | Tensor) -> list[int]:
        checked = [int(i) for i in ids]
        for i in checked:
            if not 0 <= i < self.vocab_size:
                raise TokenizerError(
                    f"id {i} is outside the vocabulary of {self.vocab_size}; use the vocabulary "
                    "that the ids came from"
                )
        return checked

    def save(self, path: str | Path) -> None:
        """Write a JSON file; an interrupted write leaves an earlier file as it was."""
        text = json.dumps({"symbols": self.symbols}, ensure_ascii=False)
        write_whole(Path(path), text.encode("utf-8"))

    @classmethod
    def load(cls, path: str | Path) -> "SymbolVocabulary":
        """Read what :meth:`save` wrote.

        Raises:
            TokenizerError: the file is missing or no vocabulary; it is named.
        """
        try:
            symbols = json.loads(Path(path).read_bytes())["symbols"]
            if not (isinstance(symbols, list) and all(isinstance(s, str) for s in symbols)):
                raise TypeError("symbols are no list of strings")
            return cls(tuple(symbols))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise TokenizerError(f"{path}: cannot be read ({reason}); check the path") from error
        except (ValueError, KeyError, TypeError) as error:
            raise TokenizerError(
                f"{path}: is no vocabulary ({error}); write one with SymbolVocabulary.save"
            ) from error
