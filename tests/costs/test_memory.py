"""Bytes: counted from the config, equal to what caches hold and what autograd keeps."""

import pytest
import torch
import torch.nn.functional as F
from glassformer import Encoder, build_model
from glassformer.costs import activation_bytes, kv_cache_bytes
from glassformer.errors import ConfigError
from glassformer.lab import peak_bytes, saved_bytes
from support.core import decoder_config, encoder_config, ids, translator_config


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


@pytest.mark.parametrize("variant", [{}, {"n_experts": 5}, {"head_size": 8, "n_heads": 4}])
def test_kv_cache_bytes_of_other_models(variant):
    """Experts have no keys; heads of their own width count with it."""
    config = decoder_config(**variant)
    model = build_model(config)
    cache = model.new_cache()
    model(ids(5, 9), cache=cache)
    assert cache.bytes == kv_cache_bytes(config, 5, 9)


@pytest.mark.parametrize("length", [3, 4, 9])
def test_kv_cache_bytes_of_a_window(length):
    config = decoder_config(sliding_window=4)
    model = build_model(config)
    cache = model.new_cache()
    model(ids(5, length), cache=cache)
    assert cache.bytes == kv_cache_bytes(config, 5, length)


@pytest.mark.parametrize("n_kv_heads", [None, 1])
def test_kv_cache_bytes_of_a_translator(n_kv_heads):
    config = translator_config(n_kv_heads=n_kv_heads)
    model = build_model(config)
    cache, cross = model.new_cache(), model.new_cross_cache()
    model.decode(ids(5, 3), model.encode(ids(5, 7)), cache=cache, cross_cache=cross)
    assert cache.bytes == kv_cache_bytes(config, 5, 3)
    assert cache.bytes + cross.bytes == kv_cache_bytes(config, 5, 3, source_length=7)


def test_kv_cache_bytes_without_a_cache():
    """An encoder keeps none; a decoder has no source whose keys it could keep."""
    assert kv_cache_bytes(encoder_config(), 5, 9) == 0
    with pytest.raises(ConfigError, match=r"source_length=7 .* reads no source"):
        kv_cache_bytes(decoder_config(), 5, 9, source_length=7)


def kept(model, *args):
    """Bytes that autograd keeps of one training step with a plain cross-entropy."""

    def step():
        out = model(*args)
        if isinstance(model, Encoder):
            return out.square().sum()
        targets = torch.zeros(out.shape[:2], dtype=torch.long).flatten()
        return F.cross_entropy(out.flatten(0, 1), targets)

    return saved_bytes(step, exclude=model)


ACTIVATIONS = [
    {},
    {"activation": "relu", "positions": "none"},
    {"activation": "swiglu", "norm": "rms", "bias": False, "n_kv_heads": 1},
    {"norm_position": "post", "positions": "sinusoidal"},
    {"positions": "relative"},
    {"head_size": 7, "n_heads": 4, "n_kv_heads": 2, "positions": "learned", "activation": "geglu"},
    {"sliding_window": 4, "n_layers": 3},
    {"n_experts": 5},
    {"n_experts": 5, "expert_capacity": 1.5, "activation": "swiglu"},
]


@pytest.mark.parametrize("variant", ACTIVATIONS)
@pytest.mark.parametrize("make", [decoder_config, encoder_config])
def test_activation_bytes(make, variant):
    """Within 2 %: cosines, sines and the targets are left out."""
    if make is encoder_config:
        variant = {**variant, "sliding_window": None}
    config = make(**variant)
    measured = kept(build_model(config).train(), ids(5, 19))
    assert activation_bytes(config, 5, 19) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("variant", ACTIVATIONS)
def test_activation_bytes_of_a_translator(variant):
    config = translator_config(n_encoder_layers=3, **variant)
    measured = kept(build_model(config).train(), ids(5, 19), ids(5, 13))
    counted = activation_bytes(config, 5, 13, source_length=19)
    assert counted == pytest.approx(measured, rel=0.02)


def test_activation_bytes_in_half_precision():
    config = decoder_config()
    measured = kept(build_model(config).bfloat16().train(), ids(5, 19))
    counted = activation_bytes(config, 5, 19, bytes_per_value=2, log_probs=False)
    assert counted + 5 * 19 * 29 * 2 == pytest.approx(measured, rel=0.03)


def test_activation_bytes_without_log_probabilities():
    config = decoder_config()
    saved = activation_bytes(config, 5, 19) - activation_bytes(config, 5, 19, log_probs=False)
    assert saved == 5 * 19 * 29 * 4


@pytest.mark.parametrize("checkpointed", [False, True])
def test_activation_bytes_of_further_layers(checkpointed):
    """The peak of a step is at the end of its forward pass and grows by them alone."""
    sizes = {"d_ff": 120, "vocab_size": 7, "max_len": 64}

    def peak(n_layers):
        model = build_model(decoder_config(n_layers=n_layers, **sizes)).train()
        model.decoder.checkpoint_blocks = checkpointed
        tokens = ids(11, 64, vocab_size=7)
        return peak_bytes(lambda: model(tokens).square().sum().backward())

    few, many = (decoder_config(n_layers=n, **sizes) for n in (3, 9))
    options = {"checkpointed": checkpointed}
    wanted = activation_bytes(many, 11, 64, **options) - activation_bytes(few, 11, 64, **options)
    assert peak(9) - peak(3) == pytest.approx(wanted, rel=0.01)
