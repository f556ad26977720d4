"""Heads switched off: exactly those, on both paths, and nothing stays behind."""

import pytest
import torch
from glassformer import capture_attention
from glassformer.errors import GlassformerError
from glassformer.introspect import ablate_heads
from glassformer.nn import merge_heads
from support.core import decoder_config, ids, scrambled, translator_config
from torch import nn
from torch.testing import assert_close

SELF = "decoder.blocks.0.self_attn"


def set_eager(model, eager):
    for module in model.modules():
        if hasattr(module, "eager"):
            module.eager = eager


def hooks(model):
    parts = list(model.modules())
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in parts)


def without_columns(model, name, heads):
    """The same by hand: what a head writes goes through its columns of ``o_proj``."""
    attention = model.get_submodule(name)
    width = attention.o_proj.in_features // attention.n_heads
    with torch.no_grad():
        for head in heads:
            attention.o_proj.weight[:, head * width : (head + 1) * width] = 0
    return model


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("heads", [[0], [1, 2], [0, 1, 2], (2, 2), set()])
def test_equals_a_model_without_their_columns(eager, heads):
    model = scrambled(decoder_config(n_kv_heads=1))
    set_eager(model, eager)
    tokens = ids(2, 7)
    before = model(tokens)
    with ablate_heads(model, {SELF: heads}):
        got = model(tokens)
    assert torch.equal(model(tokens), before)
    assert_close(got, without_columns(model, SELF, heads)(tokens), atol=1e-10, rtol=0)
    assert torch.equal(got, before) == (not heads)


def test_several_attentions_of_a_translator():
    model = scrambled(translator_config())
    heads = {SELF: [1], "decoder.blocks.1.cross_attn": [0, 2], "encoder.blocks.0.self_attn": [2]}
    source, target = ids(2, 7), ids(2, 5)
    with ablate_heads(model, heads):
        got = model(source, target)
    for name, gone in heads.items():
        without_columns(model, name, gone)
    assert_close(got, model(source, target), atol=1e-10, rtol=0)


def test_with_a_cache():
    model = scrambled(decoder_config())
    tokens = ids(2, 7)
    with ablate_heads(model, {SELF: [1]}):
        want = model(tokens)
        cache = model.new_cache()
        model(tokens[:, :6], cache=cache)
        got = model(tokens[:, 6:], cache=cache)
    assert_close(got, want[:, 6:])


@pytest.mark.parametrize("eager", [False, True])
def test_training_goes_around_them(eager):
    """A silent head gets no gradient; the others do, dropout or not."""
    model = scrambled(decoder_config(dropout=0.3)).train()
    set_eager(model, eager)
    with ablate_heads(model, {SELF: [1]}):
        model(ids(2, 7)).square().sum().backward()
    attention = model.get_submodule(SELF)
    silent = slice(10, 20)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        assert (projection.weight.grad[silent] == 0).all()
        assert (projection.weight.grad[:10].abs().sum(-1) > 0).all()
        assert (projection.weight.grad[20:].abs().sum(-1) > 0).all()
    assert (attention.o_proj.weight.grad[:, silent] == 0).all()


def test_weights_are_still_seen():
    """What the silent heads look at is captured as without ablation."""
    model = scrambled(decoder_config(n_layers=1))
    tokens = ids(2, 7)
    with capture_attention(model) as maps, ablate_heads(model, {SELF: [0]}):
        model(tokens)
    with capture_attention(model) as whole:
        model(tokens)
    assert torch.equal(maps[SELF], whole[SELF])


def test_a_head_that_holds_infinities_is_silent_too():
    model = scrambled(decoder_config(n_layers=1))
    with torch.no_grad():
        model.get_submodule(SELF).v_proj.weight[:10] = torch.inf
    with ablate_heads(model, {SELF: [0]}):
        assert model(ids(2, 7)).isfinite().all()


def test_nested_ablations_add_up():
    model = scrambled(decoder_config())
    tokens = ids(2, 7)
    with ablate_heads(model, {SELF: [0]}), ablate_heads(model, {SELF: [2]}):
        got = model(tokens)
    with ablate_heads(model, {SELF: [0, 2]}):
        assert torch.equal(got, model(tokens))


def test_nothing_stays_behind():
    model = scrambled(decoder_config())
    with ablate_heads(model, {SELF: [0]}):
        assert hooks(model) == 1
    assert hooks(model) == 0
    with pytest.raises(RuntimeError, match="in the middle"), ablate_heads(model, {SELF: [0]}):
        raise RuntimeError("in the middle")
    assert hooks(model) == 0


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"decoder.blocks.0.attn": [0]}, f"no attention of this model; did you mean {SELF}"),
        ({"decoder.blocks.0": [0]}, "'decoder.blocks.0' is no attention"),
        ({SELF: [3]}, "has 3 heads and no head 3; give some of 0, 1, 2"),
        ({SELF: [-1]}, "no head -1"),
        ({SELF: [0], "x": [0]}, "'x' is no attention"),
    ],
)
def test_refuses_what_is_not_there(heads, message):
    model = scrambled(decoder_config())
    with pytest.raises(GlassformerError, match=message), ablate_heads(model, heads):
        pass
    assert hooks(model) == 0


def test_refuses_compiled_models_and_those_without_attention():
    compiled = torch.compile(scrambled(decoder_config()), backend="eager")
    with (
        pytest.raises(GlassformerError, match=r"given to torch\.compile"),
        ablate_heads(compiled, {}),
    ):
        pass
    with (
        pytest.raises(GlassformerError, match="Linear has no MultiHeadAttention"),
        ablate_heads(nn.Linear(2, 3), {}),
    ):
        pass


def test_heads_are_counted_as_the_module_splits_them():
    """Only head 1 carries anything; without it nothing is left."""
    model = scrambled(decoder_config(n_layers=1, bias=False))
    attention = model.get_submodule(SELF)
    with torch.no_grad():
        attention.v_proj.weight[:10] = attention.v_proj.weight[20:] = 0
    x = torch.randn(1, 5, 30).double()
    with ablate_heads(model, {SELF: [1]}):
        assert torch.equal(attention(x), torch.zeros(1, 5, 30).double())
    context = torch.randn(1, 3, 5, 10)
    assert torch.equal(merge_heads(context)[..., 10:20], context[:, 1])
