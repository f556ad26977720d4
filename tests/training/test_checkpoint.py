"""Checkpoints: no crash loses more than the last steps, no mix-up goes unnoticed."""

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from glassformer import Decoder, EncoderDecoder
from glassformer._files import existing_folder, replace_folder
from glassformer.data import Tokenizer, train_tokenizer
from glassformer.errors import CheckpointError
from glassformer.pruning import prune_heads
from glassformer.quantization import (
    add_lora,
    load_lora,
    load_quantized,
    lora_state_dict,
    merge_lora,
    quantize,
    save_lora,
    save_quantized,
)
from glassformer.training import (
    load_checkpoint,
    load_model,
    load_tokenizer,
    load_weights,
    read_record,
    save_checkpoint,
    save_model,
)
from support.core import translator_config
from support.runs import NoisyData, digest, make_trainer, tiny_decoder, token_ids, weights_of
from torch import nn

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tokenizer():
    lines = [f"{a} {b} in the beginning" for a in ("dark", "light") for b in ("sea", "sky", "man")]
    return train_tokenizer(lines, 277)


def same_logits(a, b):
    tokens = token_ids(9)[None]
    return torch.equal(a.eval()(tokens), b.eval()(tokens))


@pytest.mark.parametrize("tied", [True, False])
def test_T03_a_model_comes_back(tmp_path, tied):
    model = tiny_decoder(tie_embeddings=tied)
    save_model(tmp_path / "m", model)
    loaded = load_model(tmp_path / "m")
    assert same_logits(loaded, model)
    assert (loaded.head_weight is loaded.embedding.tokens.weight) is tied
    assert not loaded.training
    assert loaded.config == model.config
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.safetensors",
        "record.json",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["m"]  # nothing is left beside it


def test_a_translator_comes_back(tmp_path):
    model = EncoderDecoder(translator_config()).eval()
    save_model(tmp_path / "m", model)
    source, target = token_ids(7)[None], token_ids(5)[None]
    assert torch.equal(load_model(tmp_path / "m")(source, target), model(source, target))


def test_loading_leaves_the_random_numbers_alone(tmp_path):
    save_model(tmp_path / "m", tiny_decoder())
    before = torch.get_rng_state()
    load_model(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)


def _plain(model, state):
    model.load_state_dict(state)
    return model


def _assigned(model, state):
    model.load_state_dict({k: v.clone() for k, v in state.items()}, assign=True)
    return model


def _from_meta(model, state):
    with torch.device("meta"):
        empty = Decoder(model.config)
    empty.to_empty(device="cpu")
    empty.load_state_dict(state)
    return empty


@pytest.mark.parametrize("how", [_plain, _assigned, _from_meta, lambda m, s: copy.deepcopy(m)])
def test_T01_tied_stays_tied_however_it_is_loaded(how):
    model = tiny_decoder()
    loaded = how(tiny_decoder(), model.state_dict())
    assert loaded.head_weight is loaded.embedding.tokens.weight
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in model.parameters())
    before = loaded.head_weight.detach().clone()
    tokens = token_ids(9)[None]
    loaded(tokens).logsumexp(-1).sum().backward()
    with torch.no_grad():
        loaded.head_weight.sub_(loaded.head_weight.grad)
    assert not torch.equal(loaded.embedding.tokens.weight, before)
    assert loaded.head_weight is loaded.embedding.tokens.weight


def test_T02_a_second_matrix_for_tied_names_is_refused_by_both_names():
    model = tiny_decoder()
    before = digest(model)
    state = {**model.state_dict(), "lm_head.weight": model.head_weight + 1}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight.*embedding\.tokens\.weight"):
        load_weights(model, state)
    assert digest(model) == before


