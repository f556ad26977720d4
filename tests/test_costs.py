"""Costs: counted from the config, equal to what the model really has and does."""

import itertools

import pytest
import torch
from glassformer import build_model
from glassformer.config import gpt2_small, llama_7b, transformer_base
from glassformer.costs import (
    attention_macs,
    feed_forward_macs,
    forward_flops,
    kv_cache_bytes,
    parameter_count,
)
from glassformer.errors import ConfigError
from support.core import decoder_config, encoder_config, ids, translator_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

VARIANTS = [
    {},
    {"bias": False},
    {"norm": "rms", "activation": "swiglu", "bias": False, "n_kv_heads": 1},
    {"norm_position": "post", "positions": "sinusoidal"},
    {"positions": "learned", "tie_embeddings": False, "pad_id": 0},
    {"positions": "none", "activation": "swiglu", "d_ff": None, "n_layers": 3},
]
OWN_SOURCE = {"source_vocab_size": 31, "n_encoder_layers": 3}
CONFIGS = [
    *(make(**v) for make in (decoder_config, encoder_config, translator_config) for v in VARIANTS),
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


def test_formulas_of_the_book():
    for n, d in itertools.product((7, 512), (30, 768)):
        assert attention_macs(n, d) == 4 * n * d**2 + 2 * n**2 * d
        assert feed_forward_macs(n, d, 4 * d) == 8 * n * d**2
        assert feed_forward_macs(n, d, 3 * d, gated=True) == 9 * n * d**2
    assert attention_macs(1, 30, k_len=11, kv_width=10) == 2 * 900 + 2 * 300 + 2 * 11 * 30


@pytest.mark.parametrize("n_kv_heads", [None, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_cache_bytes(n_kv_heads, dtype):
    config = decoder_config(n_kv_heads=n_kv_heads)
    model = build_model(config).to(dtype).eval()
    growing, static = model.new_cache(), model.new_cache(static=True, batch_size=5, max_len=13)
    with torch.no_grad():
        for cache in (growing, static):
            model(ids(5, 7), cache=cache)
            model(ids(5, 2), cache=cache)
    assert growing.bytes == kv_cache_bytes(config, 5, 9, bytes_per_value=dtype.itemsize)
    assert static.bytes == kv_cache_bytes(config, 5, 13, bytes_per_value=dtype.itemsize)
    assert growing.bytes == 2 * 2 * 5 * 9 * (n_kv_heads or 3) * 10 * dtype.itemsize


def test_forward_flops_refuses_two_stacks(no_shape_checks):
    with pytest.raises(ConfigError, match="count the two apart"):
        forward_flops(transformer_base(), 1, 7)
