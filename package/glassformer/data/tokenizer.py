"""Train, save and use a subword tokenizer (sentencepiece) whose round trip is exact.

Source: Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer
and detokenizer for Neural Text Processing", EMNLP 2018.

Book: training
"""

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from glassformer._files import write_whole
from glassformer.errors import TokenizerError, optional

__all__ = ["Tokenizer", "extend_tokenizer", "train_tokenizer"]

SPECIAL_IDS = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}


def _sentencepiece() -> Any:
    with optional("tokenizers need sentencepiece", '"glassformer[data]"', TokenizerError):
        import sentencepiece
    return sentencepiece


class Tokenizer:
    """A sentencepiece model with the four special ids pad, unk, bos and eos all present.

    ``decode(encode(text)) == text`` for every text if the model was trained by
    :func:`train_tokenizer` with byte fallback, with one exception: U+2581 (``▁``), the sign
    sentencepiece writes for a space, comes back as a space.

    Args:
        model: the bytes of a sentencepiece ``.model`` file.

    Raises:
        TokenizerError: the bytes are no sentencepiece model, or a special id is missing (such a
            model reports -1, which an embedding would silently read as its last row).

    Book: training
    """

    def __init__(self, model: bytes) -> None:
        try:
            if not model:
                raise RuntimeError("no bytes")
            self._processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(
                f"{len(model)} bytes are no sentencepiece model; train one with train_tokenizer "
                "or copy the .model file again"
            ) from error
        self._model = model
        ids = {name: getattr(self, name) for name in SPECIAL_IDS}
        if min(ids.values()) < 0 or len(set(ids.values())) < len(ids):
            raise TokenizerError(
                f"special ids {ids}: pad, unk, bos and eos must all exist (-1 means missing) and "
                "differ; train the model with train_tokenizer, which sets all four"
            )

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a ``.model`` file.

        Raises:
            TokenizerError: the file is missing, damaged or lacks a special id; it is named.
        """
        try:
            return cls(Path(path).read_bytes())
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise TokenizerError(f"{path}: cannot be read ({reason}); check the path") from error
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the ``.model`` file; an interrupted write leaves an earlier file as it was."""
        write_whole(Path(path), self._model)

    def to_bytes(self) -> bytes:
        """The bytes of the ``.model`` file; ``Tokenizer(bytes)`` is the way back."""
        return self._model

    @property
    def vocab_size(self) -> int:
        """Number of pieces, special ones included."""
        return int(self._processor.vocab_size())

    @property
    def pad_id(self) -> int:
        """Id of the padding piece."""
        return int(self._processor.pad_id())

    @property
    def unk_id(self) -> int:
        """Id for what the vocabulary cannot write; never used with byte fallback."""
        return int(self._processor.unk_id())

    @property
    def bos_id(self) -> int:
        """Id of the piece that begins a sequence."""
        return int(self._processor.bos_id())

    @property
    def eos_id(self) -> int:
        """Id of the piece that ends a sequence."""
        return int(self._processor.eos_id())

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Turn text into ids; ``</s>`` written in the text is spelt out, never the eos id.

        Raises:
            TokenizerError: the text cannot be written as UTF-8 (a lone surrogate).
        """
        ids: list[int] = self._processor.encode(_checked_text(text))
        return [self.bos_id] * bos + ids + [self.eos_id] * eos

    def encode_lines(
        self, lines: Iterable[str], *, bos: bool = False, eos: bool = False
    ) -> list[list[int]]:
        """Encode each line on its own, on all cores; :meth:`encode` gives the same.

        Raises:
            TokenizerError: a line cannot be written as UTF-8 (a lone surrogate).
        """
        first, last = [self.bos_id] * bos, [self.eos_id] * eos
        encoded = self._processor.encode([_checked_text(line) for line in lines])
        return [first + ids + last for ids in encoded]

    def encode_stream(self, lines: Iterable[str]) -> list[int]:
        """Encode lines into one long list with eos after each: what ``windows`` cuts up.

        Decoding it gives the lines with a space between them.
        """
        return [token for ids in self.encode_lines(lines, eos=True) for token in ids]

    def decode(self, ids: Iterable[int] | Tensor) -> str:
        """Turn ids into text; pad, bos and eos vanish.

        The space in front of the first word is dropped, so decode a prompt and its continuation
        together, not one after the other.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        text: str = self._processor.decode(self._checked(ids))
        return text

    def pieces(self, ids: Iterable[int] | Tensor) -> list[str]:
        """One printable piece per id, for pictures; ``▁`` stands for a space.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        return [self._processor.id_to_piece(i) for i in self._checked(ids)]

    def _checked(self, ids: Iterable[int] | Tensor) -> list[int]:
        checked = [int(i) for i in ids]
        for i in checked:
            if not 0 <= i < self.vocab_size:
                raise TokenizerError(
                    f"id {i} is outside the vocabulary of {self.vocab_size}; use the tokenizer "
                    "that the ids came from"
                )
        return checked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self._model == other._model

    def __hash__(self) -> int:
        return hash(self._model)

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[bytes]]:
        return Tokenizer, (self._model,)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size})"


def train_tokenizer(
    lines: Iterable[str],
    vocab_size: int,
    *,
    model_type: Literal["unigram", "bpe"] = "unigram",
    byte_fallback: bool = True,
) -> Tokenizer:
    """Train a tokenizer on lines of text: same lines, same bytes, no files left behind.

    Every character of the text gets a piece (coverage 1.0; the default of sentencepiece drops
    the rarest), no line is skipped for its length, and the text is taken as it is: no case,
    Unicode or space is changed. With ``byte_fallback`` 256 of the pieces are single bytes that
    spell whatever else may come; without it, other characters become ``unk``.

    Raises:
        TokenizerError: no text, or a ``vocab_size`` that the text cannot fill or that cannot
            hold its characters; the message states the largest or smallest that works.

    Book: training
    """
    if isinstance(lines, str):
        raise TokenizerError("lines is one string; give a list of lines, such as [text]")
    if model_type not in ("unigram", "bpe"):
        raise TokenizerError(f'model_type={model_type!r} must be "unigram" or "bpe"')
    sentences: Sequence[str] = [_checked_text(line) for line in lines if line]
    if not sentences:
        raise TokenizerError("no text to train on; give at least one line that is not empty")
    model = io.BytesIO()
    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=2**30,
            unk_surface="\N{REPLACEMENT CHARACTER}",
            num_threads=1,
            minloglevel=2,
            **SPECIAL_IDS,
        )
    except RuntimeError as error:
        raise TokenizerError(_explain(vocab_size, error)) from error
    tokenizer = Tokenizer(model.getvalue())
    if any(getattr(tokenizer, name) != i for name, i in SPECIAL_IDS.items()):
        raise TokenizerError(f"sentencepiece did not keep the special ids {SPECIAL_IDS}")
    return tokenizer


def extend_tokenizer(tokenizer: Tokenizer, pieces: Sequence[str]) -> Tokenizer:
    """A tokenizer that never cuts these pieces; the ids of all others stay what they are.

    A sentencepiece file is a list of pieces, so new ones are added by writing them behind it. They
    get the next ids, in the order given, and match wherever they stand, inside words too. The
    model's embedding needs rows for them: :func:`glassformer.models.extend_embeddings`.

    Raises:
        TokenizerError: no piece, an empty one, one with a space, or one that is known already.

    Book: adaptation
    """
    known = {tokenizer._processor.id_to_piece(i) for i in range(tokenizer.vocab_size)}
    added = b""
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        if not piece or piece in known or any(c.isspace() or c == "\u2581" for c in piece):
            raise TokenizerError(
                f"piece {piece!r} is empty, has a space or is in the vocabulary already; give "
                "whole new pieces such as '<tool_call>'"
            )
        known.add(piece)
        text = _checked_text(piece).encode()
        # field 1 the piece, field 2 its score (0.0), field 3 its kind (4: defined by the user)
        entry = b"\x0a" + _varint(len(text)) + text + b"\x15" + bytes(4) + b"\x18\x04"
        added += b"\x0a" + _varint(len(entry)) + entry
    if not added:
        raise TokenizerError("pieces is empty; give at least one, such as ['<tool_call>']")
    return Tokenizer(tokenizer.to_bytes() + added)


def _varint(number: int) -> bytes:
    """A length as protocol buffers write it: seven bits a byte, the lowest first."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _checked_text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"character {text[error.start]!r} at position {error.start} is half of a surrogate "
            "pair and no text; read the source with its right encoding"
        ) from error
    return text


def _explain(vocab_size: int, error: Exception) -> str:
    """Turn the trainer's message into what was given, the rule and the remedy."""
    if limit := re.search(r"too high .*<= (\d+)", str(error)):
        return (
            f"vocab_size={vocab_size} is more than this text can fill, at most {limit[1]}; "
            f"use vocab_size={limit[1]} or less, or more text"
        )
    if limit := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
        return (
            f"vocab_size={vocab_size} cannot hold the characters of this text, at least "
            f"{limit[1]}; use vocab_size={limit[1]} or more"
        )
    return f"sentencepiece cannot train with vocab_size={vocab_size} on this text: {error}"
