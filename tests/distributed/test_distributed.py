"""Two processes that train together do what one does (two processes on the CPU, through Gloo)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from glassformer import Decoder
from glassformer.errors import CheckpointError, ConfigError
from glassformer.training import load_checkpoint, load_model, read_record
from glassformer.training.distributed import (
    ShardedData,
    agree,
    gather,
    process_group,
    share,
    whole_model,
    wrap,
)
from support.core import decoder_config, scrambled
from support.together import Sentences, figures, one_process, trainer
from torch.testing import assert_close

TESTS = Path(__file__).parents[1]


def run_two(*what):
    """Two processes, as torchrun starts them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, *map(str, what)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(TESTS), "CUDA_VISIBLE_DEVICES": ""},
    )


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def together(request, tmp_path_factory):
    """Strategy, folder, exit code and the results of both processes."""
    folder = tmp_path_factory.mktemp(request.param)
    done = run_two(TESTS / "distributed" / "worker.py", request.param, folder)
    files = [folder / f"{rank}.json" for rank in range(2)]
    assert all(file.exists() for file in files), done.stderr[-3000:]
    results = [json.loads(file.read_text()) for file in files]
    return request.param, folder, done.returncode, results


@pytest.fixture
def one_of_one(monkeypatch):
    """What torchrun tells a single process."""
    for name, value in one_process().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def alone():
    return json.loads(json.dumps(figures()))


def test_losses_gradients_and_weights_equal_one_process(together, alone):
    """Micro-batches have unequal numbers of tokens, and five do not divide by two."""
    for result in together[3]:
        got = result["figures"]
        assert [step[1] for step in got["steps"]] == [step[1] for step in alone["steps"]]
        for mine, yours in zip(got["steps"], alone["steps"], strict=True):
            assert mine[::2] == pytest.approx(yours[::2], rel=1e-6)
            assert (mine[3] is None) == (yours[3] is None)
            assert mine[3] is None or mine[3] == pytest.approx(yours[3], rel=1e-6)
        assert got["best"] == pytest.approx(alone["best"], rel=1e-6)
        assert got["weights"].keys() == alone["weights"].keys()
        for name, values in alone["weights"].items():
            assert got["weights"][name] == pytest.approx(values, abs=1e-6), name


def test_O18_uneven_shares_score_every_sentence_once(together, alone):
    results = together[3]
    assert [len(result["shares"][0]) for result in results] == [3, 2]
    for result in results:
        assert result["gathered"] == [0, 1, 4, 9, 16]
        assert result["figures"]["score"] == pytest.approx(alone["score"], rel=1e-6)


def test_O29_one_writer_and_a_checkpoint_that_any_number_of_processes_reads(together):
    strategy, folder, code, results = together
    assert all(result["resumed"]["complete"] for result in results)
    if strategy == "ddp":
        assert code != 0  # the writer was killed, and torchrun ended the other one
    model = load_model(folder / "run")  # the earlier checkpoint, complete
    assert set(model.state_dict()) == set(scrambled(decoder_config()).state_dict())
    with pytest.raises(CheckpointError, match="2 processes"):
        load_checkpoint(folder / "run", trainer(dropout=0.3, steps=4, accumulate=1))


def test_a_resumed_run_is_the_uninterrupted_one(together):
    hashes = {result["resumed"][run] for result in together[3] for run in ("whole", "resumed")}
    assert len(hashes) == 1


def test_the_model_can_be_used_by_one_process_alone(together):
    first, second = (result["unequal"] for result in together[3])
    assert len(first) == 1
    assert first == second


def test_O15_layer_drop_leaves_equal_weights(together):
    if together[0] == "fsdp":
        return  # refused, see below
    (steps, first), (_, second) = (result["layer_drop"] for result in together[3])
    assert steps == [1, 2, 3, 4]
    assert first == second


def test_the_command_line_trains_in_several_processes(tmp_path):
    text, out = tmp_path / "text", tmp_path / "run"
    lines = [f"the river number {i} saw the stone {i * i % 17}" for i in range(211)]
    text.write_text("\n".join(lines), encoding="utf-8")
    options = ["--preset=tiny", "--vocab-size=307", "--length=13", "--batch-size=3", "--steps=3"]
    done = run_two("-m", "glassformer", "train", f"--text={text}", f"--out={out}", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Training a tokenizer") == 1  # the first process speaks
    assert "2 processes" in read_record(out)["data"]
    assert isinstance(load_model(out), Decoder)


def test_what_cannot_work_is_refused(no_shape_checks):
    with pytest.raises(ConfigError, match="layer_drop=0"):
        wrap(scrambled(decoder_config(layer_drop=0.5)), strategy="fsdp")
    with pytest.raises(ConfigError, match="may be ddp or fsdp"):
        wrap(scrambled(decoder_config()), strategy="dp")


def test_alone_nothing_changes(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with process_group("cpu") as device:
        assert device.type == "cpu"
        assert not torch.distributed.is_initialized()
    model = scrambled(decoder_config())
    assert wrap(model) is model
    assert whole_model(model) is model
    assert share([3, 5, 7]) == gather([3, 5, 7]) == [3, 5, 7]
    data = ShardedData(Sentences())
    assert data.fingerprint == Sentences.fingerprint
    assert data.epoch(1) == Sentences().epoch(1)


def test_one_process_under_torchrun_trains_alone(one_of_one):
    with process_group("cpu") as device:
        assert device.type == "cpu"
        assert torch.distributed.is_initialized()
        model = scrambled(decoder_config())
        assert wrap(model) is model
        assert not agree(False, device)
        assert agree(True, device)
    assert not torch.distributed.is_initialized()
    with (
        pytest.raises(ConfigError, match="--device=abacus is no device"),
        process_group("abacus", given_as="--device"),
    ):
        pass


@pytest.mark.parametrize("n_processes", [2, 3, 7])
def test_O19_shares_differ_between_epochs_and_cover_each_of_them(n_processes, monkeypatch):
    def of(rank, epoch):
        monkeypatch.setattr("glassformer.training.distributed.world_size", lambda: n_processes)
        monkeypatch.setattr("glassformer.training.distributed.rank", lambda: rank)
        return ShardedData(Sentences()).epoch(epoch)

    for epoch in (0, 1):
        shares = [of(rank, epoch) for rank in range(n_processes)]
        assert len({len(mine) for mine in shares}) == 1  # so nobody waits for ever
        real = [batch for mine in shares for batch in mine if min(batch) >= 0]
        assert sorted(real) == sorted(Sentences().epoch(epoch))
        assert shares == [of(rank, epoch) for rank in range(n_processes)]
    assert of(0, 0) != of(0, 1)
    assert f"{n_processes} processes" in ShardedData(Sentences()).fingerprint


def test_a_batch_that_only_keeps_step_counts_no_target():
    data = ShardedData(Sentences())
    real, idle = data.load([3, 8]), data.load([~3, ~8])
    assert_close(idle.inputs, real.inputs)
    assert real.target_mask.any()
    assert not idle.target_mask.any()
