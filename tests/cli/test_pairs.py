"""Translators on the command line: from two files to a model, its scores and its translations."""

import json
import re
import shlex

import pytest
from glassformer.data import ParallelCorpus, load_pairs, read_pairs
from glassformer.evaluation import bleu, chrf, error_rates, evaluate_pairs
from glassformer.training import PairRecipe, load_model, load_tokenizer, read_record, save_model
from glassformer.translation import load_translator
from support.commands import one_clean_line, run

PAIRS = ["--preset", "tiny", "--vocab-size", "311", "--length", "29", "--max-tokens", "307"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """401 numbered sentences, and the same with the words turned round."""
    folder = tmp_path_factory.mktemp("pairs")
    words = ["red", "green", "blue", "grey", "white", "black", "brown"]
    lines = [f"{words[i % 7]} {words[i * i % 5]} {i}." for i in range(401)]
    turned = [" ".join(reversed(line[:-1].split())) + "." for line in lines]
    paths = folder / "a.txt", folder / "b.txt"
    for path, side in zip(paths, (lines, turned), strict=True):
        path.write_text("\n".join(side), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "translator"
    source, target = files
    options = ["--source", source, "--target", target, "--out", folder, "--steps", 8, *PAIRS]
    return folder, run("train", *options).output


def test_training_on_pairs(trained, files):
    folder, output = trained
    corpus = load_pairs(*files)
    assert f"{len(corpus.train)} pairs to train on, {len(corpus.dev)} to watch" in output
    assert f"{len(corpus.test)} to test with; 0 left out" in output
    lines = [line for line in output.splitlines() if line.startswith("step ")]
    assert len(lines) == 8
    recipe = PairRecipe.from_dict(read_record(folder)["run"])
    assert recipe == PairRecipe(
        source=str(files[0]), target=str(files[1]), preset="tiny", vocab_size=311, length=29,
        max_tokens=307, steps=8,
    )  # fmt: skip
    size = sum(p.numel() for p in load_model(folder).parameters())
    assert f"{size:,} parameters on " in output
    # the last line is a command that can be typed as it stands
    echo, _, program = output.splitlines()[-1].strip().partition(" | ")
    _, text = shlex.split(echo)
    assert text == corpus.dev[0][0]
    arguments = shlex.split(program)
    assert arguments[:2] == ["glassformer", "translate"]
    assert run(*arguments[1:], "--max-new-tokens", 3, stdin=text).stdout.count("\n") == 1


def test_a_run_on_pairs_goes_on_and_stays_what_it_is(trained, files, tmp_path):
    folder, _ = trained
    run("train", "--resume", folder, "--source", files[0], "--max-tokens", 307)
    other = run("train", "--resume", folder, "--max-tokens", 308, code=2)
    assert "--max-tokens 308 contradicts the run" in one_clean_line(other)
    other = run("train", "--resume", folder, "--stride", 3, code=2)
    assert "--stride 3 contradicts the run" in one_clean_line(other)
    assert "has no such option" in other.stderr
    moved = [tmp_path / path.name for path in files]
    for old, new in zip(files, moved, strict=True):
        new.write_bytes(old.read_bytes())
    options = ["--source", moved[0], "--target", moved[1], "--out", tmp_path / "run", *PAIRS]
    run("train", *options, "--steps", 2)
    for path in moved:
        path.rename(path.with_suffix(".moved"))
    lost = run("train", "--resume", tmp_path / "run", code=2)
    assert "say where with --source and --target" in one_clean_line(lost)
    found = [path.with_suffix(".moved") for path in moved]
    run("train", "--resume", tmp_path / "run", "--source", found[0], "--target", found[1])


def test_pairs_that_are_too_long_are_counted(files, tmp_path):
    corpus = load_pairs(*files)
    options = ["--source", files[0], "--target", files[1], *PAIRS, "--length", 6, "--steps", 1]
    output = run("train", *options, "--out", tmp_path / "r").output
    tokenizer = load_tokenizer(tmp_path / "r")
    n = sum(
        max(len(tokenizer.encode(side, eos=True)) for side in pair) > 6 for pair in corpus.train
    )
    assert 0 < n < len(corpus.train)
    assert f"{n} pairs are longer than 6 tokens, and left out" in output
    found = json.loads(run("evaluate", "--model", tmp_path / "r", "--json").stdout)
    assert 0 < found["too_long"] < found["pairs"] == len(corpus.dev)


def test_a_run_ends_when_it_is_out_of_patience(files, tmp_path):
    options = ["--source", files[0], "--target", files[1], "--out", tmp_path / "r", *PAIRS]
    output = run("train", *options, "--steps", 40, "--lr", 9, "--warmup", 0, "--eval-every", 1,
                 "--patience", 2).output  # fmt: skip
    match = re.search(r"Out of patience after step (\d+) of 40\.", output)
    assert match
    assert read_record(tmp_path / "r")["step"] == int(match[1]) < 40
    again = run("train", "--resume", tmp_path / "r").output
    assert f"Out of patience after step {match[1]} of 40." in again


def test_a_missing_data_set_says_what_to_type(tmp_path, monkeypatch):
    """The library names arguments; here they are options, and nothing is fetched unasked."""
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "none"))
    out = ["--out", tmp_path / "r"]
    lost = run("train", "--data", "tatoeba-deu-eng", *out, code=2)
    assert "pass --download" in one_clean_line(lost)
    terms = run("train", "--data", "multi30k", *out, code=2)
    assert "pass --accept-terms" in one_clean_line(terms)
    assert "=True" not in lost.stderr + terms.stderr


