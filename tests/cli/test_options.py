"""Options from a file, help that teaches, and JSON for scripts."""

import json
import re
import shlex

import pytest
import torch
import typer
from glassformer.cli import app
from glassformer.cli.terminal import print_json
from glassformer.training import read_record
from support.commands import SMALL, one_clean_line, run

COMMANDS = typer.main.get_command(app).commands


def settings_of(*arguments):
    """The options of a training command as the program understands them."""
    return COMMANDS["train"].make_context("train", [str(a) for a in arguments]).params


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("run.yaml", "preset: tiny\nvocab-size: 307\nlr: 1e-3\ncheckpoint_blocks: true\nstride:\n"),
        ("run.yml", "{preset: tiny, vocab_size: 307, lr: 0.001, checkpoint-blocks: yes}"),
        ("run.toml", 'preset = "tiny"\nvocab-size = 307\nlr = 1e-3\ncheckpoint-blocks = true\n'),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_a_file_gives_options_and_what_is_typed_wins(tmp_path, name, lines):
    path = tmp_path / name
    path.write_text(lines)
    found = settings_of("--config", path)
    wanted = {"preset": "tiny", "vocab_size": 307, "lr": 0.001, "checkpoint_blocks": True}
    assert {key: getattr(found[key], "value", found[key]) for key in wanted} == wanted
    assert found["stride"] is None
    for order in (["--config", path, "--lr", 2, "--preset", "base"],
                  ["--lr", 2, "--preset", "base", "--config", path]):  # fmt: skip
        found = settings_of(*order)
        assert (found["lr"], found["preset"], found["vocab_size"]) == (2, "base", 307)


def test_a_run_from_a_file_is_the_run_that_would_be_typed(tmp_path, text, trained):
    config = tmp_path / "run.yaml"
    names = [option.removeprefix("--") for option in SMALL[::2]]
    lines = [f"{name}: {value}" for name, value in zip(names, SMALL[1::2], strict=True)]
    config.write_text("\n".join([*lines, f"text: {text}", "steps: 8", f"out: {tmp_path / 'a'}"]))
    run("train", "--config", config)
    record, typed = read_record(tmp_path / "a"), read_record(trained[0])
    assert record["run"] == typed["run"]
    assert record["files"]["model.safetensors"] == typed["files"]["model.safetensors"]
    # the file of a run goes with --resume, and one that contradicts the run is refused
    run("train", "--config", config, "--resume", tmp_path / "a")
    config.write_text(config.read_text().replace("steps: 8", "steps: 9"))
    other = run("train", "--config", config, "--resume", tmp_path / "a", code=2)
    assert "--steps 9 contradicts the run" in one_clean_line(other)


def test_every_command_takes_a_file(trained, tmp_path):
    folder, _ = trained
    assert all("config" in {p.name for p in command.params} for command in COMMANDS.values())
    (tmp_path / "g.yaml").write_text(
        f"model: {folder}\nprompt: light\nseed: 3\nmax-new-tokens: 5\ndevice: cpu\n"
    )
    written = run("generate", "--config", tmp_path / "g.yaml").stdout
    assert written == run(
        "generate", "--model", folder, "--prompt", "light", "--seed", 3, "--max-new-tokens", 5
    ).stdout  # fmt: skip
    (tmp_path / "e.toml").write_text(f'model = "{folder}"\nsplit = "test"\njson = true\n')
    assert json.loads(run("evaluate", "--config", tmp_path / "e.toml").stdout)["split"] == "test"


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [
        ("a.yaml", "vocabsize: 307", "unknown option 'vocabsize'; did you mean vocab-size?"),
        ("a.yaml", "zzz: 307", "unknown option 'zzz'; it may be text, data, source"),
        ("a.yaml", "resume: runs/a", "unknown option 'resume'"),
        ("a.yaml", "config: b.yaml", "unknown option 'config'"),
        ("a.yaml", "1: 2", "unknown option 1"),
        ("a.yaml", "vocab-size: 3\nvocab_size: 5", "'vocab_size' is given twice; remove one"),
        ("a.yaml", "steps: [3, 5]", "steps: [3, 5] is no value of this option"),
        ("a.yaml", "steps: {a: 3}", "is no value of this option"),
        ("a.yaml", "steps: true", "steps: True is no value of this option"),
        ("a.yaml", "checkpoint-blocks: 1", "checkpoint-blocks: 1 is no value of this option"),
        ("a.yaml", "- steps", "needs lines such as `steps: 1000`"),
        ("a.yaml", "a: [", "no YAML"),
        ("a.toml", "steps: 3", "no TOML"),
        ("a.json", "{}", "may be a file.yaml, file.yml or file.toml"),
        ("a.yaml", None, "cannot be read (No such file or directory)"),
        ("a.yaml", b"a: \xe9", "cannot be read (no UTF-8)"),
    ],
)
def test_a_file_with_a_mistake_is_refused_before_any_work(tmp_path, name, lines, said):
    path = tmp_path / name
    if lines is not None:
        path.write_bytes(lines.encode() if isinstance(lines, str) else lines)
    refused = run("train", "--config", path, "--out", tmp_path / "r", code=2)
    assert f"--config {path}: " in one_clean_line(refused)
    assert said in refused.stderr
    assert not (tmp_path / "r").exists()


