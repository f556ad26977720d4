"""Pruned models go on working where others build on them: prepared, compiled, saved for others."""

import pytest
import torch
from glassformer.errors import ConfigError
from glassformer.generation import generate
from glassformer.inference import prepare
from glassformer.interop import load_hugging_face, save_hugging_face
from glassformer.pruning import drop_layers, prune_heads
from support.core import decoder_config, ids, scrambled, translator_config
from torch.testing import assert_close

FIRST, SECOND = "decoder.blocks.0.self_attn", "decoder.blocks.1.self_attn"


def pruned(**changes):
    model = scrambled(decoder_config(n_layers=3, **changes), dtype=torch.float32)
    return drop_layers(prune_heads(model, {FIRST: [0, 1, 2], SECOND: [1]}), [2])


@pytest.mark.parametrize(
    "changes",
    [{}, {"bias": False}, {"positions": "relative"}, {"norm_position": "post", "n_kv_heads": 1}],
)
@torch.no_grad()
def test_prepared_for_writing(changes):
    model = pruned(**changes)
    fast = prepare(model, dtype=torch.float32)
    tokens = ids(1, 7)
    want = model(tokens)
    assert_close(fast(tokens), want, atol=1e-5, rtol=1e-4)
    cache = fast.new_cache()
    steps = [fast(tokens[:, i : i + 1], cache=cache) for i in range(7)]
    assert_close(torch.cat(steps, 1), want, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_translator_prepared_for_writing():
    heads = {FIRST: [2], "decoder.blocks.0.cross_attn": [0, 1, 2], SECOND: [0, 1, 2]}
    heads |= {"decoder.blocks.1.cross_attn": [1], "encoder.blocks.0.self_attn": [0]}
    model = prune_heads(scrambled(translator_config(), dtype=torch.float32), heads)
    given = ids(2, 7), ids(2, 5)
    fast = prepare(model)
    want = model(*given)
    assert_close(fast(*given), want, atol=1e-4, rtol=1e-4)
    cache, cross = fast.new_cache(), fast.new_cross_cache()
    memory = fast.encode(given[0])
    steps = [
        fast.decode(given[1][:, i : i + 1], memory, cache=cache, cross_cache=cross)
        for i in range(5)
    ]
    assert_close(fast.head(torch.cat(steps, 1)), want, atol=1e-4, rtol=1e-4)


def test_writes_the_same_text_with_every_cache():
    model = pruned()
    prompt = ids(2, 5)
    texts = []
    for _ in range(2):
        texts.append(generate(model, prompt, max_new_tokens=7).tokens)
    tokens = prompt
    with torch.no_grad():
        for _ in range(7):
            tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), 1)
    assert torch.equal(texts[0], tokens[:, 5:])


@torch.no_grad()
def test_compiles_without_a_break(no_shape_checks):
    model = pruned(positions="relative")
    tokens = ids(2, 7)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(tokens), model(tokens))
    torch._dynamo.reset()


def test_saved_for_others(tmp_path):
    """With fewer layers a GPT-2 is a GPT-2; heads of its layers cannot differ in number."""
    config = decoder_config(positions="learned", activation="gelu_tanh", n_layers=3)
    model = scrambled(config, dtype=torch.float32)
    smaller = drop_layers(model, [1])
    save_hugging_face(tmp_path / "layers", smaller, family="gpt2")
    tokens = ids(2, 7)
    assert_close(load_hugging_face(tmp_path / "layers")(tokens), smaller(tokens))
    with pytest.raises(ConfigError, match=r"no gpt2 model has this config: pruned_heads="):
        save_hugging_face(tmp_path / "heads", prune_heads(model, {FIRST: [1]}), family="gpt2")