def test_names_and_shapes_must_fit():
    model = tiny_decoder()
    state = weights_of(model)
    state["decoder.extra"] = torch.zeros(3)
    del state["decoder.norm.weight"]
    state["decoder.norm.bias"] = torch.zeros(31)
    before = digest(model)
    with pytest.raises(
        CheckpointError,
        match=r"decoder\.norm\.weight is missing.*decoder\.extra is unknown.*"
        r"decoder\.norm\.bias has shape \(31,\) instead of \(30,\)",
    ):
        load_weights(model, state)
    assert digest(model) == before


class Wrapper(nn.Module):
    """What data-parallel training does to names."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


class Compiled(nn.Module):
    """What torch.compile does to names, without compiling."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, *args):
        return self._orig_mod(*args)


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."]
)
def test_T12_prefixes_of_wrappers_are_dropped(prefix):
    model, other = tiny_decoder(), tiny_decoder(seed=8)
    load_weights(other, {prefix + name: value for name, value in model.state_dict().items()})
    assert digest(other) == digest(model)
    assert not same_logits(tiny_decoder(seed=8), model)


def test_T12_one_weight_under_two_prefixes_is_refused():
    state = tiny_decoder().state_dict()
    state["module.decoder.norm.weight"] = state["decoder.norm.weight"]
    with pytest.raises(CheckpointError, match=r"both named 'decoder\.norm\.weight'"):
        load_weights(tiny_decoder(), state)


def really_compiled(model):
    return torch.compile(model, backend="eager")


WRAPPED = pytest.mark.parametrize(
    "wrap", [Wrapper, Compiled, lambda m: Wrapper(Compiled(m)), really_compiled]
)


@WRAPPED
def test_T12_wrappers_leave_no_trace(tmp_path, wrap):
    model = tiny_decoder()
    save_model(tmp_path / "m", wrap(model))
    names = set(safetensors.torch.load_file(tmp_path / "m" / "model.safetensors"))
    assert names == set(model.state_dict())
    assert same_logits(load_model(tmp_path / "m"), model)


@WRAPPED
def test_T12_wrappers_leave_no_trace_in_codes(tmp_path, wrap):
    model = quantize(tiny_decoder())
    save_quantized(tmp_path / "q", wrap(model))
    assert same_logits(load_quantized(tmp_path / "q"), model)


@WRAPPED
def test_T12_wrappers_leave_no_trace_in_adapters(tmp_path, wrap):
    model = add_lora(tiny_decoder())
    for tensor in lora_state_dict(model).values():
        torch.nn.init.normal_(tensor)
    save_lora(tmp_path / "a", wrap(model))
    assert same_logits(load_lora(tmp_path / "a", tiny_decoder()), model)


def test_T12_a_wrapped_model_trains_and_is_saved_plain(tmp_path):
    def dev_loss(model):
        return 1.0

    trainer = make_trainer(model=Wrapper(Compiled(tiny_decoder())), dev_loss=dev_loss)
    list(trainer.run(until=2))
    trainer.evaluate()
    save_checkpoint(tmp_path / "c", trainer)
    state = torch.load(tmp_path / "c" / "training_state.pt", weights_only=True)
    names = set(tiny_decoder().state_dict())
    assert set(state["model"]) == set(state["best"]["weights"]) == names
    plain = make_trainer(model=tiny_decoder(seed=4), dev_loss=dev_loss)
    load_checkpoint(tmp_path / "c", plain)
    assert digest(plain.model) == digest(trainer.model.module._orig_mod)


def test_the_tokenizer_travels_along(tmp_path, tokenizer):
    save_model(tmp_path / "m", tiny_decoder(), tokenizer)
    assert load_tokenizer(tmp_path / "m") == tokenizer
    assert Tokenizer.load(tmp_path / "m" / "tokenizer.model") == tokenizer
    save_model(tmp_path / "n", tiny_decoder())
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: was not saved"):
        load_tokenizer(tmp_path / "n")


