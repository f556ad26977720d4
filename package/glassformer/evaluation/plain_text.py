"""Back from pieces and tokens to text as people write it, which is what a score is made for.

Book: training
"""

import html
import re
from collections.abc import Sequence
from typing import Any

from glassformer.errors import DataError

__all__ = ["detokenize", "join_pieces"]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_PIECE = re.compile(rf"{_SPACE}|@@(?= |$)|(?:^| )##\w")
_MARK = re.compile(r"(?<=\w)( ?)[.,](?= |$)")  # a row of dots says nothing of blanks
_OF_TOKENIZERS = re.compile(r"@-@|&(?:apos|quot|amp|#91|#93|#124);")


def join_pieces(text: str) -> str:
    """Text from subword pieces with blanks between them: sentencepiece, BPE (``@@``), WordPiece.

    ``"▁So it ▁is"``, ``"So@@ it is"`` and ``"So ##it is"`` begin with the same word, ``Soit``.

    Book: training
    """
    if _SPACE in text:
        return text.replace(" ", "").replace(_SPACE, " ").strip()
    return re.sub(r"@@( |$)| ##", "", text)


def detokenize(text: str) -> str:
    """Text from tokens with blanks between them, by the rules of English and German.

    Closing marks and ``n't`` go to the word before, opening brackets to the word after, straight
    quotes around what they quote; ``@-@`` and ``&apos;`` of the Moses tokenizer are undone.

    Book: training
    """
    text = re.sub(r" ?@-@ ?", "-", html.unescape(text))
    text = re.sub(
        r' "( [^"]*)? "(?= |$)', lambda quote: f' "{(quote[1] or "").strip()}"', f" {text}"
    )
    text = re.sub(r" (n't\b|'(?:s|m|d|re|ve|ll)\b)", r"\1", text, flags=re.IGNORECASE)
    text = re.sub(r" +([.,;:!?%)\]}…])", r"\1", text)
    return re.sub(r"([(\[{]) +", r"\1", text).strip()


def refuse_what_is_no_text(name: str, lines: Sequence[Any]) -> None:
    """Pieces and tokenised text would get a score, and it would be that of no translation.

    Raises:
        DataError: an item is no string, holds a tokenizer's marks, or most full stops and commas
            have a blank before them.

    Book: training
    """
    for index, line in enumerate(lines):
        if not isinstance(line, str):
            raise DataError(f"{name}: item {index} is {line!r} and no string; give text")
        found = _PIECE.search(line) or _OF_TOKENIZERS.search(line)
        if found:
            raise DataError(
                f"{name}: item {index} has {found[0].strip()!r} of a tokenizer, in {line[:50]!r}; "
                "score plain text: decode the ids, or use join_pieces or detokenize"
            )
    marks = [mark[1] == " " for line in lines for mark in _MARK.finditer(line)]
    if 2 * sum(marks) > len(marks):
        raise DataError(
            f"{name}: {sum(marks)} of {len(marks)} full stops and commas have a blank before them, "
            "so this is tokenised; score plain text: use detokenize"
        )
