"""``glassformer translate``: line n of the output belongs to line n of the input."""

import json
import os
import subprocess
import sys

import pytest
import torch
from glassformer.data import train_tokenizer
from glassformer.training import save_model
from glassformer.translation import load_translator
from support.commands import one_clean_line, run
from support.core import scrambled, translator_config

LINES = ["so it is", "it was so", "", "what is it", "  ", "so what"]
SHORT = ["--beams", "2", "--max-new-tokens", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = train_tokenizer([*LINES, "is it so", "it was what it was"], 271)
    torch.manual_seed(3)
    config = translator_config(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id)
    path = tmp_path_factory.mktemp("translator") / "model"
    save_model(path, scrambled(config, dtype=torch.float32), tokenizer)
    return path


@pytest.fixture(scope="module")
def want(folder):
    """The lines that the library gives."""
    found = load_translator(folder).n_best(LINES, n_best=2, n_beams=2, max_new_tokens=4)
    return [[(t.text, t.score) for t in translations] for translations in found]


def shown(text):
    return " ".join(text.splitlines())


def test_lines_of_standard_input(folder, want):
    expected = [shown(best[0][0]) for best in want]
    assert expected[2] == expected[4] == ""
    assert len(set(expected)) > 3
    for ending in ("\n", "\r\n"):
        result = run("translate", "--model", folder, *SHORT, stdin=ending.join(LINES) + ending)
        assert result.stdout.split("\n") == [*expected, ""]
    assert run("translate", "--model", folder, *SHORT, "-", stdin="\n".join(LINES)).stdout == (
        result.stdout
    )
    assert result.stderr == ""
    assert run("translate", "--model", folder, stdin="").stdout == ""


def test_lines_of_files_in_batches_of_any_size(folder, want, tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + "\n".join(LINES[:2]).encode())
    (tmp_path / "b").write_text("\n".join(LINES[2:]))
    files = [tmp_path / "a", tmp_path / "b"]
    for size in (1, 4, 64):
        result = run("translate", "--model", folder, *files, *SHORT, "--batch-size", size)
        assert result.stdout.split("\n")[:-1] == [shown(best[0][0]) for best in want]


def test_only_a_line_feed_ends_a_line(folder):
    odd = "so\u2028it\x85is\x0bso\x0cwhat"
    result = run("translate", "--model", folder, *SHORT, stdin=f"{odd}\nso")
    assert result.stdout.count("\n") == 2


def test_n_best(folder, want):
    result = run("translate", "--model", folder, *SHORT, "--n-best", 2, stdin="\n".join(LINES))
    rows = [
        f"{number}\t{score:.4f}\t{shown(text)}"
        for number, translations in enumerate(want)
        for text, score in translations
    ]
    assert result.stdout.split("\n")[:-1] == rows
    assert rows[4].startswith("2\t0.0000\t")


def test_json_is_one_object_a_line(folder, want):
    result = run(
        "translate", "--model", folder, *SHORT, "--n-best", 2, "--json", stdin="\n".join(LINES)
    )
    rows = [json.loads(line) for line in result.stdout.split("\n")[:-1]]
    assert [row["source"] for row in rows] == LINES
    for row, translations in zip(rows, want, strict=True):
        assert [t["text"] for t in row["translations"]] == [text for text, _ in translations]
        scores = [t["score"] for t in row["translations"]]
        assert scores == pytest.approx([score for _, score in translations], abs=1e-5)


def test_what_a_program_writes_line_by_line_is_answered_line_by_line(folder, want):
    """A pipe that stays open: each answer comes before the next question is asked."""
    with subprocess.Popen(
        [sys.executable, "-m", "glassformer", "translate", "--model", str(folder), *SHORT,
         "--batch-size", "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    ) as process:  # fmt: skip
        for line, translations in zip(LINES[:3], want, strict=False):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            answer = process.stdout.readline().decode()
            assert answer == shown(translations[0][0]) + "\n"
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_at_a_keyboard_each_line_is_answered_at_once(folder, monkeypatch):
    from glassformer.cli import write

    sizes = []
    monkeypatch.setattr(write, "_batches", lambda files, size: sizes.append(size) or [])

    monkeypatch.setattr(write, "_at_keyboard", lambda files: True)
    run("translate", "--model", folder)
    monkeypatch.setattr(write, "_at_keyboard", lambda files: False)
    run("translate", "--model", folder)
    assert sizes == [1, 64]


def test_errors_are_one_line(folder, tmp_path, trained):
    long = run("translate", "--model", folder, stdin="so\n" + "so it is " * 9, code=2)
    assert "at most 23; split it into sentences: 'so it is" in one_clean_line(long)
    latin = tmp_path / "latin"
    latin.write_bytes(b"so\ncaf\xe9\n")
    wrong = run("translate", "--model", folder, latin, code=2)
    assert "latin, line 2: no UTF-8 (byte 0xe9)" in one_clean_line(wrong)
    wrong = run("translate", "--model", folder, stdin=b"caf\xe9\n", code=2)
    assert "standard input, line 1: no UTF-8" in one_clean_line(wrong)
    missing = run("translate", "--model", folder, tmp_path / "none", code=2)
    assert "none: cannot be read (No such file" in one_clean_line(missing)
    beams = run("translate", "--model", folder, "--n-best", 5, code=2)
    assert "--n-best 5 needs at least as many beams, and --beams is 4" in one_clean_line(beams)
    size = run("translate", "--model", folder, "--batch-size", 0, code=2)
    assert "--batch-size 0 must be at least 1" in one_clean_line(size)
    kind = run("translate", "--model", trained[0], code=2)
    assert "holds a Decoder, which does not translate" in one_clean_line(kind)
    device = run("translate", "--model", folder, "--device", "toaster", code=2)
    assert "--device=toaster is no device" in one_clean_line(device)


def test_what_was_translated_before_an_error_is_there(folder, want):
    text = f"{LINES[0]}\n" + "so it is " * 9
    result = run("translate", "--model", folder, *SHORT, "--batch-size", 1, stdin=text, code=2)
    assert result.stdout == shown(want[0][0][0]) + "\n"
    assert result.stderr.count("\n") == 1
