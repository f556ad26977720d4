"""Looking inside: weights as they are, and a model that is as before."""

import pytest
import torch
from glassformer import attention_weights, capture_attention
from glassformer.errors import GlassformerError
from glassformer.inference import prepare
from glassformer.nn import MultiHeadAttention
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config
from torch import nn
from torch.testing import assert_close


def attentions(model):
    return [m for m in model.modules() if isinstance(m, MultiHeadAttention)]


def hooks(model):
    return sum(len(m._forward_hooks) for m in model.modules())


def test_X01_every_layer_and_head_and_the_same_output():
    """Weights come from the explicit path, the output does not change, the path comes back."""
    model = scrambled(decoder_config(n_kv_heads=1))
    assert not any(attention.eager for attention in attentions(model))
    tokens = ids(2, 7)
    want = model(tokens)
    with capture_attention(model) as maps:
        assert_close(model(tokens), want, atol=1e-10, rtol=0)
    assert list(maps) == ["decoder.blocks.0.self_attn", "decoder.blocks.1.self_attn"]
    for weights in maps.values():
        assert weights.shape == (2, 3, 7, 7)
        assert not weights.requires_grad
        assert_close(weights.sum(-1), torch.ones(2, 3, 7).double())
        assert torch.equal(weights, weights.tril())
    assert not any(attention.eager for attention in attentions(model))
    assert torch.equal(model(tokens), want)


def test_names_of_an_encoder_decoder():
    model = scrambled(translator_config(n_encoder_layers=1))
    with capture_attention(model) as maps:
        model(ids(2, 7), ids(2, 5))
    assert {name: tuple(weights.shape) for name, weights in maps.items()} == {
        "encoder.blocks.0.self_attn": (2, 3, 7, 7),
        "decoder.blocks.0.self_attn": (2, 3, 5, 5),
        "decoder.blocks.0.cross_attn": (2, 3, 5, 7),
        "decoder.blocks.1.self_attn": (2, 3, 5, 5),
        "decoder.blocks.1.cross_attn": (2, 3, 5, 7),
    }


def test_X03_heads_are_kept_apart():
    """One diagonal head and three uniform ones, not their average."""
    model = MultiHeadAttention(16, 4, bias=False)
    with torch.no_grad():
        for projection in (model.q_proj, model.k_proj):
            projection.weight.zero_()
            projection.weight[:4, :4] = 100 * torch.eye(4)
    x = torch.cat((torch.eye(4), torch.zeros(4, 12)), dim=1)[None]
    with capture_attention(model) as maps:
        model(x)
    (weights,) = maps.values()
    assert_close(weights[0, 0], torch.eye(4))
    assert weights.shape == (1, 4, 4, 4)
    assert_close(weights[0, 1:], torch.full((3, 4, 4), 0.25))


def test_X02_weights_are_before_dropout():
    """Rows sum to one in training too."""
    model = scrambled(decoder_config(dropout=0.5)).train()
    with capture_attention(model) as maps:
        model(ids(2, 7))
    for weights in maps.values():
        assert_close(weights.sum(-1), torch.ones(2, 3, 7).double(), atol=1e-5, rtol=0)
    assert model.training


def test_same_output_in_training_with_the_same_seed():
    model = scrambled(decoder_config(dropout=0.4)).train()
    tokens = ids(2, 7)
    torch.manual_seed(1)
    want = model(tokens)
    torch.manual_seed(1)
    with capture_attention(model):
        got = model(tokens)
    assert_close(got, want, atol=1e-10, rtol=0)


