"""Costs of pruned models, from the config alone, equal to what the models really have and do."""

import pytest
import torch
from glassformer.costs import (
    activation_bytes,
    forward_flops,
    kv_cache_bytes,
    parameter_count,
    training_flops,
)
from glassformer.pruning import drop_layers, prune_heads
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

SELF, CROSS = "decoder.blocks.0.self_attn", "decoder.blocks.1.cross_attn"


def pruned(config):
    """Some heads of the first layer, all heads of another attention, and one layer less."""
    model = scrambled(config, dtype=torch.float32)
    last = next(reversed([n for n, _ in model.named_modules() if n.endswith("_attn")]))
    first = f"{next(iter(config.stacks))}.blocks.0.self_attn"
    group = config.n_heads // config.kv_heads
    some = range(group) if config.kv_heads > 1 else [1]
    model = prune_heads(model, {first: some, last: range(config.n_heads)})
    return drop_layers(model, [1], stack=next(reversed(config.stacks)))


MODELS = [
    decoder_config(n_layers=3),
    decoder_config(n_layers=3, bias=False, qkv_bias=True, positions="relative"),
    decoder_config(n_layers=3, n_heads=6, n_kv_heads=3, head_size=4),
    decoder_config(n_layers=3, n_kv_heads=1),
    encoder_config(n_layers=3),
    translator_config(n_layers=3, n_encoder_layers=2),
    translator_config(n_layers=3, n_heads=4, n_kv_heads=2, head_size=6),
]


@pytest.mark.parametrize("config", MODELS)
def test_parameters(config):
    model = pruned(config)
    assert parameter_count(model.config) == sum(p.numel() for p in model.parameters())
    assert parameter_count(model.config) < parameter_count(config)


@pytest.mark.parametrize("config", MODELS)
def test_flops(config):
    model = pruned(config)
    two = config.kind == "encoder_decoder"
    given = (ids(2, 7), ids(2, 5)) if two else (ids(2, 5),)
    source = {"source_length": 7} if two else {}
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        loss = model(*given).sum()
    assert forward_flops(model.config, 2, 5, **source) == counter.get_total_flops()
    with sdpa_kernel(SDPBackend.MATH), counter:
        loss = model(*given).sum()
        loss.backward()
    # where all heads are gone, and at the first product of all, a gradient is not needed
    assert counter.get_total_flops() <= training_flops(model.config, 2, 5, **source)


@pytest.mark.parametrize("config", [c for c in MODELS if c.kind != "encoder"])
@torch.no_grad()
def test_cache_bytes(config):
    model = pruned(config)
    options = {}
    if config.kind == "decoder":
        caches = [model.new_cache(), model.new_cache(static=True, batch_size=2, max_len=5)]
        for cache in caches:
            model(ids(2, 5), cache=cache)
        sizes = [cache.bytes for cache in caches]
    else:
        options["source_length"] = 7
        cache, cross = model.new_cache(), model.new_cross_cache()
        memory = model.encode(ids(2, 7))
        model.decode(ids(2, 5), memory, cache=cache, cross_cache=cross)
        sizes = [cache.bytes + cross.bytes]
    assert set(sizes) == {kv_cache_bytes(model.config, 2, 5, **options)}
    assert sizes[0] < kv_cache_bytes(config, 2, 5, **options)


def kept_bytes(model, *given):
    """What one forward pass keeps for its backward pass, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(*given).sum()
    del loss
    return sum(storage.nbytes() for storage in kept.values())


def test_activation_bytes_of_a_few_heads_less():
    """The difference that pruning makes is the difference that is counted."""
    model = scrambled(decoder_config(d_model=32, n_heads=4, positions="none"), dtype=torch.float32)
    smaller = prune_heads(model, {SELF: [0, 2]})
    tokens = ids(2, 11)
    counted = [activation_bytes(m.config, 2, 11, log_probs=False) for m in (model, smaller)]
    real = [kept_bytes(m, tokens) for m in (model, smaller)]
    assert counted[0] - counted[1] == real[0] - real[1] > 0