def test_a_checkpoint_is_used_with_its_best_weights_and_resumed_with_its_last(tmp_path):
    losses = iter([2.0, 3.0])
    trainer = make_trainer(dev_loss=lambda model: next(losses))
    list(trainer.run(until=2))
    trainer.evaluate()
    best = copy.deepcopy(trainer.model)
    list(trainer.run(until=4))
    trainer.evaluate()
    save_checkpoint(tmp_path / "c", trainer, run={"text": "a.txt"})
    assert digest(load_model(tmp_path / "c")) == digest(best)
    resumed = make_trainer(dev_loss=lambda model: 0.0)
    load_checkpoint(tmp_path / "c", resumed)
    assert digest(resumed.model) == digest(trainer.model)
    record = read_record(tmp_path / "c")
    assert (record["step"], record["best_step"], record["best_dev_loss"]) == (4, 2, 2.0)
    assert record["run"] == {"text": "a.txt"}
    assert record["parameters"] == sum(p.numel() for p in best.parameters())


# --- resuming in a fresh process, and after being killed -----------------------------------------

RESUME = """
import sys
from support.runs import NoisyData, digest, make_trainer
from glassformer.training import load_checkpoint
for folder in sys.argv[1:]:
    trainer = make_trainer(NoisyData())
    load_checkpoint(folder, trainer)
    list(trainer.run())
    print(trainer.data.seen, [r.loss for r in trainer.history], digest(trainer.model))
"""

TRAIN_FOREVER = """
import sys
from support.runs import NoisyData, make_trainer
from glassformer.training import save_checkpoint
trainer = make_trainer(NoisyData(), steps=10**6)
save_checkpoint(sys.argv[1], trainer)
print("ready", flush=True)
for report in trainer.run():
    save_checkpoint(sys.argv[1], trainer)
"""


def python(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return [sys.executable, "-c", code, *map(str, arguments)], environment


def test_O08_a_fresh_process_goes_on_bit_for_bit(tmp_path):
    """Three epochs of ten batches and one step more, with dropout and noise.

    Stopped after an epoch and in the middle of one.
    """
    whole = make_trainer(NoisyData())
    list(whole.run())
    losses = [r.loss for r in whole.history]
    stops = (10, 13)
    for stop in stops:
        first = make_trainer(NoisyData())
        list(first.run(until=stop))
        save_checkpoint(tmp_path / str(stop), first)
    command, environment = python(RESUME, *(tmp_path / str(stop) for stop in stops))
    got = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert got.stdout.splitlines() == [
        f"{whole.data.seen[stop:]} {losses} {digest(whole.model)}" for stop in stops
    ]


def test_a_killed_run_leaves_a_checkpoint_that_goes_on(tmp_path):
    """Most of the time of this run is spent writing, so the kill hits a write."""
    command, environment = python(TRAIN_FOREVER, tmp_path / "c")
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.23)
    process.kill()
    process.wait()
    process.stdout.close()
    trainer = make_trainer(NoisyData(), steps=10**6)
    load_checkpoint(tmp_path / "c", trainer)
    expected = make_trainer(NoisyData(), steps=10**6)
    list(expected.run(until=trainer.step))
    assert digest(trainer.model) == digest(expected.model)
    save_checkpoint(tmp_path / "c", trainer)  # over whatever the kill left behind
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


class Dies(Exception):
    """Stands for the end of the process."""


def dying_after(n, original):
    """A function that works ``n`` times and then never again."""
    left = [n]

    def call(*args, **keywords):
        if left[0] == 0:
            raise Dies
        left[0] -= 1
        return original(*args, **keywords)

    return call


@pytest.mark.parametrize("n", range(12))
@pytest.mark.parametrize("where", ["fsync", "rename", "rmtree"])
def test_wherever_a_write_ends_a_whole_checkpoint_is_there(tmp_path, monkeypatch, where, n):
    """The process ends at the n-th call of each kind; then another process saves again."""
    old, new = tiny_decoder(), tiny_decoder(seed=8)
    save_model(tmp_path / "m", old)
    target = {"fsync": os, "rename": Path, "rmtree": shutil}[where]
    with monkeypatch.context() as patch:
        patch.setattr(target, where, dying_after(n, getattr(target, where)))
        try:
            save_model(tmp_path / "m", new)
            finished = True
        except Dies:
            finished = False
    found = digest(load_model(tmp_path / "m"))
    assert found in (digest(old), digest(new))
    assert found == digest(new) or not finished
    save_model(tmp_path / "m", new)
    assert digest(load_model(tmp_path / "m")) == digest(new)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_full_disk_is_an_error_that_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    old = tiny_decoder()
    save_model(tmp_path / "m", old)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left on device.*untouched"):
            save_model(tmp_path / "m", tiny_decoder(seed=8))
    assert digest(load_model(tmp_path / "m")) == digest(old)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]  # nothing half written fills it further


