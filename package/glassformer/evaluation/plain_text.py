"""Back from pieces and tokens to text as people write it, which is what a score is made for.

Book: translation
"""

import html
import re

__all__ = ["detokenize", "join_pieces"]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def join_pieces(text: str) -> str:
    """Text from subword pieces with blanks between them: sentencepiece, BPE (``@@``), WordPiece.

    ``"▁So it ▁is"``, ``"So@@ it is"`` and ``"So ##it is"`` begin with the same word, ``Soit``.

    Book: translation
    """
    if _SPACE in text:
        return text.replace(" ", "").replace(_SPACE, " ").strip()
    return re.sub(r"@@( |$)| ##", "", text)


def detokenize(text: str) -> str:
    """Text from tokens with blanks between them, by the rules of English and German.

    Closing marks and ``n't`` go to the word before, opening brackets to the word after, straight
    quotes around what they quote; ``@-@`` and ``&apos;`` of the Moses tokenizer are undone.

    Book: translation
    """
    text = re.sub(r" ?@-@ ?", "-", html.unescape(text))
    text = re.sub(
        r' "( [^"]*)? "(?= |$)', lambda quote: f' "{(quote[1] or "").strip()}"', f" {text}"
    )
    text = re.sub(r" (n't\b|'(?:s|m|d|re|ve|ll)\b)", r"\1", text, flags=re.IGNORECASE)
    text = re.sub(r" +([.,;:!?%)\]}…])", r"\1", text)
    return re.sub(r"([(\[{]) +", r"\1", text).strip()
