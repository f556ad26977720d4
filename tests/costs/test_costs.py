"""Costs: counted from the config, equal to what the model really has and does."""

import itertools

import pytest
import torch
from glassformer import build_model
from glassformer.config import gpt2_small, llama_7b, transformer_base
from glassformer.costs import (
    activation_bytes,
    attention_macs,
    decode_flops,
    feed_forward_macs,
    forward_flops,
    parameter_count,
    training_flops,
)
from glassformer.errors import ConfigError
from support.core import decoder_config, encoder_config, ids, translator_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

VARIANTS = [
    {},
    {"bias": False},
    {"norm": "rms", "activation": "swiglu", "bias": False, "n_kv_heads": 1},
    {"norm_position": "post", "positions": "sinusoidal"},
    {"positions": "learned", "tie_embeddings": False, "pad_id": 0},
    {"positions": "none", "activation": "swiglu", "d_ff": None, "n_layers": 3},
    {"head_size": 7, "n_heads": 4, "n_kv_heads": 2, "positions": "relative"},
    {
        "bias": False,
        "qkv_bias": True,
        "activation": "geglu",
        "relative_buckets": 14,
        "positions": "relative",
    },
    {"n_experts": 5, "activation": "silu"},
    {"n_experts": 3, "experts_per_token": 1, "expert_capacity": 0.7, "activation": "swiglu"},
]
HEAD_BIAS = {"head_bias": True, "tie_embeddings": False}
OWN_SOURCE = {"source_vocab_size": 31, "n_encoder_layers": 3}
CONFIGS = [
    *(make(**v) for make in (decoder_config, encoder_config, translator_config) for v in VARIANTS),
    decoder_config(**HEAD_BIAS),
    translator_config(**HEAD_BIAS, **OWN_SOURCE),
    *(translator_config(**OWN_SOURCE, **v) for v in VARIANTS),
    *(encoder_config(n_segments=2, embedding_norm=True, **v) for v in VARIANTS),
]


