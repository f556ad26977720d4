"""A quantised model: nearly the same answers, a fraction of the bytes, the original untouched."""

import copy
import importlib.util
import json
import sys

import pytest
import torch
from glassformer import build_model
from glassformer.errors import CheckpointError, ConfigError
from glassformer.quantization import (
    QuantizedLinear,
    add_lora,
    load_quantized,
    model_bytes,
    quantization_report,
    quantize,
    save_quantized,
)
from support.core import decoder_config, encoder_config, ids, translator_config
from torch import nn
from torch.testing import assert_close

SCHEMES = ("int8", "int4", "int4_asymmetric", "nf4")
LAYERS = {
    f"decoder.blocks.{i}.{part}"
    for i in range(2)
    for part in (
        *(f"self_attn.{letter}_proj" for letter in "qkvo"),
        "feed_forward.up_proj",
        "feed_forward.down_proj",
    )
}

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is optional"
)


def make(config):
    return build_model(config).eval()


def inputs(model):
    return (ids(2, 7), ids(2, 5)) if model.config.kind == "encoder_decoder" else (ids(2, 7),)


def snapshot(model):
    return copy.deepcopy(model.state_dict())


def unchanged(model, before):
    now = model.state_dict()
    return now.keys() == before.keys() and all(torch.equal(now[n], t) for n, t in before.items())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("config", [decoder_config(), encoder_config(), translator_config()])
@torch.no_grad()
def test_answers_change_little(config, scheme):
    model = make(config)
    before = snapshot(model)
    quantized = quantize(model, scheme, group_size=None if scheme == "int8" else 8)
    given = inputs(model)
    want, got = model(*given), quantized(*given)
    assert 0 < (got - want).square().mean() < (0.001 if scheme == "int8" else 0.2) * want.var()
    assert unchanged(model, before)
    assert quantized.config == model.config
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_layer_is_its_decoded_matrix(scheme):
    linear = nn.Linear(13, 7)
    layer = QuantizedLinear(linear, scheme, group_size=5)
    x = torch.randn(2, 3, 13, requires_grad=True)
    assert_close(layer(x), x @ layer.weight.T + linear.bias)
    layer(x).sum().backward()
    assert_close(x.grad[0, 0], layer.weight.sum(0))
    assert_close(layer.bias.grad, torch.full((7,), 6.0))
    assert [name for name, _ in layer.named_parameters()] == ["bias"]


def test_bytes_are_those_stored():
    model = nn.Sequential(nn.Linear(128, 64, bias=False))
    assert model_bytes(model) == 4 * 128 * 64
    assert model_bytes(quantize(model, "int8")) == 128 * 64 + 4 * 64
    assert model_bytes(quantize(model, "nf4")) == 128 * 64 // 2 + 4 * 128
    assert model_bytes(quantize(model, "int4", group_size=32)) == 128 * 64 // 2 + 4 * 256
    assert model_bytes(quantize(model, "int4_asymmetric")) == 128 * 64 // 2 + 2 * 4 * 128


def test_tied_weights_count_once_and_stay():
    model = make(decoder_config())
    quantized = quantize(model, "int8")
    assert quantized.head_weight is quantized.embedding.tokens.weight
    assert quantized.embedding.tokens.weight is not model.embedding.tokens.weight
    assert torch.equal(quantized.head_weight, model.head_weight)
    assert model_bytes(model) == 4 * sum(p.numel() for p in model.parameters())


def test_what_is_left_out():
    model = make(decoder_config(tie_embeddings=False))

    def left(**options):
        return set(quantization_report(model, quantize(model, **options), ids(1, 3)).kept)

    assert left() == {"lm_head"}
    assert left(skip=()) == set()
    assert left(skip=("decoder.blocks.1",)) == {name for name in LAYERS if ".1." in name}
    assert left(skip=("q_proj", "lm_head")) == {
        "lm_head",
        *(f"decoder.blocks.{i}.self_attn.q_proj" for i in range(2)),
    }


def test_tokens_go_to_the_same_experts():
    model = build_model(decoder_config(n_experts=5)).eval()
    quantized = quantize(model, "int4")
    layers = dict(quantized.named_modules())
    routers = {name for name in layers if name.endswith(".router")}
    assert len(routers) == 2
    assert all(type(layers[name]) is nn.Linear for name in routers)
    expert = layers["decoder.blocks.1.feed_forward.experts.4.up_proj"]
    assert isinstance(expert, QuantizedLinear)


def test_an_output_head_in_codes():
    model = make(decoder_config(tie_embeddings=False))
    quantized = quantize(model, "int8", skip=())
    hidden = torch.randn(2, 3, 30)
    assert_close(quantized.head(hidden), quantized.lm_head(hidden))
    assert_close(quantized.head_weight, model.head_weight, atol=0.01, rtol=0)


def test_nothing_to_quantise():
    with pytest.raises(ConfigError, match="Embedding has no linear layer to quantise"):
        quantize(nn.Embedding(3, 5))
    model = make(decoder_config())
    with pytest.raises(ConfigError, match=r"outside of skip=\('decoder',\)"):
        quantize(model, skip=("decoder",))
    with pytest.raises(ConfigError, match="no linear layer to quantise"):
        quantize(quantize(model))


def test_training_mode_is_kept():
    model = make(decoder_config()).train()
    assert all(module.training for module in quantize(model).modules())


def test_with_a_cache():
    model = quantize(make(decoder_config(n_kv_heads=1)), "nf4")
    tokens = ids(2, 7)
    want = model(tokens)
    for static in (False, True):
        cache = model.new_cache(static=static, batch_size=2)
        got = torch.cat((model(tokens[:, :4], cache=cache), model(tokens[:, 4:], cache=cache)), 1)
        assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("scheme", ["int8", "nf4"])
