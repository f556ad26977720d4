"""Training, writing and measuring on the command line, end to end on a small text."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from glassformer import EncoderDecoder
from glassformer.cli import run as training_run
from glassformer.cli import terminal
from glassformer.data import load_text, train_tokenizer
from glassformer.evaluation import evaluate_nll
from glassformer.training import (
    Recipe,
    load_model,
    load_tokenizer,
    read_record,
    save_model,
    sole_run,
)
from support.commands import SMALL, one_clean_line, run
from support.runs import tiny_decoder


def test_training_reports_and_saves(trained):
    folder, output = trained
    assert re.search(r"parameters on (cpu|cuda|mps), after step 0", output)
    lines = [line for line in output.splitlines() if line.startswith("step ")]
    assert len(lines) == 8  # no bar where there is no terminal
    assert re.fullmatch(
        r"step 8/8  loss \d+\.\d{3}  dev \d+\.\d{3}  [\d,]+ tokens/s  0 s left", lines[-1]
    )
    assert f"glassformer generate --model {folder}" in output
    assert read_record(folder)["step"] == 8
    assert not load_model(folder).training


def test_a_run_can_be_told_from_its_record(trained, text):
    folder, _ = trained
    recipe = Recipe.from_dict(read_record(folder)["run"])
    assert recipe == Recipe(
        text=str(text), preset="tiny", vocab_size=307, length=13, batch_size=3, steps=8
    )


def test_generate_writes_on(trained):
    folder, _ = trained
    prompt = ["generate", "--model", folder, "--prompt", "light number"]
    one = run(*prompt, "--seed", 3, "--max-new-tokens", 5)
    assert one.output.startswith("light number")
    assert one.output.endswith("\n")
    assert len(one.output) > len("light number\n")
    assert run(*prompt, "--seed", 3, "--max-new-tokens", 5).output == one.output
    free = {run(*prompt, "--temperature", 5, "--top-k", 50, "--top-p", 0.99).output for _ in "abc"}
    assert len(free) > 1


def test_generate_streams_what_generation_gives(trained):
    folder, _ = trained
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    ids = tokenizer.encode("stone")
    for _ in range(6):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == tokenizer.eos_id:
            break
    written = run(
        "generate", "--model", folder, "--prompt", "stone", "--temperature", 0,
        "--max-new-tokens", 6,
    )  # fmt: skip
    assert written.output == tokenizer.decode(ids) + "\n"


def test_generate_for_scripts(trained):
    folder, _ = trained
    command = ["generate", "--model", folder, "--prompt", "stone", "--max-new-tokens", 6]
    greedy = [*command, "--temperature", 0]
    found = json.loads(run(*greedy, "--json").stdout)
    assert found["prompt"] == "stone"
    assert found["text"] + "\n" == run(*greedy).stdout
    model, ids = load_model(folder), load_tokenizer(folder).encode("stone")
    for token in found["tokens"]:
        probabilities = model(torch.tensor([ids]))[0, -1].detach().softmax(-1)
        assert token["confidence"] == pytest.approx(float(probabilities[token["id"]]), abs=1e-6)
        ids.append(token["id"])
    other = json.loads(run(*greedy, "--repetition-penalty", 1e6, "--json").stdout)
    written = [token["id"] for token in other["tokens"]]
    assert len(set(written)) == len(written)
    refused = run(*greedy, "--repetition-penalty", 0, code=2)
    assert "repetition_penalty=0.0 must be a positive number" in one_clean_line(refused)


def test_generate_from_nothing_and_beyond_the_end(trained):
    folder, _ = trained
    assert run("generate", "--model", folder, "--prompt", "", "--seed", 1).output.strip()
    long = run("generate", "--model", folder, "--prompt", "light", "--max-new-tokens", 99, code=2)
    assert "room for 13" in long.stderr


def test_generate_shows_all_that_is_written_behind_unknown_characters(trained, tmp_path):
    """A tokenizer without bytes reads a run of them as one, which is shorter than the prompt."""
    lines = [f"the cat {i} sat on a mat {i * 7 % 13}" for i in range(300)]
    tokenizer = train_tokenizer(lines, 50, byte_fallback=False)
    torch.manual_seed(3)
    model = tiny_decoder(vocab_size=tokenizer.vocab_size, max_len=31)
    save_model(tmp_path / "m", model, tokenizer)
    prompt = "字典字典字典 the"
    command = ["generate", "--model", tmp_path / "m", "--prompt", prompt, "--seed", 3]
    found = json.loads(run(*command, "--json").stdout)
    written = found["text"].removeprefix(tokenizer.decode(tokenizer.encode(prompt)))
    assert len(written) > 6
    assert run(*command).stdout == prompt + written + "\n"


def test_evaluate_measures(trained, text):
    folder, _ = trained
    result = run("evaluate", "--model", folder, "--split", "test", "--window", 11, "--stride", 5)
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in result.output.splitlines())
    lines = load_text(text).test
    score = evaluate_nll(
        load_model(folder),
        load_tokenizer(folder).encode_stream(lines),
        window=11,
        stride=5,
        n_chars=sum(len(line) + 1 for line in lines),
    )
    assert rows["nats per token"] == f"{score.nll:.4f}"
    assert rows["perplexity"] == f"{score.perplexity:.2f}"
    assert rows["bits per character"] == f"{score.bits_per_character:.4f}"
    assert rows["text"] == f"{text}, test"
    other = run("evaluate", "--model", folder, "--text", text, "--window", 11, "--stride", 5)
    assert f"{text}, dev" in other.output


def test_evaluate_takes_no_text_for_granted(trained, text, tmp_path):
    """A model without its run was trained on who knows what, and not on the default."""
    folder, _ = trained
    save_model(tmp_path / "m", load_model(folder), load_tokenizer(folder))
    lost = run("evaluate", "--model", tmp_path / "m", code=2)
    assert "no run of `glassformer train`; give --text" in one_clean_line(lost)
    same = run("evaluate", "--model", tmp_path / "m", "--text", text)
    assert same.output == run("evaluate", "--model", folder).output
    wrong = run("evaluate", "--model", folder, "--source", text, "--target", text, code=2)
    assert "holds a Decoder; give --text" in one_clean_line(wrong)
    for option, value in (("--beams", 2), ("--tokenize", "zh")):
        idle = run("evaluate", "--model", folder, option, value, code=2)
        assert "--beams and --tokenize are for translators" in one_clean_line(idle)


def test_info(trained):
    folder, _ = trained
    machine = run("info").output
    assert f"torch                {torch.__version__}" in machine
    assert "preset small         1,041,536 parameters" in machine
    about = run("info", "--model", folder).output
    size = sum(p.numel() for p in load_model(folder).parameters())
    assert f"{size:,} parameters: 2 layers, width 64" in about
    assert "cache per token    1,024 bytes" in about
    assert "8 of 8 steps" in about
    assert "dev loss" in about


def test_resume_goes_on_bit_for_bit(text, tmp_path, monkeypatch):
    """Ctrl-C in step 3, twice over: the end is that of a run that nobody stopped."""
    before = signal.getsignal(signal.SIGINT)  # ignored, if the tests run in the background
    options = ["--text", text, "--steps", 8, "--dropout", 0.1, "--save-every", 5, *SMALL]
    run("train", "--out", tmp_path / "whole", *options)

    def interrupting(console, trainer):
        def show(report):
            if report.step in (3, 6):
                signal.raise_signal(signal.SIGINT)

        return nullcontext(show)

    monkeypatch.setattr(training_run, "progress_bar", interrupting)
    stopped = run("train", "--out", tmp_path / "part", *options, code=130)
    assert "Stopped after step 3" in stopped.output
    command = stopped.output.splitlines()[-1].strip()
    assert command == f"glassformer train --resume {tmp_path / 'part'}"
    again = run(*command.split()[1:], code=130)
    assert "Stopped after step 6" in again.output
    assert signal.getsignal(signal.SIGINT) is before
    run(*command.split()[1:])
    run(*command.split()[1:])  # a finished run stays as it is
    states = [
        torch.load(tmp_path / name / "training_state.pt", weights_only=True)
        for name in ("whole", "part")
    ]
    assert states[0]["step"] == states[1]["step"] == 8
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name]), name
    histories = [state["history"]["values"] for state in states]
    seconds = 5
    keep = [i for i in range(7) if i != seconds]
    torch.testing.assert_close(
        histories[0][:, keep], histories[1][:, keep], rtol=0, atol=0, equal_nan=True
    )


def test_resume_refuses_what_contradicts_the_run(trained, text, tmp_path):
    folder, _ = trained
    lr = run("train", "--resume", folder, "--lr", 0.5, code=2)
    assert "--lr 0.5 contradicts the run" in lr.stderr
    steps = run("train", "--resume", folder, "--steps", 9, code=2)
    assert "--steps 9 contradicts" in steps.stderr
    out = run("train", "--resume", folder, "--out", tmp_path / "other", code=2)
    assert "--out" in out.stderr
    run("train", "--resume", folder, "--steps", 8, "--text", text, "--out", folder)


def test_resume_takes_a_default_that_is_typed_out(trained):
    """What a recipe leaves open has a value all the same, and that is no contradiction."""
    folder, _ = trained
    run(
        "train", "--resume", folder, "--lr", 4e-3, "--warmup", 0, "--stride", 13,
        "--eval-every", 1, "--save-every", 1,
    )  # fmt: skip
    other = run("train", "--resume", folder, "--stride", 12, code=2)
    assert "--stride 12 contradicts the run" in other.stderr
    assert "which has 13" in other.stderr


def test_a_text_may_move_but_not_change(text, tmp_path):
    copy, moved = tmp_path / "lines.txt", tmp_path / "moved.txt"
    copy.write_bytes(text.read_bytes())
    run("train", "--text", copy, "--out", tmp_path / "run", "--steps", 2, *SMALL)
    copy.rename(moved)
    for command in (["train", "--resume"], ["evaluate", "--model"]):
        lost = run(*command, tmp_path / "run", code=2)
        assert "say where with --text" in one_clean_line(lost)
    run("train", "--resume", tmp_path / "run", "--text", moved)
    assert f"{moved}, dev" in run("evaluate", "--model", tmp_path / "run").output


def test_resume_repairs_the_model_beside_its_state(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    (folder / "model.safetensors").write_bytes(b"")
    run("train", "--resume", folder)
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (trained[0] / name).read_bytes()


def test_resume_refuses_a_text_that_changed(trained, text, tmp_path):
    copy = tmp_path / "lines.txt"
    copy.write_bytes(text.read_bytes())
    run("train", "--text", copy, "--out", tmp_path / "run", "--steps", 2, *SMALL)
    copy.write_text(copy.read_text(encoding="utf-8").replace("saw", "was"), encoding="utf-8")
    changed = run("train", "--resume", tmp_path / "run", code=2)
    assert "other data" in changed.stderr


def test_resume_needs_a_run(tmp_path):
    save_model(tmp_path / "m", tiny_decoder())
    assert "no run of" in run("train", "--resume", tmp_path / "m", code=2).stderr
    assert "no such folder" in run("train", "--resume", tmp_path / "none", code=2).stderr


def test_a_folder_in_use_is_not_overwritten(trained, text, tmp_path):
    folder, _ = trained
    before = (folder / "record.json").read_bytes()
    used = run("train", "--text", text, "--out", folder, code=2)
    assert f"continue its run with --resume {folder}" in used.stderr
    assert (folder / "record.json").read_bytes() == before


def test_two_runs_do_not_share_a_folder(trained, text):
    folder, _ = trained
    with sole_run(folder):
        busy = run("train", "--resume", folder, code=2)
    assert "another run saves into it" in one_clean_line(busy)
    run("train", "--resume", folder)


def test_curves_for_tensorboard(text, tmp_path):
    options = ["--text", text, "--out", tmp_path / "run", "--steps", 3, *SMALL]
    run("train", *options, "--tensorboard", tmp_path / "curves")
    (events,) = (tmp_path / "curves").iterdir()
    written = events.read_bytes()
    assert b"loss/train" in written
    assert b"loss/dev" in written
    file = tmp_path / "file"
    file.write_text("")
    for curves in (file, file / "log"):
        refused = run("train", *options[:3], tmp_path / "r", "--tensorboard", curves, code=2)
        assert f"--tensorboard {curves}: {file} is a file" in one_clean_line(refused)
        assert refused.stdout == ""


def test_errors_are_one_line(trained, text, tmp_path):
    folder, _ = trained
    missing = run("train", "--text", tmp_path / "no.txt", "--out", tmp_path / "r", code=2)
    assert "no.txt" in one_clean_line(missing)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("caf\xe9\n".encode("latin-1") * 3)
    bad = run("train", "--text", latin, "--out", tmp_path / "r", code=2)
    assert "line 1" in one_clean_line(bad)
    large = run("train", "--text", text, "--out", tmp_path / "r", "--vocab-size", 99999, code=2)
    assert "vocab_size=99999" in one_clean_line(large)
    half = run(
        "train", "--text", text, "--out", tmp_path / "r", *SMALL, "--precision", "float16",
        "--device", "cpu", code=2,
    )  # fmt: skip
    assert "float16" in one_clean_line(half)
    for name in ("toaster", "meta"):
        device = run("generate", "--model", folder, "--prompt", "a", "--device", name, code=2)
        assert f"--device={name} is no device" in one_clean_line(device)
    seed = run("generate", "--model", folder, "--prompt", "a", "--seed", 2**64, code=2)
    assert f"seed={2**64} must be" in one_clean_line(seed)
    window = run("evaluate", "--model", folder, "--window", 14, code=2)
    assert "--window 14 must be from 1 to 13" in one_clean_line(window)
    name = run("train", "--text", text, "--out", tmp_path / ("r" * 300), *SMALL, code=2)
    assert "File name too long" in one_clean_line(name)
    nameless = run("generate", "--model", "", "--prompt", "a", code=2)
    assert "--model '' is empty" in one_clean_line(nameless)
    long = run("generate", "--model", folder, "--prompt", "light " * 13, code=2)
    assert "tokens is too long to write on from, as there is room for 13" in one_clean_line(long)
    penalty = ["--repetition-penalty", 1e-40]
    tiny = run("generate", "--model", folder, "--prompt", "a", *penalty, code=2)
    assert "repetition_penalty=1e-40 must be" in one_clean_line(tiny)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--eval-every", 0, "eval_every=0 must be at least 1"),
        ("--save-every", 0, "save_every=0 must be at least 1"),
        ("--batch-size", 0, "batch_size=0 must be at least 1"),
        ("--length", 0, "length=0 must be at least 1"),
        ("--stride", 14, "stride=14 must be from 1 to length=13"),
        ("--stride", 0, "stride=0 must be from 1 to length=13"),
        ("--seed", -1, "seed=-1 must be from 0"),
        ("--seed", 2**63, f"seed={2**63} must be from 0"),
        ("--precision", "float16", "precision='float16' needs a CUDA device"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_before_any_work(
    text, tmp_path, option, value, said
):
    out = ["--out", tmp_path / "r", "--device", "cpu"]
    refused = run("train", "--text", text, *out, *SMALL, option, value, code=2)
    assert said in one_clean_line(refused)
    assert refused.stdout == ""
    assert not (tmp_path / "r").exists()


def test_a_record_changed_by_hand(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    record = read_record(folder)
    for change in ({**record["run"], "lr": "fast"}, 3):
        (folder / "record.json").write_text(json.dumps({**record, "run": change}))
        assert "no run of" in one_clean_line(run("train", "--resume", folder, code=2))


def test_the_current_folder_is_not_replaced_under_our_feet(trained, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    monkeypatch.chdir(folder)
    assert "is the current folder" in one_clean_line(run("train", "--resume", ".", code=2))
    assert sorted(folder.iterdir())


def test_a_terminal_of_few_characters_loses_them_and_nothing_else(text, tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    options = ["--text", text, "--out", tmp_path / "run", "--steps", 2, *SMALL]
    done = subprocess.run(
        [sys.executable, "-m", "glassformer", "train", *map(str, options)],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"Training a tokenizer of 307 pieces ?")


def test_a_damaged_model_and_one_of_another_kind(trained, tmp_path):
    from support.core import translator_config

    save_model(tmp_path / "t", EncoderDecoder(translator_config()))
    kind = run("generate", "--model", tmp_path / "t", "--prompt", "a", code=2)
    assert "holds an EncoderDecoder" in one_clean_line(kind)
    (tmp_path / "t" / "model.safetensors").write_bytes(b"")
    damaged = run("evaluate", "--model", tmp_path / "t", code=2)
    assert "model.safetensors" in one_clean_line(damaged)


def test_ctrl_c_before_there_is_anything_to_save(text, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Recipe, "tokenizer", interrupted)
    result = run("train", "--text", text, "--out", tmp_path / "r", code=130)
    assert "Interrupted" in result.stderr


def test_a_second_ctrl_c_stops_at_once():
    with terminal.interruptible() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_says_how_to_go_on(text, tmp_path, monkeypatch):
    def interrupting(console, trainer):
        def show(report):
            if report.step == 3:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

        return nullcontext(show)

    monkeypatch.setattr(training_run, "progress_bar", interrupting)
    options = ["--text", text, "--out", tmp_path / "a run", "--steps", 8, *SMALL]
    stopped = run("train", *options, "--save-every", 2, code=130)
    assert "Stopped after step 3; step 2 is saved" in stopped.output
    assert stopped.output.endswith(f"  glassformer train --resume '{tmp_path / 'a run'}'\n")
    assert read_record(tmp_path / "a run")["step"] == 2


def test_a_closed_pipe_ends_quietly_and_what_was_reported_is_saved(text, tmp_path):
    options = ["--text", text, "--out", tmp_path / "run", "--steps", "300", *SMALL]
    with subprocess.Popen(
        [sys.executable, "-m", "glassformer", "train", *map(str, options), "--eval-every", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        for line in process.stdout:
            if line.startswith("step 2/"):
                break
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) != 0
    assert errors == ""
    assert 4 <= read_record(tmp_path / "run")["step"] < 300


def test_the_bar_is_for_terminals(text, tmp_path):
    from io import StringIO

    from rich.console import Console

    stream = StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    recipe = Recipe(text=str(text), preset="tiny", vocab_size=307, length=13, steps=2)
    corpus = recipe.corpus()
    tokenizer = train_tokenizer(corpus.train, 307)
    trainer = recipe.trainer(corpus, tokenizer, torch.device("cpu"))
    with terminal.progress_bar(console, trainer) as show:
        for report in trainer.run():
            show(report)
    assert "2/2" in stream.getvalue()
    assert "tokens/s" in stream.getvalue()


def test_a_real_process_stops_with_ctrl_c_and_goes_on(text, tmp_path):
    """``python -m glassformer``, SIGINT in the middle, and the printed command."""
    command = [sys.executable, "-m", "glassformer"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    options = ["--text", text, "--out", tmp_path / "run", "--steps", "300", *SMALL]
    process = subprocess.Popen(
        [*command, "train", *map(str, options), "--eval-every", "2", "--save-every", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    for line in process.stdout:
        if line.startswith("step 2/"):
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors == ""
    resume = output.splitlines()[-1].split()
    assert resume == ["glassformer", "train", "--resume", str(tmp_path / "run")]
    record = read_record(tmp_path / "run")
    assert 2 <= record["step"] < 300
    assert f"Stopped after step {record['step']}" in output