def real_count(config):
    with torch.device("meta"):
        model = build_model(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("config", CONFIGS)
def test_parameter_count(config):
    assert parameter_count(config) == real_count(config)


@pytest.mark.parametrize(
    ("config", "published"), [(gpt2_small(), 124_439_808), (llama_7b(), 6_738_415_616)]
)
def test_published_parameter_counts(config, published):
    """Counted on the meta device, which holds no numbers."""
    assert parameter_count(config) == real_count(config) == published


def test_base_model_of_the_paper():
    """Table 3 prints 65 million; with its 37,000 pieces the layers and one embedding make 63."""
    assert parameter_count(transformer_base()) == real_count(transformer_base())
    assert parameter_count(transformer_base()) == pytest.approx(65e6, rel=0.04)


def measured_flops(model, *args, **kwargs):
    """The explicit kernel on purpose: the counter sees its two products as they are."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(*args, **kwargs)
    return counter.get_total_flops()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("make", [decoder_config, encoder_config])
def test_forward_flops(make, variant):
    config = make(**variant)
    model = build_model(config).eval()
    assert forward_flops(config, 2, 7) == measured_flops(model, ids(2, 7))


@pytest.mark.parametrize(("cached", "new"), [(5, 1), (3, 7)])
def test_forward_flops_with_a_cache(cached, new):
    config = decoder_config(n_kv_heads=1)
    model = build_model(config).eval()
    cache = model.new_cache()
    with torch.no_grad():
        model(ids(2, cached), cache=cache)
    measured = measured_flops(model, ids(2, new), cache=cache)
    assert forward_flops(config, 2, new, cached=cached) == measured


@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_flops_of_two_stacks(variant):
    config = translator_config(n_encoder_layers=3, **variant)
    model = build_model(config).eval()
    measured = measured_flops(model, ids(2, 7), ids(2, 5))
    assert forward_flops(config, 2, 5, source_length=7) == measured


def decode(model, token, memory, caches):
    """One step of a translator, from the target's token to its logits."""
    return model.head(model.decode(token, memory, cache=caches[0], cross_cache=caches[1]))


@pytest.mark.parametrize("variant", [{}, VARIANTS[2], VARIANTS[6], {"n_experts": 5}])
@pytest.mark.parametrize("step", [1, 6])
def test_decode_flops(variant, step):
    config = decoder_config(**variant)
    model = build_model(config).eval()
    cache = model.new_cache()
    with torch.no_grad():
        model(ids(3, step), cache=cache)
    assert decode_flops(config, 3, step) == measured_flops(model, ids(3, 1), cache=cache)


@pytest.mark.parametrize("step", [1, 3, 9])
def test_decode_flops_of_a_window_stop_growing(step):
    config = decoder_config(sliding_window=4)
    model = build_model(config).eval()
    cache = model.new_cache()
    with torch.no_grad():
        model(ids(3, step), cache=cache)
    assert decode_flops(config, 3, step) == measured_flops(model, ids(3, 1), cache=cache)
    assert decode_flops(config, 3, 20) == decode_flops(config, 3, 3) > decode_flops(config, 3, 2)


def test_decode_flops_of_a_translator():
    config = translator_config(n_kv_heads=1)
    model = build_model(config).eval()
    caches = model.new_cache(), model.new_cross_cache()
    with torch.no_grad():
        memory = model.encode(ids(2, 7))
        decode(model, ids(2, 3), memory, caches)
    measured = measured_flops(decode, model, ids(2, 1), memory, caches)
    assert decode_flops(config, 2, 3, source_length=7) == measured
    assert forward_flops(config, 2, 1, cached=3, source_length=7) == measured


def trained_flops(model, *args):
    """Forward and backward, on the explicit kernel."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(*args).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_flops(variant):
    config = decoder_config(**variant)
    model = build_model(config).train()
    assert training_flops(config, 2, 7) == trained_flops(model, ids(2, 7))
    config = translator_config(**variant)
    model = build_model(config).train()
    measured = trained_flops(model, ids(2, 7), ids(2, 5))
    assert training_flops(config, 2, 5, source_length=7) == measured


def test_training_flops_with_checkpoints():
    """The head runs once; where PyTorch may stop early it saves a product of the last sublayer."""
    config = decoder_config()
    model = build_model(config).train()
    model.decoder.checkpoint_blocks = True
    tokens = ids(2, 7)
    with set_checkpoint_early_stop(False):
        measured = trained_flops(model, tokens)
    wanted = training_flops(config, 2, 7, checkpointed=True)
    assert wanted == measured
    head = 2 * 2 * 7 * 30 * 29
    assert wanted == 4 * forward_flops(config, 2, 7) - head
    saved = wanted - trained_flops(model, tokens)
    assert saved == 2 * 2 * 2 * 7 * 30 * 37


def test_places_are_rounded_as_the_experts_round_them():
    """1.1 * 30 * 3 / 3 is 33, but 1.1 * (30 * 3) / 3 is 33.00000000000001."""
    config = decoder_config(n_experts=3, experts_per_token=3, expert_capacity=1.1, max_len=31)
    model = build_model(config)
    assert forward_flops(config, 1, 30) == measured_flops(model, ids(1, 30))


def test_formulas_of_the_book():
    for n, d in itertools.product((7, 512), (30, 768)):
        assert attention_macs(n, d) == 4 * n * d**2 + 2 * n**2 * d
        assert feed_forward_macs(n, d, 4 * d) == 8 * n * d**2
        assert feed_forward_macs(n, d, 3 * d, gated=True) == 9 * n * d**2
    assert attention_macs(1, 30, k_len=11, kv_width=10) == 2 * 900 + 2 * 300 + 2 * 11 * 30


@pytest.mark.parametrize("count", [forward_flops, decode_flops, training_flops, activation_bytes])
def test_a_source_where_there_is_none_and_none_where_there_is_one(count):
    with pytest.raises(ConfigError, match=r"source_length=None .* reads a source: give its length"):
        count(transformer_base(), 1, 7)
    with pytest.raises(ConfigError, match=r"source_length=5 .* kind 'decoder' reads no source"):
        count(gpt2_small(), 1, 7, source_length=5)
