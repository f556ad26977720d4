"""The models that come along: offline, as their record says, and clear about bad input."""

import json
import math
import os
import shutil

import glassformer
import pytest
import torch
from glassformer.data import load_phrasebook
from glassformer.errors import CheckpointError, DataError, GenerationError, TokenizerError
from glassformer.evaluation import bleu
from glassformer.pretrained import (
    PRETRAINED,
    load_pretrained,
    pretrained_folder,
    recorded_runs,
    training_record,
)
from glassformer.translation import Translator, load_translator
from support.commands import one_clean_line, run

SAID = "Wenn ich es wüsste, würde ich es dir sagen."


@pytest.fixture(scope="module")
def translator():
    return load_pretrained("tatoeba-de-en")


def test_a_translator_from_one_line(translator):
    assert isinstance(glassformer.load_pretrained("tatoeba-de-en"), Translator)
    assert not translator.model.training
    assert {p.dtype for p in translator.model.parameters()} == {torch.float32}
    assert translator.translate(SAID) == "If I knew it, I would tell you."


def test_all_models_together_are_small():
    sizes = [file.stat().st_size for file in pretrained_folder(PRETRAINED[0]).parent.rglob("*.*")]
    assert sum(sizes) <= 10e6


@pytest.mark.parametrize("beams", [1, 4])
def test_the_recorded_bleu_of_the_phrasebook_comes_out_again(translator, beams):
    recorded = {row["beams"]: row for row in training_record("tatoeba-de-en")["phrasebook"]}
    phrases = load_phrasebook()
    written = translator.translate([phrase.german for phrase in phrases], n_beams=beams)
    score = bleu(written, [phrase.english for phrase in phrases])
    assert round(score.score, 2) == recorded[beams]["bleu"]
    assert score.signature == recorded[beams]["bleu_signature"]


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_record_says_where_a_model_comes_from(name):
    record = training_record(name)
    assert len(record["data"]["sha256"]) == 64
    assert record["data"]["attribution"]
    assert record["data"]["split"]
    assert record["made_with"].keys() >= {"commit", "torch", "sentencepiece", "processor"}
    assert record["training"]["minutes"] > 0
    steps, _, dev = zip(*record["training"]["curve"]["rows"], strict=True)
    assert list(steps) == sorted(steps)
    assert min(dev) == record["training"]["best_dev_loss"]
    kinds = {(row["weights"], row["part"], row["beams"]) for row in record["scores"]}
    assert kinds == {
        (w, p, b) for w in ("float32", "shipped") for p in ("dev", "test") for b in (1, 4)
    }
    for row in record["scores"]:
        assert math.isfinite(row["nats_per_token"])
        assert ("bleu_signature" in row) != ("phone_error_rate" in row)


def test_eight_bits_cost_next_to_nothing():
    """Of the translator, on test, at most 0.3 BLEU either way."""
    scores = {
        (row["weights"], row["beams"]): row["bleu"]
        for row in training_record("tatoeba-de-en")["scores"]
        if row["part"] == "test"
    }
    for beams in (1, 4):
        assert abs(scores["float32", beams] - scores["shipped", beams]) < 0.3


def test_words_become_sounds():
    assert load_pretrained("cmudict-g2p").translate("hello").split()[0] == "HH"


@pytest.mark.skipif("GLASSFORMER_DATA" not in os.environ, reason="needs the data of Tatoeba")
def test_one_command_measures_the_recorded_score_of_test_again():
    try:
        glassformer.data.load_tatoeba("deu-eng")
    except DataError as error:
        pytest.skip(str(error))
    result = run("evaluate", "--model", "tatoeba-de-en", "--split", "test", "--beams", 1, "--json")
    (recorded,) = (
        row
        for row in training_record("tatoeba-de-en")["scores"]
        if (row["weights"], row["part"], row["beams"]) == ("shipped", "test", 1)
    )
    assert abs(json.loads(result.stdout)["bleu"] - recorded["bleu"]) <= 0.1


def test_commands_take_the_name(tmp_path, monkeypatch):
    said = run("translate", stdin=f"{SAID}\n\nDanke.\n").stdout
    assert said == "If I knew it, I would tell you.\n\nThank you.\n"
    assert run("translate", "--model", "cmudict-g2p", stdin="hello\n").stdout.startswith("HH ")
    assert json.loads(run("info", "--model", "tatoeba-de-en", "--json").stdout)["model"]
    shutil.copytree(pretrained_folder("cmudict-g2p"), tmp_path / "tatoeba-de-en")
    monkeypatch.chdir(tmp_path)  # a folder of that name goes first
    assert run("translate", stdin="hello\n").stdout.startswith("HH ")


