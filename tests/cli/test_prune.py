"""``glassformer prune``: a smaller model that is the one the library makes, and its figures."""

import json
import re

import pytest
import torch
from glassformer import DecoderConfig
from glassformer.data import load_text, windows
from glassformer.evaluation import evaluate_nll
from glassformer.pruning import (
    drop_layers,
    head_importance,
    layer_importance,
    prune_heads,
    weakest_heads,
)
from glassformer.training import WindowBatches, load_model, load_tokenizer, save_model
from support.commands import one_clean_line, run
from support.core import scrambled, translator_config
from torch.testing import assert_close


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """A decoder of three layers whose every weight is random, with the tokenizer of the run."""
    tokenizer = load_tokenizer(trained[0])
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size, max_len=13, d_model=30, n_heads=3, n_layers=3, d_ff=37
    )
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("whole") / "model"
    save_model(path, scrambled(config, dtype=torch.float32), tokenizer)
    return path


def judge(folder, text, n):
    ids = load_tokenizer(folder).encode_stream(load_text(text).train)
    data = WindowBatches(windows(ids, 13, 13), 8, seed=0)
    return [data.load(indices) for indices in data.epoch(0)[:n]]


def dev_loss(folder, text):
    ids = load_tokenizer(folder).encode_stream(load_text(text).dev)
    return evaluate_nll(load_model(folder), ids, window=13).nll


def size(folder):
    return sum(p.numel() for p in load_model(folder).parameters())


def test_heads_are_those_that_matter_least(folder, text, tmp_path):
    options = ["--model", folder, "--text", text, "--heads", 2, "--batches", 3]
    found = json.loads(run("prune", *options, "--out", tmp_path / "a", "--json").stdout)
    model = load_model(folder)
    weakest = weakest_heads(head_importance(model, judge(folder, text, 3)), 2)
    assert found["removed"] == {"heads": weakest, "layers": {}}
    want, got = prune_heads(model, weakest), load_model(tmp_path / "a")
    tokens = torch.arange(1, 12)[None]
    assert_close(got(tokens), want.eval()(tokens))
    assert found["before"]["parameters"] == size(folder)
    assert found["after"]["parameters"] == size(tmp_path / "a") < size(folder)
    assert found["before"]["nats_per_token"] == pytest.approx(dev_loss(folder, text), abs=1e-6)
    after = dev_loss(tmp_path / "a", text)
    assert found["after"]["nats_per_token"] == pytest.approx(after, abs=1e-6)
    rows = run("prune", *options, "--out", tmp_path / "b").stdout
    assert f"{found['after']['nats_per_token']:.4f} nats per token" in rows
    assert f"{found['after']['parameters']:,} parameters" in rows
    places = ", ".join(f"{name} {' '.join(map(str, n))}" for name, n in weakest.items())
    assert f"without heads        {places}\n" in rows


def test_layers_go_first_and_a_second_time_keeps_the_numbers(folder, text, tmp_path):
    """Numbers of layers are those of the model before any pruning, whatever is gone already."""
    options = ["--text", text, "--layers", 1, "--batches", 2, "--json"]
    scores = layer_importance(load_model(folder), judge(folder, text, 2))
    one = json.loads(run("prune", "--model", folder, *options, "--out", tmp_path / "a").stdout)
    weakest = min(scores, key=scores.get)
    assert one["removed"]["layers"] == {"decoder": [int(weakest.rpartition(".")[2])]}
    without = drop_layers(load_model(folder), [0])
    save_model(tmp_path / "first gone", without, load_tokenizer(folder))
    scores = layer_importance(without, judge(folder, text, 2))
    two = json.loads(
        run("prune", "--model", tmp_path / "first gone", *options, "--out", tmp_path / "b").stdout
    )
    place = int(min(scores, key=scores.get).rpartition(".")[2])
    assert two["removed"]["layers"] == {"decoder": [[1, 2][place]]}
    want, got = drop_layers(without, [[1, 2][place]]), load_model(tmp_path / "b")
    assert want.config.dropped_layers == got.config.dropped_layers
    tokens = torch.arange(1, 12)[None]
    assert_close(got(tokens), want.eval()(tokens))
    both = ["--layers", 1, "--heads", 2, "--text", text, "--batches", 2, "--json"]
    found = json.loads(run("prune", "--model", folder, *both, "--out", tmp_path / "c").stdout)
    assert len(load_model(tmp_path / "c").decoder.blocks) == 2
    assert sum(map(len, found["removed"]["heads"].values())) == 2
    refused = run("prune", "--model", folder, "--layers", 3, "--text", text, "--out",
                  tmp_path / "d", code=2)  # fmt: skip
    assert "leave at least one" in one_clean_line(refused)
    assert not (tmp_path / "d").exists()