def test_options_of_the_other_kind_are_refused(files, tmp_path):
    out = ["--out", tmp_path / "r"]
    both = ["--source", files[0], "--target", files[1]]
    for options, said in (
        ([*both, "--stride", 3], "--stride is for a text, and this run trains on pairs"),
        ([*both, "--text", files[0]], "--text is for a text, and this run trains on pairs"),
        (["--max-tokens", 99], "--max-tokens is for pairs, and this run trains on a text"),
        (both[:2], "give the name of a data set, or the paths of two files"),
        ([*both, "--data", "cmudict"], "give the name of a data set, or the paths of two files"),
        ([*both, "--max-tokens", 0], "max_tokens=0 must be at least 1"),
    ):
        assert said in one_clean_line(run("train", *options, *out, code=2))
    assert not (tmp_path / "r").exists()


def test_evaluate_gives_the_scores_of_the_library(trained, files):
    folder, _ = trained
    options = ["--split", "test", "--beams", 2]
    found = json.loads(run("evaluate", "--model", folder, *options, "--json").stdout)
    pairs = load_pairs(*files).test
    translator = load_translator(folder)
    hypotheses = translator.translate([source for source, _ in pairs], n_beams=2)
    references = [target for _, target in pairs]
    assert found["bleu"] == bleu(hypotheses, references).score
    assert found["bleu_signature"] == bleu(hypotheses, references).signature
    assert found["chrf"] == chrf(hypotheses, references).score
    tokenizer = translator.tokenizer
    score = evaluate_pairs(
        translator.model,
        [
            (tokenizer.encode(s, eos=True), tokenizer.encode(t, bos=True, eos=True))
            for s, t in pairs
        ],
        pad_id=tokenizer.pad_id,
        n_chars=sum(len(target) + 1 for target in references),
    )
    assert found["nats_per_token"] == pytest.approx(score.nll, abs=1e-6)
    assert found["bits_per_character"] == pytest.approx(score.bits_per_character, abs=1e-6)
    assert (found["pairs"], found["too_long"], found["split"]) == (len(pairs), 0, "test")
    rows = run("evaluate", "--model", folder, *options).stdout
    assert f"text                 {files[0]}, {files[1]}, test\n" in rows
    assert re.search(rf"^BLEU +{found['bleu']:.2f}$", rows, re.MULTILINE)


def test_evaluate_on_a_test_set_of_its_own(trained, files, tmp_path):
    """Files are taken whole; Chinese references need their tokenizer."""
    folder, _ = trained
    sides = [["red blue 3.", "grey red 5."], ["3 blue red.", "5 red grey."]]
    paths = [tmp_path / "s", tmp_path / "t"]
    for path, side in zip(paths, sides, strict=True):
        path.write_text("\n".join(side))
    test_set = ["--source", paths[0], "--target", paths[1]]
    found = json.loads(run("evaluate", "--model", folder, *test_set, "--json").stdout)
    assert (found["pairs"], found["split"]) == (len(read_pairs(*paths).pairs), None)
    paths[1].write_text("三蓝红。\n五红灰。", encoding="utf-8")
    wrong = run("evaluate", "--model", folder, *test_set, code=2)
    assert wrong.stderr.startswith("Error: no BLEU and no chrF: 2 of 2 references")
    assert "give plain text, and --tokenize zh" in wrong.stderr
    right = run("evaluate", "--model", folder, *test_set, "--tokenize", "zh", "--json")
    assert "tok:zh" in json.loads(right.stdout)["bleu_signature"]
    half = run("evaluate", "--model", folder, *test_set[:2], code=2)
    assert "give both --source and --target" in one_clean_line(half)
    for options, said in (
        (["--split", "test"], "are a test set, taken whole; leave out --split test"),
        (["--beams", 0], "--beams 0 must be at least 1"),
        (["--tokenize", "13"], "tokenize='13' is no tokenizer"),
    ):
        refused = run("evaluate", "--model", folder, *test_set, *options, code=2)
        assert said in one_clean_line(refused)