def test_an_unknown_name_and_a_damaged_file_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"'tatoeba-en-de' is no model.*tatoeba-de-en"):
        load_pretrained("tatoeba-en-de")
    for name in ("model.safetensors", "tokenizer.model", "config.json"):
        folder = tmp_path / name
        shutil.copytree(pretrained_folder("tatoeba-de-en"), folder)
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=f"{name}: .*not the ones saved"):
            load_translator(folder)
        (folder / name).write_bytes(data[: len(data) // 2])
        assert "cut short" in one_clean_line(run("translate", "--model", folder, code=2))


def test_the_tokenizer_of_another_model_is_refused(translator):
    other = load_pretrained("cmudict-g2p").tokenizer
    with pytest.raises(TokenizerError, match="the tokenizer that the model was trained with"):
        Translator(translator.model, other)


def test_nothing_in_nothing_out(translator):
    assert translator.translate(["", "  ", "\t"]) == ["", "", ""]
    assert translator.translate([]) == []


def test_a_line_of_500_words_is_refused_and_named(translator):
    long = " ".join(["Haus"] * 500)
    with pytest.raises(GenerationError, match=r"50\d tokens.*at most \d+; split it.*Haus Haus"):
        translator.translate(["Guten Morgen!", long])


@pytest.mark.parametrize("text", ["你好，世界。", "Привет!", "😀😀", "\u200b", "zażółć gęślą jaźń"])
def test_other_alphabets_give_some_text_and_no_error(translator, text):
    """Unknown characters go in as bytes. What comes out is a guess, but it is text."""
    written = translator.translate(text, max_new_tokens=20)
    assert isinstance(written, str)
    assert "\N{REPLACEMENT CHARACTER}" not in written


def test_recorded_runs_are_there():
    runs = recorded_runs()
    base, *others = runs["sweep"]["rows"]
    assert base["dev_nats_per_character"] > 0
    assert len(others) >= 4


@pytest.mark.parametrize(("name", "ruler"), [("tatoeba-cmn-eng", "13a"), ("tatoeba-eng-cmn", "zh")])
def test_chinese_is_recorded_both_ways_each_with_its_ruler(name, ruler):
    found = recorded_runs()["alone"][name]
    assert found["data"]["name"] == name
    assert found["data"]["pairs"]["train"] > 23_000
    assert len(found["data"]["sha256"]) == 64
    rows = {(row["part"], row["beams"]): row for row in found["scores"]}
    assert rows.keys() == {("dev", 1), ("dev", 4), ("test", 1), ("test", 4)}
    for (part, _), row in rows.items():
        assert row["pairs"] == found["data"]["pairs"][part]
        assert f"|tok:{ruler}|" in row["bleu_signature"]
        assert "case:mixed" in row["bleu_signature"]
        assert 5 < row["bleu"] < 40
    curve = found["training"]["curve"]["rows"]
    assert curve[-1][0] == found["training"]["steps"]
    assert min(row[2] for row in curve) == found["training"]["best_dev_loss"]


def test_the_rivals_stood_on_the_same_ground():
    found = recorded_runs()["same minutes"]
    assert found.keys() == {"transformer", "post_norm", "lstm"}
    rivals = list(found.values())
    for what, spread in (("parameters", 1.02), ("minutes", 1.1)):
        amounts = [rival[what] for rival in rivals]
        assert max(amounts) <= spread * min(amounts), what
    for rival in rivals:
        tried = {float(lr): nats for lr, nats in rival["search"]["dev nats per token"].items()}
        assert tried.keys() == {0.0005, 0.001, 0.002}
        assert rival["lr"] == min(tried, key=tried.__getitem__)
        assert (rival["dev"]["pairs"], rival["test"]["pairs"]) == (1658, 3239)
        for part in ("dev", "test"):
            assert "case:mixed" in rival[part]["bleu_signature"]
            assert "|tok:13a|" in rival[part]["bleu_signature"]
        assert rival["made_with"] == rivals[0]["made_with"]
