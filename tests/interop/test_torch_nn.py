"""torch.nn in both directions, and masks that change sides."""

import pytest
import torch
from glassformer.errors import ConfigError, MaskError
from glassformer.functional import attend, causal_mask, padding_mask
from glassformer.interop import (
    attention_from_torch,
    attention_to_torch,
    mask_from_torch,
    mask_to_torch,
    stack_from_torch,
    stack_to_torch,
    transformer_from_torch,
    transformer_to_torch,
)
from glassformer.nn import (
    Block,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    RelativePositionBias,
    RMSNorm,
    Stack,
)
from support.core import scramble
from torch import nn
from torch.testing import assert_close

D, H, F, T = 30, 3, 37, 5


def encoder(**changes):
    options = {"dropout": 0.0, "batch_first": True, **changes}
    layer = nn.TransformerEncoderLayer(D, H, F, **options)
    return scramble(nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False))


class TestMasks:
    def test_M06_one_causal_mask_means_the_same_on_every_entry_point(self):
        """The last of three tokens sees all of them, the first only itself, here and there."""
        mask = causal_mask(3)
        q, k, v = torch.randn(3, 1, 1, 3, 4)
        ours = attend(q, k, v, mask=mask, eager=True)
        sdpa = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        assert_close(ours, sdpa)
        theirs = scramble(nn.MultiheadAttention(D, H, batch_first=True))
        attention = attention_from_torch(theirs)
        x = torch.randn(1, 3, D)
        hidden = mask_to_torch(mask)
        want, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
        assert_close(attention(x, mask=mask), want, atol=1e-5, rtol=0)
        assert_close(attention(x, is_causal=True), want, atol=1e-5, rtol=0)
        assert_close(attention(x, mask=mask_from_torch(hidden)), want, atol=1e-5, rtol=0)
        # handed over as it is, a mask of one side hides on the other what it should show
        wrong, _ = theirs(x, x, x, attn_mask=mask, need_weights=False)
        assert not torch.allclose(wrong, want, atol=0.01)
        # row 0 is v[0]; row 2 depends on every value
        assert torch.equal(ours[0, 0, 0], v[0, 0, 0])
        v.requires_grad_()
        attend(q, k, v, mask=mask)[0, 0, 2].sum().backward()
        assert (v.grad.abs().sum(-1) > 0).all()

    def test_a_float_mask_says_the_same(self):
        theirs = nn.Transformer.generate_square_subsequent_mask(T)
        assert torch.equal(mask_from_torch(theirs), causal_mask(T))

    def test_there_and_back(self):
        mask = torch.rand(2, 3, T) > 0.5
        assert torch.equal(mask_from_torch(mask_to_torch(mask)), mask)
        assert torch.equal(mask_to_torch(mask), ~mask)

    def test_a_bias_is_no_mask(self):
        with pytest.raises(MaskError, match="0 for seen and -inf for hidden"):
            mask_from_torch(torch.tensor([0.0, -1.0]))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", nn.GELU("tanh"), nn.SiLU(inplace=True)])
def test_encoder_there_and_back(norm_first, activation):
    theirs = encoder(norm_first=norm_first, activation=activation, layer_norm_eps=0.01).eval()
    ours = stack_from_torch(theirs)
    back = stack_to_torch(ours)
    x = torch.randn(2, T, D)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    want = theirs(x, src_key_padding_mask=mask_to_torch(mask))
    assert_close(ours(x, mask=padding_mask(mask)), want, atol=1e-5, rtol=0)
    assert_close(back(x, src_key_padding_mask=mask_to_torch(mask)), want, atol=1e-5, rtol=0)
    weights = theirs.state_dict()
    assert back.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in back.state_dict().items())
    assert not back.training


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_whole_transformer_there_and_back():
    theirs = scramble(nn.Transformer(D, H, 2, 3, F, 0.1, batch_first=True, norm_first=True))
    theirs.decoder.layers[2].self_attn.dropout = 0.2
    theirs.decoder.layers[2].multihead_attn.dropout = 0.3
    back = transformer_to_torch(*transformer_from_torch(theirs)).eval()
    theirs.eval()
    source, target = torch.randn(2, 7, D), torch.randn(2, T, D)
    hide = mask_to_torch(causal_mask(T))
    assert_close(back(source, target, tgt_mask=hide), theirs(source, target, tgt_mask=hide))
    assert back.decoder.layers[0].dropout2.p == 0.1
    assert back.decoder.layers[2].self_attn.dropout == 0.2
    assert back.decoder.layers[2].multihead_attn.dropout == 0.3


