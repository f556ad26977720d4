"""Sentences in German, English and Chinese that come with the package, for tests without a network.

They were written for this project, are none of Tatoeba's, and are in the public domain (CC0).

Book: translation
"""

import functools
from dataclasses import dataclass
from importlib import resources

__all__ = ["Phrase", "load_phrasebook"]


@dataclass(frozen=True)
class Phrase:
    """One sentence in three languages.

    Book: translation
    """

    german: str
    english: str
    chinese: str
    topic: str
    """What it is about, such as ``Food and cooking``."""


@functools.lru_cache(maxsize=1)
def load_phrasebook() -> tuple[Phrase, ...]:
    """Everyday sentences of two to thirty words, each natural in its own language.

    Book: translation
    """
    file = resources.files("glassformer.data") / "phrasebook.tsv"
    phrases: list[Phrase] = []
    topic = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            topic = line.removeprefix("# ")
        else:
            german, english, chinese = line.split("\t")
            phrases.append(Phrase(german, english, chinese, topic))
    return tuple(phrases)