@torch.no_grad()
def test_compiles_without_a_break(scheme, no_shape_checks):
    model = add_lora(quantize(make(decoder_config()), scheme))
    tokens = ids(2, 7)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(tokens), model(tokens))
    torch._dynamo.reset()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("config", [decoder_config(tie_embeddings=False), translator_config()])
@torch.no_grad()
def test_saved_and_loaded(config, scheme, tmp_path):
    model = quantize(make(config), scheme, group_size=None if scheme == "int8" else 7)
    save_quantized(tmp_path / "small", model)
    state = torch.get_rng_state()
    loaded = load_quantized(tmp_path / "small")
    assert torch.equal(state, torch.get_rng_state())
    given = inputs(model)
    assert torch.equal(loaded(*given), model(*given))
    assert model_bytes(loaded) == model_bytes(model)
    assert not loaded.training
    file = (tmp_path / "small" / "model.safetensors").stat().st_size
    assert model_bytes(model) <= file < model_bytes(model) + 150 * len(model.state_dict())


def test_saved_over_an_earlier_one(tmp_path):
    model = make(decoder_config())
    save_quantized(tmp_path, quantize(model, "int8"))
    save_quantized(tmp_path, quantize(model, "nf4"))
    layer = load_quantized(tmp_path).decoder.blocks[0].self_attn.q_proj
    assert (layer.scheme, layer.group_size) == ("nf4", 64)


def test_what_cannot_be_saved(tmp_path):
    model = make(decoder_config())
    for other in (model, nn.Sequential(QuantizedLinear(nn.Linear(2, 3), "int8"))):
        with pytest.raises(CheckpointError, match="save what quantize"):
            save_quantized(tmp_path, other)
    with pytest.raises(CheckpointError, match="save them apart with save_lora"):
        save_quantized(tmp_path, add_lora(quantize(model)))
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds letter\.txt, which would be lost"):
        save_quantized(tmp_path, quantize(model))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "cannot be read"),
        ("config.json", "{", "no JSON of ours"),
        ("config.json", "[]", "no JSON of ours"),
        ("config.json", "{}", "no quantised model"),
        ("quantization.json", '{"decoder.nobody": {"scheme": "int8"}}', "no quantised model"),
        ("quantization.json", '{"decoder.norm": {"scheme": "int8"}}', "no quantised model"),
        ("quantization.json", "{}", "these weights do not fit the model"),
        ("model.safetensors", "cut", "no safetensors"),
    ],
)
def test_damaged_files(name, content, message, tmp_path):
    save_quantized(tmp_path, quantize(make(decoder_config())))
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        load_quantized(tmp_path)


def test_files_are_readable(tmp_path):
    save_quantized(tmp_path, quantize(make(decoder_config()), "int4", group_size=8))
    layers = json.loads((tmp_path / "quantization.json").read_text())
    assert layers.keys() == LAYERS
    assert {tuple(layer.items()) for layer in layers.values()} == {
        (("scheme", "int4"), ("group_size", 8))
    }


@needs_torchao
@pytest.mark.parametrize("config", [decoder_config(), encoder_config(), translator_config()])
def test_C03_dynamic_int8_runs_and_says_what_changed(config):
    """Every linear layer is int8, the attention output projections too; exceptions are listed."""
    model = make(config)
    before = snapshot(model)
    quantized = quantize(model, "int8_dynamic", backend="torchao")
    given = inputs(model)
    report = quantization_report(model, quantized, *given)
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert set(report.quantized) == linear
    assert any(name.endswith("self_attn.o_proj") for name in report.quantized)
    assert report.kept == ()
    with torch.no_grad():
        change = (quantized(*given) - model(*given)).abs().max()
        assert report.max_logit_change == float(change)
        assert 0 < change < 0.3 * model(*given).std()
    assert report.bytes_after < 0.6 * report.bytes_before
    assert unchanged(model, before)


@pytest.mark.parametrize("scheme", ["int8", "nf4"])
def test_C03_our_own_layers_too(scheme):
    model = make(encoder_config())
    report = quantization_report(model, quantize(model, scheme), ids(2, 7))
    assert set(report.quantized) == {name.replace("decoder", "encoder") for name in LAYERS}
    assert report.kept == ()
    assert 0 < report.max_logit_change < 1.5


@needs_torchao
@torch.no_grad()
def test_both_backends_agree():
    model = make(decoder_config(tie_embeddings=False))
    tokens = ids(2, 7)
    own, theirs = quantize(model), quantize(model, backend="torchao")
    assert_close(own(tokens), theirs(tokens), atol=0.05, rtol=0)
    report = quantization_report(model, theirs, tokens)
    assert set(report.quantized) == LAYERS
    assert report.kept == ("lm_head",)


def test_without_torchao_its_backend_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError, match=r"needs torchao; get it with: pip install .*quantiz"):
        quantize(make(decoder_config()), backend="torchao")


def test_what_a_backend_does_not_have():
    model = make(decoder_config())
    with pytest.raises(ConfigError, match="needs backend='torchao'"):
        quantize(model, "int8_dynamic")
    with pytest.raises(ConfigError, match="scheme='nf4' with group_size=None is not offered"):
        quantize(model, "nf4", backend="torchao")
    with pytest.raises(ConfigError, match="scheme='int8' with group_size=32 is not offered"):
        quantize(model, "int8", group_size=32, backend="torchao")