def test_chance_is_the_same_for_the_same_seed(folder, text, tmp_path):
    options = ["--model", folder, "--text", text, "--heads", 3, "--by", "random", "--json"]
    removed = [
        json.loads(run("prune", *options, "--seed", seed, "--out", tmp_path / str(i)).stdout)[
            "removed"
        ]
        for i, seed in enumerate([1, 1, 2, 3])
    ]
    assert removed[0] == removed[1]
    assert removed[2] != removed[0] or removed[3] != removed[0]


def test_the_run_of_a_model_gives_its_text(trained, tmp_path):
    found = run("prune", "--model", trained[0], "--heads", 1, "--out", tmp_path / "r").stdout
    assert "without heads" in found
    assert f"saved in             {tmp_path / 'r'}" in found
    # and the smaller model remembers it: the loss after pruning is the one that evaluate finds
    after = re.search(r"^after .* ([\d.]+) nats per token$", found, re.MULTILINE)[1]
    rows = run("evaluate", "--model", tmp_path / "r").stdout
    assert f"nats per token       {after}\n" in rows
    lost = run("train", "--resume", tmp_path / "r", code=2)
    assert "training_state.pt: was not saved in this checkpoint" in one_clean_line(lost)


def save_translator(folder, trained, **sizes):
    """A translator of random weights in ``folder / "t"``, and the options that give it pairs."""
    tokenizer = load_tokenizer(trained[0])
    config = translator_config(vocab_size=tokenizer.vocab_size, pad_id=0, **sizes)
    torch.manual_seed(7)
    model = scrambled(config, dtype=torch.float32)
    save_model(folder / "t", model, tokenizer)
    for name in ("a", "b"):
        (folder / name).write_text("\n".join(f"light number {i}" for i in range(300)))
    return model, ["--source", folder / "a", "--target", folder / "b", "--batches", 2]


def test_one_layer_stays_in_each_stack(trained, tmp_path):
    """Layers of an encoder that add nothing matter least, and still one of them must read."""
    model, pairs = save_translator(tmp_path, trained, n_layers=2, n_encoder_layers=2)
    with torch.no_grad():
        for block in model.encoder.blocks:
            for projection in (block.self_attn.o_proj, block.feed_forward.down_proj):
                projection.weight.zero_()
                projection.bias.zero_()
    save_model(tmp_path / "t", model, load_tokenizer(trained[0]))
    command = ["prune", "--model", tmp_path / "t", *pairs, "--json"]
    found = json.loads(run(*command, "--layers", 2, "--out", tmp_path / "s").stdout)
    assert {stack: len(gone) for stack, gone in found["removed"]["layers"].items()} == {
        "encoder": 1,
        "decoder": 1,
    }
    refused = run(*command, "--layers", 3, "--out", tmp_path / "r", code=2)
    assert "--layers 3 of 4 are too many" in one_clean_line(refused)


def test_a_translator(trained, tmp_path):
    _, pairs = save_translator(tmp_path, trained)
    found = json.loads(
        run(
            "prune", "--model", tmp_path / "t", *pairs, "--heads", 4, "--layers", 1,
            "--out", tmp_path / "s", "--json",
        ).stdout
    )  # fmt: skip
    assert found["after"]["parameters"] == size(tmp_path / "s") < size(tmp_path / "t")
    names = {name.rpartition(".")[2] for name in found["removed"]["heads"]}
    assert names <= {"self_attn", "cross_attn"}
    said = run("translate", "--model", tmp_path / "s", "--max-new-tokens", 2, stdin="light\n")
    assert said.stdout.count("\n") == 1


def test_errors_are_one_line(folder, text, tmp_path):
    out = ["--model", folder, "--out", tmp_path / "r"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for options, said in (
        ([*out, "--text", text], "--heads 0 and --layers 0 remove nothing"),
        ([*out, "--text", text, "--heads", -1], "--heads -1 and --layers 0 remove nothing"),
        ([*out, "--text", text, "--heads", 10], "--heads 10 must be from 0 to 9, in steps of 1"),
        ([*out, "--text", text, "--heads", 1, "--seed", 10**23], f"--seed {10**23} must be from 0"),
        ([*out, "--text", text, "--heads", 1, "--seed", -1], "--seed -1 must be from 0"),
        ([*out, "--text", text, "--heads", 1, "--batches", 0], "--batches 0 must be at least 1"),
        ([*out, "--heads", 1], "no run of `glassformer train`; give --text"),
        ([*out[:3], tmp_path / "full", "--heads", 1], "is not empty"),
    ):
        assert said in one_clean_line(run("prune", *options, code=2))
    assert not (tmp_path / "r").exists()