def test_attention_there_and_back():
    theirs = scramble(nn.MultiheadAttention(D, H, dropout=0.1, batch_first=True)).eval()
    ours = attention_from_torch(theirs)
    back = attention_to_torch(ours)
    assert all(torch.equal(back.state_dict()[k], v) for k, v in theirs.state_dict().items())
    assert (ours.dropout, back.dropout, back.training) == (0.1, 0.1, False)


def test_each_rate_of_dropout_keeps_its_place():
    block = Block(
        MultiHeadAttention(D, H, dropout=0.1),
        FeedForward(D, F, dropout=0.2),
        make_norm=lambda: LayerNorm(D),
        dropout=0.3,
    )
    layer = stack_to_torch(Stack([block])).layers[0]
    assert (layer.self_attn.dropout, layer.dropout.p, layer.dropout1.p) == (0.1, 0.2, 0.3)
    back = stack_from_torch(stack_to_torch(Stack([block]))).blocks[0]
    assert (back.self_attn.dropout, back.feed_forward.dropout.p, back.dropout.p) == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("part", ["norm2", "norm3", "dropout2", "dropout3"])
def test_parts_of_one_layer_that_differ_are_refused_on_the_way_in(part):
    theirs = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, F), 1)
    what = "p" if part.startswith("dropout") else "eps"
    setattr(getattr(theirs.layers[0], part), what, 0.5)
    with pytest.raises(ConfigError, match=r"0\.5.*within one layer has no counterpart"):
        stack_from_torch(theirs)


@pytest.mark.parametrize("part", ["cross_attn_norm", "feed_forward_norm"])
def test_norms_of_one_layer_that_differ_are_refused_on_the_way_out(part):
    theirs = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, F), 1)
    ours = stack_from_torch(theirs)
    getattr(ours.blocks[0], part).eps = 0.5
    with pytest.raises(ConfigError, match=r"eps of .*0\.5.*within one layer"):
        stack_to_torch(ours)


def test_the_copy_is_a_copy():
    theirs = encoder()
    ours = stack_from_torch(theirs)
    before = theirs.layers[0].linear1.weight.detach().clone()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert torch.equal(theirs.layers[0].linear1.weight, before)
    assert all(parameter.requires_grad for parameter in ours.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: encoder(activation=nn.ELU()), "no counterpart"),
        (lambda: encoder(activation=nn.ReLU6()), "no counterpart"),
        (lambda: encoder(activation=nn.Hardtanh(0, 6)), "no counterpart"),
        (lambda: encoder(bias=False), "bias"),
        (lambda: nn.TransformerEncoder(encoder().layers[0], 2, nn.RMSNorm(D)), "nn.LayerNorm"),
        (lambda: nn.TransformerEncoder(nn.Linear(D, D), 2), "none of PyTorch's own layers"),
    ],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_what_we_lack_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        stack_from_torch(make())


@pytest.mark.parametrize(
    "options", [{"kdim": 7}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}]
)
def test_attention_we_lack_is_refused(options):
    with pytest.raises(ConfigError, match="no counterpart"):
        attention_from_torch(nn.MultiheadAttention(D, H, **options))


def stack(attention=None, network=None, norm=LayerNorm, **options):
    block = Block(
        attention or MultiHeadAttention(D, H),
        network or FeedForward(D, F),
        make_norm=lambda: norm(D),
    )
    return Stack([block], **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: stack(MultiHeadAttention(D, H, n_kv_heads=1)), "grouped heads"),
        (lambda: stack(MultiHeadAttention(D, H, bias=False)), "without a bias"),
        (lambda: stack(network=FeedForward(D, F, activation="swiglu")), "no gates"),
        (lambda: stack(network=FeedForward(D, F, bias=False)), "have biases"),
        (lambda: stack(norm=RMSNorm), "LayerNorm"),
        (lambda: stack(relative=RelativePositionBias(H)), "no relative positions"),
    ],
)
def test_what_they_lack_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        stack_to_torch(make())