def test_gradients_flow_while_looking():
    model = scrambled(decoder_config())
    with capture_attention(model):
        model(ids(2, 5)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_padding_rows_are_zero():
    model = scrambled(encoder_config())
    token_mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    with capture_attention(model) as maps:
        model(ids(2, 5), token_mask=token_mask)
    weights = maps["encoder.blocks.0.self_attn"]
    assert (weights[0, ..., 3:] == 0).all()
    assert (weights[1] > 0).all()


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_restored(fails):
    model = scrambled(decoder_config())
    attentions(model)[1].eager = True  # somebody's own choice
    before = hooks(model)
    try:
        with capture_attention(model):
            assert all(attention.eager for attention in attentions(model))
            model(ids(2, 5))
            if fails:
                raise RuntimeError("in the middle")
    except RuntimeError:
        assert fails
    assert [attention.eager for attention in attentions(model)] == [False, True]
    assert hooks(model) == before == 0
    assert "eager" not in model.state_dict()


def test_nested_captures_see_the_same():
    model = scrambled(decoder_config())
    with capture_attention(model) as outer, capture_attention(model) as inner:
        model(ids(2, 5))
    assert outer.keys() == inner.keys()
    for name in outer:
        assert torch.equal(outer[name], inner[name])
    assert hooks(model) == 0


def test_last_pass_stays_and_nothing_is_recorded_afterwards():
    model = scrambled(decoder_config())
    with capture_attention(model) as maps:
        model(ids(2, 5))
        model(ids(1, 3))
    assert maps["decoder.blocks.0.self_attn"].shape == (1, 3, 3, 3)
    model(ids(2, 7))
    assert maps["decoder.blocks.0.self_attn"].shape == (1, 3, 3, 3)


def test_one_step_with_a_cache():
    model = scrambled(decoder_config())
    tokens = ids(2, 7)
    with capture_attention(model) as maps:
        model(tokens)
        full = maps["decoder.blocks.1.self_attn"]
        cache = model.new_cache()
        model(tokens[:, :6], cache=cache)
        model(tokens[:, 6:], cache=cache)
        step = maps["decoder.blocks.1.self_attn"]
    assert_close(step, full[:, :, 6:])


@pytest.mark.parametrize("device", ["cpu", None])
def test_maps_are_copies(device):
    attention = MultiHeadAttention(12, 3)
    with capture_attention(attention, device=device) as maps:
        weights = {}
        hook = attention.weights_tap.register_forward_hook(
            lambda module, args, out: weights.update(live=out)
        )
        attention(torch.randn(1, 5, 12))
        hook.remove()
    (kept,) = maps.values()
    assert kept.data_ptr() != weights["live"].data_ptr()
    assert torch.equal(kept, weights["live"])


def test_weights_are_those_of_the_formula():
    attention = MultiHeadAttention(12, 3)
    x = torch.randn(2, 5, 12)
    q, k = (
        layer(x).unflatten(-1, (3, 4)).transpose(1, 2)
        for layer in (attention.q_proj, attention.k_proj)
    )
    with capture_attention(attention) as maps:
        attention(x, is_causal=True)
    (weights,) = maps.values()
    assert_close(weights, attention_weights(q, k, is_causal=True).detach())


def test_model_without_attention():
    with (
        pytest.raises(GlassformerError, match="Linear has no MultiHeadAttention to look at"),
        capture_attention(nn.Linear(2, 3)),
    ):
        pass


def test_compiled_model():
    model = scrambled(decoder_config())
    compiled = torch.compile(model, backend="eager")
    with (
        pytest.raises(GlassformerError, match=r"pass the model that was given to torch\.compile"),
        capture_attention(compiled),
    ):
        pass
    assert hooks(model) == 0


@pytest.mark.parametrize("config", [decoder_config(), translator_config()])
def test_a_prepared_model_has_no_parts_to_look_into(config):
    """A translator's encoder is as it was, but half of the maps would say nothing of the rest."""
    prepared = prepare(scrambled(config).float())
    with pytest.raises(GlassformerError, match="was made of"), capture_attention(prepared):
        pass


def test_compiled_part():
    model = scrambled(decoder_config())
    model.decoder = torch.compile(model.decoder, backend="eager")
    with (
        pytest.raises(GlassformerError, match=r"pass the model that was given to torch\.compile"),
        capture_attention(model),
    ):
        pass
