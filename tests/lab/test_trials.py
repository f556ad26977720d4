"""Verdict cards: what they hold, and what they refuse."""

import json
from pathlib import Path

import pytest
import torch
from bs4 import BeautifulSoup
from glassformer import lab
from glassformer.errors import GlassformerError
from glassformer.lab import trials

ENTRIES = """\
- {id: AAA-01, chapter: attention, source: 1, claim: a < b, printed: O(1), criterion: a is less}
- {id: AAA-02, chapter: attention, source: 2, claim: c, printed: null, criterion: c is seen}
"""


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(ENTRIES, encoding="utf-8")
    monkeypatch.setattr(trials, "CLAIMS_FILE", path)


def test_the_stored_output_is_small_and_stable() -> None:
    figures = {"third": 1 / 3, "count": torch.tensor(3), "ok": True, "where": "row 1"}
    bundle = lab.trial("AAA-01", "holds if", "It is.", measured=figures)._repr_mimebundle_()
    assert bundle["application/vnd.glassformer.trial+json"] == {
        "id": "AAA-01",
        "verdict": "holds if",
        "criterion": "a is less",
        "measured": {"third": 0.3333, "count": 3, "ok": True, "where": "row 1"},
    }
    assert json.loads(json.dumps(bundle)) == bundle


def test_noise_is_left_out() -> None:
    bundle = lab.trial("AAA-01", "holds", "It is.")._repr_mimebundle_()
    assert "measured" not in bundle[trials.MIME]
    assert "Measured" not in bundle["text/html"] + bundle["text/plain"]


@pytest.mark.parametrize("verdict", lab.VERDICTS)
def test_the_card_says_everything_in_words(verdict: str) -> None:
    bundle = lab.trial("AAA-01", verdict, "It is.", measured={"n": 2})._repr_mimebundle_()
    card = BeautifulSoup(bundle["text/html"], "html.parser")
    assert card.find(id="trial-AAA-01") is not None
    for text in (card.get_text(), bundle["text/plain"]):
        for part in ("AAA-01", verdict, "a < b", "O(1)", "a is less", "n = 2", "It is."):
            assert part in text


def test_the_card_reads_in_light_and_dark() -> None:
    html = lab.trial("AAA-01", "holds", "It is.")._repr_mimebundle_()["text/html"]
    assert "background:transparent" in html
    assert "color:inherit" in html
    assert html.count("class=") == 1  # a handle for the site; the card needs no style sheet


def test_signs_and_colours_differ() -> None:
    signs, colours = zip(*trials.SIGNS.values(), strict=True)
    assert len(set(signs)) == len(set(colours)) == len(lab.VERDICTS)


def test_no_printed_figure_is_not_shown() -> None:
    assert "Printed" not in repr(lab.trial("AAA-02", "holds", "It is."))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("AAA-1", "holds", "x"), "'AAA-1' is no claim.*did you mean AAA-01"),
        (("ZZZ", "holds", "x"), "use one of: AAA-01, AAA-02"),
        (("AAA-01", "hold", "x"), "'hold' is no verdict; use one of: holds, holds if"),
        (("AAA-01", "holds", " "), "one sentence"),
        (("AAA-01", "holds", "x\ny"), "one sentence"),
        (("AAA-01", "holds", "x", {"a": float("nan")}), r"measured\['a'\] is nan"),
        (("AAA-01", "holds", "x", {"a": [1]}), "a finite number, a bool or a string"),
    ],
)
def test_what_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(GlassformerError, match=message):
        lab.trial(*arguments)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("- {id: A, chapter: x, claim: c}", "entry 1 .A. lacks source, printed, criterion"),
        (ENTRIES.replace("AAA-02", "AAA-01"), "AAA-01 stands there twice"),
    ],
)
def test_a_bad_list_of_claims(entries: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(entries, encoding="utf-8")
    with pytest.raises(GlassformerError, match=message):
        trials.read_claims(path)


def test_many_claims_are_summarised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ENTRIES.splitlines()[0]
    path = tmp_path / "many.yaml"
    path.write_text("\n".join(line.replace("AAA-01", f"AAA-{n:02}") for n in range(9)))
    monkeypatch.setattr(trials, "CLAIMS_FILE", path)
    with pytest.raises(GlassformerError, match="there are 9, from AAA-00 to AAA-08"):
        lab.trial("nothing like it", "holds", "x")


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        ((True,), "holds"),
        ((True, True), "holds"),
        ((False, True), "holds if"),
        ((None, [0.1]), "holds if"),
        ((False,), "does not hold"),
        ((True, True, False), "not measurable here"),
        ((False, False, {}), "not measurable here"),
    ],
)
def test_a_verdict_follows_from_what_was_measured(
    measured: tuple[object, ...], wanted: str
) -> None:
    assert lab.verdict(*measured) == wanted
    assert wanted in lab.VERDICTS
