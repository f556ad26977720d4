"""Tatoeba: short everyday sentences and their translations, by volunteers.

Source: the Tatoeba project (tatoeba.org), selected by manythings.org/anki; CC BY 2.0 France.

Book: translation
"""

import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

from glassformer.data._lines import Pair, parse_tsv, read_bytes
from glassformer.data._splits import Split, split_by_md5
from glassformer.data.download import RemoteFile, fetch
from glassformer.data.pairs import ParallelCorpus, split_pairs
from glassformer.errors import DataError

__all__ = ["load_tatoeba"]

LICENCE = "CC BY 2.0 France (https://creativecommons.org/licenses/by/2.0/fr/)"


class _Edition(NamedTuple):
    """One edition of one language pair, the one whose checksum and figures we know.

    Book: translation
    """

    file: RemoteFile
    inside: str | None
    attribution: str


EDITIONS = {
    "deu-eng": _Edition(
        RemoteFile(
            "tatoeba-deu-eng",
            "deu-eng.zip",
            "https://raw.githubusercontent.com/jhamburg/dats6450_nlp/"
            "fc38d83c4353d753fb9b34d98e945cbc5fab2811/deu-eng.zip",
            "71750f704aeb6b0a01fe57341c3051b9efd98f63b61ee266b2c2283d1b80cb71",
        ),
        "deu.txt",
        "German-English sentence pairs of the Tatoeba project, selected by manythings.org, edition "
        f"of 2018-04-07, {LICENCE}. Attribution: www.manythings.org/anki and tatoeba.org. "
        "Changed here: split into parts.",
    ),
    "cmn-eng": _Edition(
        RemoteFile(
            "tatoeba-cmn-eng",
            "cmn.txt",
            "https://raw.githubusercontent.com/ekinakyurek/lexical/"
            "3956fa2a2dd976d99a94e8ad9ed8d3a6f65a5c78/TRANSLATE/cmn.txt",
            "6d9734ce952db2b694ac8a6abae52b445f8dbc6a599959b0971a2bc74eec1918",
        ),
        None,
        "Chinese-English sentence pairs of the Tatoeba project, selected by manythings.org, "
        f"{LICENCE}. Attribution: www.manythings.org/anki and tatoeba.org; the third column of "
        "the file names the authors of every sentence. Changed here: split into parts.",
    ),
}


def load_tatoeba(
    pair: Literal["deu-eng", "cmn-eng"],
    *,
    source: Literal["deu", "cmn", "eng"] | None = None,
    download: bool = False,
) -> ParallelCorpus:
    """German-English (169,197) or Chinese-English (24,026) sentence pairs, split into parts.

    The part goes by the MD5 of the English sentence, so that all translations of a sentence stay
    together, in either direction the same: ``hash % 1000`` below 20 is test, below 30 dev. That
    gives 164,300 / 1,658 / 3,239 pairs for German and 23,350 / 228 / 448 for Chinese. If English
    is the target, some of these have a source that another part also has, with another English
    sentence (694 for German, 113 for Chinese): they are left out of the lower part.

    This is one fixed edition, so that scores compare. A newer file of manythings.org is read with
    :func:`load_tsv`.

    Args:
        pair: which languages.
        source: the language to translate from; by default the one that is not English.
        download: get the file (4.0 MB or 3.4 MB) if it is not in :func:`data_root`.

    Raises:
        DataError: no such pair or source, or the file is not there, cannot be downloaded, or is
            another.

    Book: translation
    """
    if pair not in EDITIONS:
        raise DataError(f"pair={pair!r} must be one of {', '.join(EDITIONS)}")
    foreign, english = pair.split("-")
    if source not in (None, foreign, english):
        raise DataError(f"source={source!r} must be {foreign!r} or {english!r} for {pair}")
    edition = EDITIONS[pair]
    data, name = _content(fetch(edition.file, download=download), edition.inside)
    from_english = source == english
    read = parse_tsv(data, name, columns=(0, 1) if from_english else (1, 0))
    parts: dict[str, Split] = {}

    def part_of(sides: Pair) -> Split:
        sentence = sides[0] if from_english else sides[1]
        if sentence not in parts:
            parts[sentence] = split_by_md5(sentence)
        return parts[sentence]

    return split_pairs(read.pairs, part_of, n_empty=read.n_empty, attribution=edition.attribution)


def _content(path: Path, inside: str | None) -> tuple[bytes, str]:
    if inside is None:
        return read_bytes(path), str(path)
    with zipfile.ZipFile(path) as archive:
        return archive.read(inside), f"{path}/{inside}"