def test_references_that_cannot_be_scored_do_not_cost_the_surprise(trained, tmp_path):
    folder, _ = trained
    paths = [tmp_path / "s", tmp_path / "t"]
    paths[0].write_text("red blue 3.\ngrey red 5.")
    paths[1].write_text("3 blue red .\n5 red grey .")
    command = ["evaluate", "--model", folder, "--source", paths[0], "--target", paths[1]]
    shown = run(*command, code=2)
    assert re.search(r"^nats per token +\d+\.\d{4}$", shown.stdout, re.MULTILINE)
    assert "so this is tokenised; give plain text" in shown.stderr
    assert "detokenize" not in shown.stderr
    found = json.loads(run(*command, "--json", code=2).stdout)
    assert found["nats_per_token"] > 0
    assert "bleu" not in found


def test_words_into_phones_get_error_rates(trained, tmp_path, monkeypatch):
    """Every pronunciation of a word counts, and the word counts once."""
    words = [("red", "R EH D"), ("read", "R EH D"), ("read", "R IY D"), ("blue", "B L UW")]
    corpus = ParallelCorpus(tuple(words), tuple(words), tuple(words))
    monkeypatch.setattr(PairRecipe, "corpus", lambda *_, **__: corpus)
    options = ["--preset", "tiny", "--vocab-size", 279, "--length", 13, "--steps", 2]
    run("train", "--data", "cmudict", "--out", tmp_path / "r", *options)
    found = json.loads(run("evaluate", "--model", tmp_path / "r", "--json").stdout)
    written = load_translator(tmp_path / "r").translate(["red", "read", "blue"])
    spoken = [[["R", "EH", "D"]], [["R", "EH", "D"], ["R", "IY", "D"]], [["B", "L", "UW"]]]
    rates = error_rates([text.split() for text in written], spoken)
    assert (found["text"], found["words"], found["pairs"]) == ("cmudict", 3, 4)
    assert found["phone_error_rate"] == rates.phone_error_rate
    assert found["word_error_rate"] == rates.word_error_rate
    assert "bleu" not in found
    # and on words of one's own
    paths = [tmp_path / "s", tmp_path / "t"]
    for path, side in zip(paths, zip(*words, strict=True), strict=True):
        path.write_text("\n".join(side))
    typed = ["--source", paths[0], "--target", paths[1]]
    own = json.loads(run("evaluate", "--model", tmp_path / "r", *typed, "--json").stdout)
    assert own["text"] == f"{paths[0]}, {paths[1]}"
    assert own["phone_error_rate"] == rates.phone_error_rate
    assert "bleu" not in own


def test_a_translator_without_its_run_needs_a_test_set(trained, files, tmp_path):
    folder, _ = trained
    save_model(tmp_path / "m", load_model(folder), load_tokenizer(folder))
    lost = run("evaluate", "--model", tmp_path / "m", code=2)
    assert "no run of `glassformer train`; give --source and --target" in one_clean_line(lost)
    for options, said in (
        (["--text", files[0]], "holds an EncoderDecoder; give --source and --target"),
        (["--window", 3], "--window and --stride are for long texts of language models"),
    ):
        assert said in one_clean_line(run("evaluate", "--model", folder, *options, code=2))


def test_info_of_a_translator(trained):
    folder, _ = trained
    size = sum(p.numel() for p in load_model(folder).parameters())
    assert f"{size:,} parameters: 1 + 1 layers, width 64" in run("info", "--model", folder).stdout
    found = json.loads(run("info", "--model", folder, "--json").stdout)
    assert found["model"]["config"]["kind"] == "encoder_decoder"
    assert found["model"]["parameters"] == size
