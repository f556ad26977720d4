"""One meaning said in German, English and Chinese, each word marked with what it expresses.

This is the inside of :mod:`glassformer.data.grammar`.
"""

from typing import NamedTuple

from glassformer.data._lexicon import Adjective, Adverbial, Noun, Verb


class Thing(NamedTuple):
    """A noun phrase. ``relative`` is a clause about it: (somebody, does something to it).

    Book: cross_attention
    """

    name: str  # of its marks
    noun: Noun
    how_many: int  # 1, or 2 and 3 for "two" and "three"
    definite: bool
    adjective: Adjective | None = None
    relative: "tuple[Thing, Verb] | None" = None

    @property
    def plural(self) -> bool:
        """Whether the noun stands in the plural."""
        return self.how_many > 1


class Meaning(NamedTuple):
    """Who does what to what, when, where; denied or asked. Book: cross_attention"""

    who: Thing
    verb: Verb
    what: Thing
    tense: str
    when: Adverbial | None
    where: Adverbial | None
    time_first: bool
    negated: bool
    question: bool


class Word(NamedTuple):
    """A word and the parts of the meaning that it expresses. Book: cross_attention"""

    text: str
    marks: frozenset[str]


Words = list[Word]


def _word(text: str, *marks: str) -> Words:
    """One word, or none for no text."""
    return [Word(text, frozenset(marks))] if text else []


def _adverbial(name: str, words: str) -> Words:
    pairs = [word.split(":") for word in words.split()]
    return [
        Word(text, frozenset(f"{name} {number}" for number in numbers.split(",")))
        for text, numbers in pairs
    ]


def _sentence(words: Words, end: str) -> Words:
    """A capital at the beginning, the full stop or question mark attached to the last word."""
    first, last = words[0], words[-1]
    words = [first._replace(text=first.text[0].upper() + first.text[1:]), *words[1:-1], last]
    return [*words[:-1], last._replace(text=last.text.removesuffix(",") + end)]


# --- German ---------------------------------------------------------------------------------

_DEFINITE = {
    "nominative": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "accusative": {"m": "den", "f": "die", "n": "das", "p": "die"},
}
_INDEFINITE = {
    "nominative": {"m": "ein", "f": "eine", "n": "ein"},
    "accusative": {"m": "einen", "f": "eine", "n": "ein"},
}
_WEAK = {  # endings of adjectives behind der, die, das
    "nominative": {"m": "e", "f": "e", "n": "e", "p": "en"},
    "accusative": {"m": "en", "f": "e", "n": "e", "p": "en"},
}
_MIXED = {  # behind ein and kein, and behind a bare number
    "nominative": {"m": "er", "f": "e", "n": "es", "p": "e"},
    "accusative": {"m": "en", "f": "e", "n": "es", "p": "e"},
}
_NUMBERS = {2: ("zwei", "two", "两"), 3: ("drei", "three", "三")}


def german(meaning: Meaning) -> Words:
    """The German sentence. Book: cross_attention"""
    verb, denies_thing = meaning.verb, meaning.negated and not meaning.what.definite
    who = _german_thing(meaning.who, "nominative")
    what = _german_thing(meaning.what, "accusative", denied=denies_thing)
    when = _adverbial("when", meaning.when.german) if meaning.when else []
    where = _adverbial("where", meaning.where.german) if meaning.where else []
    finite, rest = _german_verb(verb, meaning.tense, plural=meaning.who.plural)
    # what is new stands late: an indefinite object behind the place, a definite one before it
    middle = [*what, *where] if meaning.what.definite else [*where, *what]
    if meaning.negated and not denies_thing:
        middle += _word("nicht", "not")
    if meaning.question:
        return _sentence([*finite, *who, *when, *middle, *rest], "?")
    if meaning.time_first and when:
        return _sentence([*when, *finite, *who, *middle, *rest], ".")
    return _sentence([*who, *finite, *when, *middle, *rest], ".")


def _german_verb(verb: Verb, tense: str, *, plural: bool) -> tuple[Words, Words]:
    """The finite verb in second place, and what waits at the end of the clause."""
    if tense == "past":
        return _word("haben" if plural else "hat", "aux"), _word(verb.participle, "verb")
    if tense == "future":
        return _word("werden" if plural else "wird", "aux"), _word(verb.infinitive, "verb")
    finite = verb.plural if plural else verb.singular
    return _word(finite, "aux", "verb"), _word(verb.particle, "verb")