def test_an_empty_file_says_nothing(tmp_path):
    for name in ("a.yaml", "a.toml"):
        (tmp_path / name).write_text("")
        assert settings_of("--config", tmp_path / name)["steps"] == settings_of()["steps"]


def examples(command):
    """The indented lines of a command's help."""
    return [line.strip() for line in (command.help or "").splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches_by_examples_that_run(name):
    """Each example is a line that this program understands."""
    command = COMMANDS[name]
    found = examples(command)
    assert found
    for line in found:
        line = re.sub(r"^(echo .* \| |torchrun .* -m )", "", line).partition(" > ")[0]
        program, called, *arguments = shlex.split(line)
        assert (program, called) == ("glassformer", name)
        if "--config" not in arguments:  # whose file is not there
            command.make_context(name, arguments)
    page = run(name, "--help").stdout
    assert "glassformer " + name in page
    assert all(param.help for param in command.params if param.name != "help")


def test_options_in_prose_are_code():
    """On the site a bare ``--beams`` would become a dash."""
    for command in COMMANDS.values():
        prose = [line for line in command.help.splitlines() if not line.startswith("    ")]
        for text in (*prose, *(param.help for param in command.params if param.name != "help")):
            assert not re.search(r"(?<!`)--\w", text), text


def test_the_program_lists_its_commands():
    page = run("--help").stdout
    assert all(name in page for name in COMMANDS)
    assert set(COMMANDS) == {
        "train", "translate", "generate", "evaluate", "prune", "bench", "info",
    }  # fmt: skip


def test_json_of_an_evaluation(trained):
    folder, _ = trained
    found = json.loads(run("evaluate", "--model", folder, "--json").stdout)
    rows = run("evaluate", "--model", folder).stdout
    assert f"{found['nats_per_token']:.4f}" in rows
    assert f"{found['bits_per_character']:.4f}" in rows
    assert f"{found['tokens']:,}" in rows
    assert found["split"] == "dev"


def test_json_of_info(trained):
    folder, _ = trained
    found = json.loads(run("info", "--model", folder, "--json").stdout)
    assert found["torch"] == torch.__version__
    assert found["model"]["config"]["kind"] == "decoder"
    assert found["model"]["parameters"] == read_record(folder)["parameters"]
    assert (found["step"], found["steps"]) == (8, 8)
    presets = json.loads(run("info", "--json").stdout)
    assert presets["preset small"]["parameters"] == 1_041_536


def test_json_has_no_words_of_its_own(capsys):
    print_json({"a": [1.5, float("inf")], "b": float("nan"), "ü": "\U0001f600"})
    assert capsys.readouterr().out == '{"a": [1.5, null], "b": null, "ü": "\U0001f600"}\n'


def test_an_error_stays_one_line_beside_json(tmp_path):
    failed = run("evaluate", "--model", tmp_path / "none", "--json", code=2)
    assert failed.stdout == ""
    assert "no such folder" in one_clean_line(failed)
