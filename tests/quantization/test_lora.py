"""Adapters: silent at first, the only ones that learn, and one with the weights when merged."""

import copy
import importlib.util

import pytest
import torch
from glassformer import build_model
from glassformer.errors import CheckpointError, ConfigError
from glassformer.pruning import prune_heads
from glassformer.quantization import (
    LoRALinear,
    QuantizedLinear,
    add_lora,
    load_lora,
    lora_state_dict,
    merge_lora,
    model_bytes,
    quantize,
    save_lora,
)
from glassformer.training import Batch, make_optimizer, train_step
from support.core import decoder_config, ids, scramble, translator_config
from torch import nn
from torch.testing import assert_close


def base_model(scheme=None, config=None):
    model = build_model(config or decoder_config()).eval()
    return model if scheme is None else quantize(model, scheme, group_size=8)


def learnt(model, by=0.3):
    with torch.no_grad():
        for tensor in lora_state_dict(model).values():
            tensor.add_(torch.randn_like(tensor) * by)
    return model


BASES = pytest.mark.parametrize("scheme", [None, "int8", "int4_asymmetric", "nf4"])


@BASES
def test_starts_as_the_model_itself(scheme):
    model = base_model(scheme)
    tokens = ids(2, 7)
    assert torch.equal(add_lora(model, dropout=0.5)(tokens), model(tokens))


@BASES
def test_merged_equals_unmerged(scheme):
    adapted = learnt(add_lora(base_model(scheme), targets=("q_proj", "o_proj", "up_proj")))
    merged = merge_lora(adapted)
    tokens = ids(2, 7)
    assert_close(merged(tokens), adapted(tokens), atol=1e-6, rtol=1e-5)
    assert not any(isinstance(module, LoRALinear) for module in merged.modules())
    assert all(p.requires_grad for p in merged.parameters())
    assert type(merged.decoder.blocks[0].self_attn.q_proj) is nn.Linear


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is optional")
def test_what_torchao_quantised_can_be_merged():
    adapted, tokens = learnt(add_lora(quantize(base_model(), backend="torchao"))), ids(2, 7)
    assert_close(merge_lora(adapted)(tokens), adapted(tokens), atol=1e-6, rtol=1e-5)


def test_a_merged_model_is_a_plain_one():
    model = base_model()
    merged = merge_lora(learnt(add_lora(model)))
    assert merged.state_dict().keys() == model.state_dict().keys()
    blocks = [x.decoder.blocks[0].self_attn for x in (model, merged)]
    assert not torch.equal(blocks[0].q_proj.weight, blocks[1].q_proj.weight)
    assert torch.equal(blocks[0].k_proj.weight, blocks[1].k_proj.weight)


def test_the_formula():
    linear = nn.Linear(11, 7)
    layer = LoRALinear(linear, rank=3, alpha=6.0)
    scramble(layer.cpu())
    x = torch.randn(2, 5, 11)
    want = linear(x) + 2.0 * (x @ layer.lora_a.T @ layer.lora_b.T)
    assert_close(layer(x), want)
    assert_close(x @ layer.weight.T + layer.bias, want)


@BASES
def test_only_the_adapters_learn(scheme):
    model = base_model(scheme)
    before = copy.deepcopy(model.state_dict())
    adapted = add_lora(model, rank=3, targets=("q_proj", "v_proj")).train()
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained == lora_state_dict(adapted).keys()
    assert len(trained) == 2 * 2 * 2
    optimizer = make_optimizer(adapted, lr=0.05, weight_decay=0.0)
    batch = Batch(ids(3, 7), ids(3, 7))
    losses = [train_step(adapted, [batch], optimizer).nll for _ in range(13)]
    assert losses[-1] < losses[0] - 1
    assert {n for n, p in adapted.named_parameters() if p.grad is not None} <= trained
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_gradients_reach_every_adapter():
    adapted = learnt(add_lora(base_model("nf4")))
    adapted(ids(2, 7)).square().sum().backward()
    for name, parameter in adapted.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or parameter.grad.abs().sum() > 0


def test_nothing_is_copied_and_the_original_stays_free():
    model = base_model()
    adapted = add_lora(model, rank=1)
    ours = {name.replace(".base.", "."): p for name, p in adapted.named_parameters()}
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad
        assert ours[name].data_ptr() == parameter.data_ptr()
    assert model_bytes(adapted) == model_bytes(model) + 4 * 2 * 2 * (30 + 30)
    assert adapted.head_weight is adapted.embedding.tokens.weight
    assert not any(isinstance(module, LoRALinear) for module in model.modules())


