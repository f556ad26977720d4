"""The list of claims: complete, in our own words, and each with a criterion that can decide."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from glassformer.lab.trials import CLAIMS_FILE, claims

ROOT = Path(__file__).parents[2]
KEYS = ["id", "chapter", "source", "claim", "printed", "criterion"]
LISTINGS = [f"L{number:02}" for number in range(1, 18)]
N_CLAIMS = 160
MOST_WORDS = 45
# ideographs, kana, CJK punctuation and full-width forms
CHINESE = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef]")


@pytest.fixture(scope="module")
def entries():
    return yaml.safe_load(CLAIMS_FILE.read_text(encoding="utf-8"))


def chapters():
    parts = yaml.safe_load((ROOT / "book" / "chapters.yaml").read_text(encoding="utf-8"))
    return [chapter["slug"] for part in parts for chapter in part["chapters"]]


def is_listing(entry):
    return entry["id"] in LISTINGS


def sentences(text):
    return re.split(r"(?<=[.?!;])\s+", text.strip())


def test_ids_are_unique_and_well_formed(entries):
    ids = [entry["id"] for entry in entries]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert [name for name in ids if not re.fullmatch(r"[A-Z]{3}-\d\d|L\d\d", name)] == []


def test_every_claim_is_there(entries):
    assert sum(not is_listing(entry) for entry in entries) == N_CLAIMS
    numbers = {}
    for entry in entries:
        if not is_listing(entry):
            area, number = entry["id"].split("-")
            numbers.setdefault(area, []).append(int(number))
    # within an area the numbers run from 1 without a gap, so none was dropped
    assert numbers == {area: list(range(1, len(found) + 1)) for area, found in numbers.items()}


def test_every_listing_is_tried_once(entries):
    named = [entry["listing"] for entry in entries if "listing" in entry]
    own = [entry["id"] for entry in entries if is_listing(entry)]
    assert sorted(named + own) == LISTINGS


def test_keys_and_their_order(entries):
    wrong = [
        entry["id"]
        for entry in entries
        if list(entry) != KEYS + (["listing"] if "listing" in entry else [])
    ]
    assert wrong == []


def test_values_are_of_the_right_kind(entries):
    for entry in entries:
        assert entry["source"] in {1, 2}, entry["id"]
        assert entry["printed"] is None or (
            isinstance(entry["printed"], str) and entry["printed"].strip(" -")
        ), entry["id"]
        for key in ("claim", "criterion"):
            assert isinstance(entry[key], str), (entry["id"], key)
            assert entry[key] == " ".join(entry[key].split()), (entry["id"], key)
            assert entry[key].endswith("."), (entry["id"], key)


def test_chapters_exist_and_stand_in_the_order_of_the_book(entries):
    order = chapters()
    used = [entry["chapter"] for entry in entries]
    assert sorted(set(used) - set(order)) == []
    assert used == sorted(used, key=order.index)
    assert set(used) == set(order), "every chapter has something on trial"


def test_an_area_belongs_to_one_chapter(entries):
    homes = {}
    for entry in entries:
        homes.setdefault(entry["id"].split("-")[0], set()).add(entry["chapter"])
    assert {area: home for area, home in homes.items() if len(home) > 1} == {}


def test_the_text_is_our_own_english(entries):
    found = [
        (entry["id"], key)
        for entry in entries
        for key in ("claim", "printed", "criterion")
        if CHINESE.search(entry[key] or "")
    ]
    assert found == []


def test_no_sentence_is_longer_than_a_breath(entries):
    long = [
        (entry["id"], len(sentence.split()), sentence)
        for entry in entries
        for key in ("claim", "criterion")
        for sentence in sentences(entry[key])
        if len(sentence.split()) > MOST_WORDS
    ]
    assert long == []


def test_a_claim_is_one_sentence_and_a_criterion_at_most_two(entries):
    for entry in entries:
        assert len(re.split(r"(?<=[.?!])\s+", entry["claim"])) == 1, entry["id"]
        assert len(re.split(r"(?<=[.?!])\s+", entry["criterion"])) <= 2, entry["id"]


def test_a_criterion_stands_on_its_own(entries):
    # no other claim, no file, and no verdict on the way
    leaning = re.compile(
        r"\b[A-Z]{3}-\d\d\b|\bL\d\d\b|\bas above\b|\.(txt|yaml|ipynb|py)\b", re.IGNORECASE
    )
    leans = [entry["id"] for entry in entries if leaning.search(entry["criterion"])]
    assert leans == []
    assert [entry["id"] for entry in entries if leaning.search(entry["claim"])] == []


def test_the_spelling_is_british(entries):
    american = re.compile(r"\b(normaliz|optimiz|initializ|generaliz|quantiz|colors?\b|behavior)")
    found = [
        (entry["id"], key)
        for entry in entries
        for key in ("claim", "criterion")
        if american.search(entry[key])
    ]
    assert found == []


def test_the_lines_are_folded():
    lines = CLAIMS_FILE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 100 or line != line.rstrip()] == []


def test_the_book_has_the_same_file():
    link = ROOT / "book" / "claims.yaml"
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == CLAIMS_FILE.resolve()


def test_a_missing_figure_is_not_shown_as_a_word(entries):
    # null in the file must not reach a verdict card as "None"
    without = [entry["id"] for entry in entries if entry["printed"] is None]
    assert without
    known = claims()
    assert [name for name in without if known[name].printed not in (None, "", "-")] == []
