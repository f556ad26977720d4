"""Metrics of sacreBLEU, and the checks that stand before them.

Book: translation
"""

import re
from collections.abc import Sequence
from typing import Any

from glassformer.errors import ConfigError, DataError, did_you_mean, optional

__all__ = ["References", "checked", "make_metric"]

References = Sequence[str] | Sequence[Sequence[str]]

_NO_BLANKS = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")  # kana, han
_NEEDS_BLANKS = ("13a", "intl", "none")
_PIECE = re.compile("\N{LOWER ONE EIGHTH BLOCK}|" r"@@(?= |$)|(?:^| )##\w")
_MARK = re.compile(r"(?<=\w)( ?)[.,](?= |$)")  # a row of dots says nothing of blanks
_OF_TOKENIZERS = re.compile(r"@-@|&(?:apos|quot|amp|#91|#93|#124);")


def make_metric(name: str, tokenize: str = "13a", *, word_order: int = 0) -> Any:
    """A metric of sacreBLEU: ``bleu`` or ``chrf``.

    Raises:
        ConfigError: there is no such metric or tokenizer, or it needs a package.

    Book: translation
    """
    with optional("BLEU and chrF need sacrebleu", '"glassformer[data]"'):
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    if name == "chrf":
        return CHRF(word_order=word_order)
    if name != "bleu":
        raise ConfigError(f'metric={name!r} may be "bleu" or "chrf"')
    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(
            f"tokenize={tokenize!r} is no tokenizer of sacreBLEU; "
            f"{did_you_mean(tokenize, BLEU.TOKENIZERS)}"
        )
    try:
        return BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"tokenize={tokenize!r} needs a package that is not installed; install it "
            '(`pip install "sacrebleu[ja]"` or `[ko]`), or give tokenize="char"'
        ) from error


def checked(
    metric: Any, hypotheses: Sequence[str], references: References
) -> tuple[list[str], list[list[str]]]:
    """Hypotheses, and the sets of references, once they fit each other and the metric.

    Raises:
        DataError: they do not.

    Book: translation
    """
    lines, sets = list(hypotheses), _reference_sets(references)
    if isinstance(hypotheses, str):
        raise DataError("hypotheses is one string, where a list is needed; give [text]")
    for number, one in enumerate(sets):
        if len(one) != len(lines):
            which = "references" if len(sets) == 1 else f"references in set {number}"
            raise DataError(
                f"{len(lines)} hypotheses and {len(one)} {which}; each needs its partner, so keep "
                "an empty string where there is no translation"
            )
    if not lines:
        raise DataError("no hypotheses, so there is nothing to score; give at least one")
    refuse_what_is_no_text("hypotheses", lines)
    for one in sets:
        refuse_what_is_no_text("references", one)
    tokenizer = getattr(metric, "tokenizer_signature", None)
    blankless = sum(map(_is_blankless, sets[0]))
    if tokenizer in _NEEDS_BLANKS and 2 * blankless > len(lines):
        raise DataError(
            f"{blankless} of {len(lines)} references are written without blanks, so "
            f"tokenize={tokenizer!r} would take a clause for a word; give the tokenizer of the "
            'language, such as tokenize="zh" (bleu_tokenizer names it)'
        )
    return lines, sets


def _is_blankless(line: str) -> bool:
    """Whether at least half of what can be seen is of a script without blanks."""
    return 2 * len(_NO_BLANKS.findall(line)) >= len("".join(line.split())) > 0


def _reference_sets(references: References) -> list[list[str]]:
    """One flat list is one set, and not many sets of letters."""
    if isinstance(references, str):
        raise DataError("references is one string, where a list is needed; give [text]")
    given: list[Any] = list(references)
    flat = [isinstance(reference, str) for reference in given]
    if all(flat):
        return [given]
    if any(flat):
        raise DataError(
            "references mix strings and lists; give one list of strings, or a list of such lists"
        )
    return [list(one) for one in given]


def refuse_what_is_no_text(name: str, lines: Sequence[Any]) -> None:
    """Pieces and tokenised text would get a score, and it would be that of no translation.

    Raises:
        DataError: an item is no string, holds a tokenizer's marks, or most full stops and commas
            have a blank before them.

    Book: translation
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