# --- damage --------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "config.json", "record.json", "training_state.pt", "tokenizer.model"],
)
def test_damage_is_found_and_the_file_is_named(tmp_path, name, damage, tokenizer):
    trainer = make_trainer()
    save_checkpoint(tmp_path / "c", trainer, tokenizer)
    damage(tmp_path / "c" / name)
    if name == "record.json" and damage is flip:
        (tmp_path / "c" / name).write_text("{}")
    load = {
        "training_state.pt": lambda folder: load_checkpoint(folder, trainer),
        "tokenizer.model": load_tokenizer,
    }.get(name, load_model)
    before = digest(trainer.model)
    with pytest.raises(CheckpointError, match=name):
        load(tmp_path / "c")
    assert digest(trainer.model) == before


def rewrite(folder, name, data):
    """Change a file together with its hash, as a tool that knows the layout would."""
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "record.json"}
    files[name] = data
    record = {"files": {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}}
    replace_folder(
        folder, {**files, "record.json": json.dumps(record).encode()}, known={*files, "record.json"}
    )


@pytest.mark.parametrize(
    ("name", "data", "match"),
    [
        ("config.json", b"not json", "no JSON"),
        ("config.json", b"[1, 2]", "holds list instead"),
        ("config.json", b'{"kind": "decoder", "d_model": 3}', "no config of a model.*lacks"),
        ("model.safetensors", b"no tensors", "no safetensors"),
        ("tokenizer.model", b"no pieces", "9 bytes are no sentencepiece"),
        ("training_state.pt", b"no state", "no training state"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path, name, data, match, tokenizer):
    trainer = make_trainer()
    save_checkpoint(tmp_path / "c", trainer, tokenizer)
    rewrite(tmp_path / "c", name, data)
    load = {
        "training_state.pt": lambda folder: load_checkpoint(folder, trainer),
        "tokenizer.model": load_tokenizer,
    }.get(name, load_model)
    with pytest.raises(CheckpointError, match=f"{name}: {match}"):
        load(tmp_path / "c")


def test_a_state_with_code_in_it_is_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    trainer = make_trainer()
    save_checkpoint(tmp_path / "c", trainer)
    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    rewrite(tmp_path / "c", "training_state.pt", (tmp_path / "evil.pt").read_bytes())
    with pytest.raises(CheckpointError, match="no training state"):
        load_checkpoint(tmp_path / "c", trainer)
    assert not (tmp_path / "ran").exists()


def test_weights_of_another_config_are_refused(tmp_path):
    save_model(tmp_path / "m", tiny_decoder())
    config = {**tiny_decoder().config.to_dict(), "n_layers": 3}
    rewrite(tmp_path / "m", "config.json", json.dumps(config).encode())
    with pytest.raises(CheckpointError, match=r"decoder\.blocks\.2\..* is missing"):
        load_model(tmp_path / "m")


def test_a_checkpoint_of_another_config_is_refused(tmp_path):
    save_checkpoint(tmp_path / "c", make_trainer())
    other = make_trainer(model=tiny_decoder(n_layers=1))
    with pytest.raises(CheckpointError, match="other config: n_layers=2 there, 1 here"):
        load_checkpoint(tmp_path / "c", other)


def test_a_folder_of_other_files_is_never_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds notes\.txt, which would be lost"):
        save_model(tmp_path, tiny_decoder())
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(CheckpointError, match="is a file"):
        save_model(tmp_path / "notes.txt", tiny_decoder())


def test_the_current_folder_is_never_replaced(tmp_path, monkeypatch):
    """Its name would pass to another folder, and every relative path of the process would end."""
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path / "m")
    with pytest.raises(CheckpointError, match="current folder"):
        save_model(".", tiny_decoder())
    with pytest.raises(CheckpointError, match="current folder"):
        save_model(tmp_path, tiny_decoder())
    save_model("sub", tiny_decoder())


@pytest.mark.parametrize("change", [add_lora, quantize])
def test_what_could_not_be_loaded_is_not_saved(tmp_path, change):
    changed = change(tiny_decoder())
    with pytest.raises(CheckpointError, match=r"other weights than its config says .*save_lora"):
        save_model(tmp_path / "m", changed)
    assert not (tmp_path / "m").exists()
    save_model(tmp_path / "m", merge_lora(add_lora(tiny_decoder())))
    load_model(tmp_path / "m")


def test_a_missing_folder_and_a_model_without_a_config(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        load_model(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no such folder"):
        existing_folder(tmp_path / "none")
    with pytest.raises(CheckpointError, match="Linear has no config"):
        save_model(tmp_path / "m", nn.Linear(3, 5))


@pytest.mark.parametrize("kind", ["decoder", "translator", "experts"])
def test_a_small_checkpoint_comes_back_close(tmp_path, kind):
    models = {
        "decoder": lambda: tiny_decoder(norm="layer", bias=True),
        "translator": lambda: EncoderDecoder(translator_config()),
        "experts": lambda: tiny_decoder(n_experts=3),
    }
    model = models[kind]()
    save_model(tmp_path / "small", model, small=True)
    save_model(tmp_path / "plain", model)
    loaded = load_model(tmp_path / "small").state_dict()
    for name, weight in model.state_dict().items():
        assert loaded[name].dtype == weight.dtype
        off = (loaded[name] - weight).abs()
        if weight.ndim >= 2:
            assert bool((off <= 0.005 * weight.abs().amax(-1, keepdim=True)).all()), name
        else:
            assert bool((off <= 2**-11 * weight.abs()).all()), name
    small, plain = (
        safetensors.torch.load_file(tmp_path / name / "model.safetensors")
        for name in ("small", "plain")
    )
    size = {
        name: sum(t.nbytes for t in tensors.values())
        for name, tensors in (("small", small), ("plain", plain))
    }
    assert size["small"] < 0.35 * size["plain"]
    assert read_record(tmp_path / "small")["small"] is True
    assert "small" not in read_record(tmp_path / "plain")


def test_a_small_checkpoint_of_numbers_that_are_no_float16(tmp_path):
    """Tiny rows and huge vectors keep their precision, and an attention may have lost all heads."""
    model = prune_heads(tiny_decoder(bias=True), {"decoder.blocks.0.self_attn": range(2)})
    with torch.no_grad():
        model.decoder.blocks[1].self_attn.q_proj.weight.mul_(1e-5)
        model.decoder.blocks[1].feed_forward.up_proj.bias.fill_(7e5)
        model.decoder.norm.weight.fill_(3e-7)
    save_model(tmp_path / "small", model, small=True)
    loaded = load_model(tmp_path / "small").state_dict()
    for name, weight in model.state_dict().items():
        size, share = weight.abs(), 2**-11
        if weight.ndim >= 2 and weight.numel():
            size, share = size.amax(-1, keepdim=True), 0.005
        assert bool(((loaded[name] - weight).abs() <= share * size).all()), name


def test_a_small_checkpoint_is_saved_again_without_further_loss(tmp_path):
    save_model(tmp_path / "a", tiny_decoder(), small=True)
    once = load_model(tmp_path / "a")
    save_model(tmp_path / "b", once, small=True)
    again = load_model(tmp_path / "b")
    for name, weight in once.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=1e-3, atol=1e-6)
