"""A small grammar of three languages that writes sentences together with who translates whom.

A sentence is first a meaning without words: who does what to what, where, when, whether it is
denied or asked. Each language then says it in its own order and with its own endings, and marks
every word with the parts of the meaning that it expresses. Two words of two languages are aligned
where their marks meet, so the alignment is true by construction.

Book: cross_attention
"""

import random
from dataclasses import dataclass

from glassformer.data._lexicon import ADJECTIVES, NOUNS, PLACES, TIMES, VERBS, Noun, Verb
from glassformer.data._realise import Meaning, Thing, Words, chinese, english, german
from glassformer.errors import DataError

__all__ = ["AlignedTriple", "generate_triples"]

Alignment = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class AlignedTriple:
    """One meaning in three languages, word by word.

    ``german`` and ``english`` are the words of the text between its blanks, punctuation attached;
    ``chinese`` are its words, which are written without blanks.

    Book: cross_attention
    """

    german: tuple[str, ...]
    english: tuple[str, ...]
    chinese: tuple[str, ...]
    german_english: Alignment
    """Pairs (index of a German word, index of an English word) that translate each other."""
    chinese_english: Alignment
    """Pairs (index of a Chinese word, index of an English word) that translate each other."""

    @property
    def german_text(self) -> str:
        """The German sentence."""
        return " ".join(self.german)

    @property
    def english_text(self) -> str:
        """The English sentence."""
        return " ".join(self.english)

    @property
    def chinese_text(self) -> str:
        """The Chinese sentence."""
        return "".join(self.chinese)


def generate_triples(n: int, *, seed: int = 0) -> tuple[AlignedTriple, ...]:
    """``n`` different sentences, the same ones for the same seed.

    They differ in word order (German verbs at the end of clauses, Chinese relative clauses before
    their noun), agreement, articles and classifiers, particles, tense, negation and questions.

    Raises:
        DataError: ``n`` below 1.

    Book: cross_attention
    """
    if n < 1:
        raise DataError(f"n={n} sentences were asked for; ask for at least 1")
    draw = random.Random(f"grammar {seed}")
    found: dict[str, AlignedTriple] = {}
    while len(found) < n:
        meaning = _meaning(draw)
        de, en, zh = german(meaning), english(meaning), chinese(meaning)
        triple = AlignedTriple(
            tuple(word.text for word in de),
            tuple(word.text for word in en),
            tuple(word.text for word in zh),
            _aligned(de, en),
            _aligned(zh, en),
        )
        found.setdefault(triple.german_text, triple)
    return tuple(found.values())


def _aligned(left: Words, right: Words) -> Alignment:
    return frozenset(
        (i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a.marks & b.marks
    )


def _meaning(draw: random.Random) -> Meaning:
    verb = draw.choice(VERBS)
    tense = draw.choice(["past", "past", "present", "future"])
    habit = tense == "present"  # has its time, and no single thing that it is done to
    negated, question = draw.random() < 0.15, draw.random() < 0.15
    what = _thing(draw, "what", verb.objects, definite=not habit and draw.random() < 0.5)
    if what.definite and draw.random() < 0.3:
        owner = _thing(draw, "owner", "person", definite=True)
        fitting = [v for v in VERBS if v != verb and v.keeps and _takes(v, what.noun)]
        what = what._replace(relative=(owner._replace(adjective=None), draw.choice(fitting)))
    # behind a relative clause, a time or place would seem to belong to the clause
    timed = habit or (not (question and what.relative) and draw.random() < 0.7)
    placed = not negated and not what.relative and draw.random() < 0.4
    return Meaning(
        who=_thing(draw, "who", "person", definite=draw.random() < 0.8),
        verb=verb,
        what=what,
        tense=tense,
        when=draw.choice([time for time in TIMES if time.tense == tense]) if timed else None,
        where=draw.choice(PLACES) if placed else None,
        time_first=what.relative is not None or draw.random() < 0.5,
        negated=negated,
        question=question,
    )


def _takes(verb: Verb, noun: Noun) -> bool:
    return noun.kind in verb.objects.split(",")


def _thing(draw: random.Random, name: str, kinds: str, *, definite: bool) -> Thing:
    noun = draw.choice([noun for noun in NOUNS if noun.kind in kinds.split(",")])
    fitting = [adjective for adjective in ADJECTIVES if noun.kind in adjective.kinds.split(",")]
    return Thing(
        name,
        noun,
        how_many=draw.choice([1, 1, 1, 2, 3]),
        definite=definite,
        adjective=draw.choice(fitting) if fitting and draw.random() < 0.4 else None,
    )