def _german_thing(thing: Thing, case: str, *, denied: bool = False) -> Words:
    noun, name = thing.noun, thing.name
    gender = "p" if thing.plural else noun.gender
    number = _NUMBERS[thing.how_many][0] if thing.plural else ""
    endings = _MIXED
    if thing.definite:
        words = _word(_DEFINITE[case][gender], f"{name} the") + _word(number, f"{name} number")
        endings = _WEAK
    elif denied:
        article = "keine" if thing.plural else "k" + _INDEFINITE[case][gender]
        words = _word(article, "not", f"{name} number") + _word(number, f"{name} number")
        endings = _WEAK if thing.plural else _MIXED
    else:
        words = _word(number or _INDEFINITE[case][gender], f"{name} number")
    if thing.adjective is not None:
        words += _word(thing.adjective.german + endings[case][gender], f"{name} adjective")
    words += _word(noun.german_plural if thing.plural else noun.german, f"{name} noun")
    if thing.relative is None:
        return words
    owner, verb = thing.relative
    have = "haben" if owner.plural else "hat"
    clause = [
        *_word(_DEFINITE["accusative"][gender], "that"),
        *_german_thing(owner, "nominative"),
        *_word(verb.participle, "owned"),
        *_word(have + ",", "owned aux"),
    ]
    return [*words[:-1], words[-1]._replace(text=words[-1].text + ","), *clause]


# --- English --------------------------------------------------------------------------------


def english(meaning: Meaning) -> Words:
    """The English sentence. Book: cross_attention"""
    verb, third = meaning.verb, not meaning.who.plural
    who, what = _english_thing(meaning.who), _english_thing(meaning.what)
    when = _adverbial("when", meaning.when.english) if meaning.when else []
    where = _adverbial("where", meaning.where.english) if meaning.where else []
    helper = {"past": "did", "future": "will", "present": "does" if third else "do"}[meaning.tense]
    not_ = _word("not", "not") if meaning.negated else []
    after = _word(verb.preposition, "verb")
    first: Words = []
    if meaning.what.relative is not None and not meaning.question:
        first, when = when, []
    tail = [*after, *what, *where, *when]
    bare = _word(verb.english, "verb")
    if meaning.question:
        return _sentence([*_word(helper, "aux"), *who, *not_, *bare, *tail], "?")
    if meaning.negated or meaning.tense == "future":
        return _sentence([*first, *who, *_word(helper, "aux"), *not_, *bare, *tail], ".")
    present = verb.english_singular if third else verb.english
    finite = verb.english_past if meaning.tense == "past" else present
    return _sentence([*first, *who, *_word(finite, "aux", "verb"), *tail], ".")


def _english_thing(thing: Thing) -> Words:
    noun, name = thing.noun, thing.name
    text = noun.english_plural if thing.plural else noun.english
    adjective = thing.adjective.english if thing.adjective else ""
    words = _word("the", f"{name} the") if thing.definite else []
    if thing.plural:
        words += _word(_NUMBERS[thing.how_many][1], f"{name} number")
    elif not thing.definite:
        words += _word("an" if (adjective or text)[0] in "aeio" else "a", f"{name} number")
    words += _word(adjective, f"{name} adjective") + _word(text, f"{name} noun")
    if thing.relative is None:
        return words
    owner, verb = thing.relative
    past = _word(verb.english_past, "owned", "owned aux") + _word(verb.preposition, "owned")
    return [*words, *_word("that", "that"), *_english_thing(owner), *past]


# --- Chinese --------------------------------------------------------------------------------


def chinese(meaning: Meaning) -> Words:
    """The Chinese sentence. Book: cross_attention"""
    verb = meaning.verb
    who, what = _chinese_thing(meaning.who), _chinese_thing(meaning.what)
    when = _adverbial("when", meaning.when.chinese) if meaning.when else []
    where = _adverbial("where", meaning.where.chinese) if meaning.where else []
    action = _word(verb.chinese, "verb")
    before: Words = []
    if meaning.tense == "present":
        before = _word("不", "not") if meaning.negated else []
        action = _word(verb.chinese, "verb", "aux")
    elif meaning.tense == "future":
        before = [*(_word("不", "not") if meaning.negated else []), *_word("会", "aux")]
    elif meaning.negated:
        before = _word("没有", "not", "aux")
    else:
        action += _word("了", "aux")
    begin = [*when, *who] if meaning.time_first else [*who, *when]
    end = [*_word("吗", "asked"), *_word("？")] if meaning.question else _word("。")
    return [*begin, *before, *where, *action, *what, *end]


def _chinese_thing(thing: Thing) -> Words:
    noun, name = thing.noun, thing.name
    number = _NUMBERS[thing.how_many][2] if thing.plural else ""
    words: Words = []
    if thing.relative is not None:  # what is said about a noun stands before it
        owner, verb = thing.relative
        words += _chinese_thing(owner) + _word(verb.chinese, "owned", "owned aux")
        words += _word("的", "that")
    if thing.definite:
        words += _word("那", f"{name} the") + _word(number, f"{name} number")
        words += _word(noun.classifier, f"{name} number" if thing.plural else f"{name} the")
    else:
        words += _word(number or "一", f"{name} number")
        words += _word(noun.classifier, f"{name} number")
    if thing.adjective is not None:
        words += _word(thing.adjective.chinese, f"{name} adjective")
    return words + _word(noun.chinese, f"{name} noun")