def test_dropout_is_for_training_alone():
    adapted = learnt(add_lora(base_model(), dropout=0.5))
    tokens = ids(2, 7)
    assert torch.equal(adapted(tokens), adapted(tokens))
    adapted.train()
    assert not torch.equal(adapted(tokens), adapted(tokens))


@BASES
def test_saved_apart(scheme, tmp_path):
    model = base_model(scheme)
    adapted = learnt(add_lora(model, rank=3, alpha=7.0, targets=("k_proj", "down_proj")))
    save_lora(tmp_path / "adapters", adapted)
    state = torch.get_rng_state()
    loaded = load_lora(tmp_path / "adapters", model)
    assert torch.equal(state, torch.get_rng_state())
    tokens = ids(2, 7)
    assert torch.equal(loaded(tokens), adapted(tokens))
    assert not torch.equal(model(tokens), adapted(tokens))
    size = (tmp_path / "adapters" / "adapters.safetensors").stat().st_size
    assert size < sum(4 * t.numel() for t in lora_state_dict(adapted).values()) + 2_000


def test_saved_adapters_of_a_translator(tmp_path):
    model = base_model(config=translator_config())
    adapted = learnt(add_lora(model, targets=("cross_attn.v_proj",)))
    assert len(lora_state_dict(adapted)) == 2 * 2
    save_lora(tmp_path, adapted)
    given = ids(2, 7), ids(2, 5)
    assert torch.equal(load_lora(tmp_path, model)(*given), adapted(*given))


def test_adapters_of_another_model(tmp_path):
    save_lora(tmp_path, add_lora(base_model()))
    with pytest.raises(CheckpointError, match=r"do not fit the model: .*lora_a missing, unknown"):
        load_lora(tmp_path, base_model(config=decoder_config(d_model=36)))
    with pytest.raises(CheckpointError, match="fits no linear layer"):
        load_lora(tmp_path, base_model(config=decoder_config(n_layers=1)))
    (tmp_path / "adapters.json").write_text('{"colour": "red"}')
    with pytest.raises(CheckpointError, match="do not fit the model"):
        load_lora(tmp_path, base_model())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", ["int8", "nf4"])
def test_adapters_compute_as_precisely_as_the_quantised_model(scheme, dtype):
    quantized = quantize(build_model(decoder_config(bias=False)).to(dtype).eval(), scheme)
    adapted = learnt(add_lora(quantized))
    tokens = ids(2, 7)
    merged = merge_lora(adapted)
    assert adapted(tokens).dtype == merged(tokens).dtype == dtype
    assert {p.dtype for p in (*adapted.parameters(), *merged.parameters())} == {dtype}
    assert_close(merged(tokens), adapted(tokens), atol=0.05, rtol=0)


def test_a_layer_without_heads_gets_no_adapters():
    name = "decoder.blocks.0.self_attn"
    model = prune_heads(base_model(), {name: [0, 1, 2]})
    adapted = learnt(add_lora(model, targets=("q_proj", "o_proj")))
    assert not [key for key in lora_state_dict(adapted) if key.startswith(name)]
    tokens = ids(2, 7)
    merged = merge_lora(adapted)
    assert_close(merged(tokens), adapted(tokens), atol=1e-6, rtol=1e-5)
    assert all(p.requires_grad == (p.numel() > 0) for p in merged.parameters())


def test_quantising_below_adapters():
    adapted = learnt(add_lora(base_model()))
    quantized = quantize(adapted, "int8")
    layer = quantized.decoder.blocks[0].self_attn.q_proj
    assert isinstance(layer, LoRALinear)
    assert isinstance(layer.base, QuantizedLinear)
    tokens = ids(2, 7)
    assert_close(quantized(tokens), adapted(tokens), atol=0.1, rtol=0)


def test_what_is_refused():
    model = base_model()
    with pytest.raises(ConfigError, match="target 'query' fits no linear layer; their names end"):
        add_lora(model, targets=("query",))
    with pytest.raises(ConfigError, match="targets is empty"):
        add_lora(model, targets=())
    with pytest.raises(ConfigError, match="rank=0 must be at least 1"):
        add_lora(model, rank=0)
    with pytest.raises(ConfigError, match=r"dropout=1\.0 is a share"):
        add_lora(model, dropout=1.0)
    with pytest.raises(ConfigError, match="has adapters already"):
        add_lora(add_lora(model))
    for action in (merge_lora, lora_state_dict):
        with pytest.raises(ConfigError, match="Decoder has no adapters"):
            action(model)
