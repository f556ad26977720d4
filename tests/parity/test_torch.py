"""Parity with torch.nn, in float64: same numbers and same gradients from the same weights."""

from functools import partial

import pytest
import torch
from glassformer.functional import causal_mask, padding_mask
from glassformer.interop import (
    attention_from_torch,
    mask_to_torch,
    stack_from_torch,
    transformer_from_torch,
)
from glassformer.nn import LayerNorm, RMSNorm
from support.core import scramble
from torch import nn
from torch.testing import assert_close

B, T, S, D, H, F = 2, 5, 7, 30, 3, 37
close = partial(assert_close, atol=1e-10, rtol=0)


def x_and_memory():
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(B, S, D, dtype=torch.float64, requires_grad=True)


def real(*lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def same_gradients(ours, theirs, *inputs):
    weights = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    got = torch.autograd.grad((ours * weights).sum(), inputs)
    want = torch.autograd.grad((theirs * weights).sum(), inputs)
    for one, other in zip(got, want, strict=True):
        close(one, other)


def stack_of(layer):
    """One of their layers as a stack of one of our blocks."""
    if isinstance(layer, nn.TransformerDecoderLayer):
        return stack_from_torch(nn.TransformerDecoder(layer, 1))
    return stack_from_torch(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))


def oracle(kind, norm_first, activation):
    layer = kind(
        D, H, F, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    return scramble(layer.double())


@pytest.mark.parametrize("training", [True, False])
class TestAttention:
    def pair(self, training):
        theirs = scramble(nn.MultiheadAttention(D, H, batch_first=True).double()).train(training)
        return attention_from_torch(theirs), theirs

    @pytest.mark.parametrize("eager", [True, False])
    def test_self_attention(self, training, eager):
        ours, theirs = self.pair(training)
        ours.eager = eager
        x, _ = x_and_memory()
        want, _ = theirs(x, x, x, need_weights=False)
        got = ours(x)
        close(got, want)
        same_gradients(got, want, x)

    def test_causal_and_padding(self, training):
        """Their True hides, ours allows."""
        ours, theirs = self.pair(training)
        x, _ = x_and_memory()
        token_mask = real(5, 3, width=T)
        want, _ = theirs(
            x,
            x,
            x,
            attn_mask=mask_to_torch(causal_mask(T)),
            key_padding_mask=mask_to_torch(token_mask),
        )
        close(ours(x, mask=padding_mask(token_mask), is_causal=True), want)

    def test_memory(self, training):
        ours, theirs = self.pair(training)
        x, memory = x_and_memory()
        token_mask = real(7, 2, width=S)
        want, _ = theirs(x, memory, memory, key_padding_mask=mask_to_torch(token_mask))
        got = ours(x, memory=memory, mask=padding_mask(token_mask))
        close(got, want)
        same_gradients(got, want, x, memory)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
class TestLayers:
    def test_encoder_layer(self, norm_first, activation):
        theirs = oracle(nn.TransformerEncoderLayer, norm_first, activation)
        ours = stack_of(theirs)
        x, _ = x_and_memory()
        token_mask = real(5, 3, width=T)
        want = theirs(x, src_key_padding_mask=mask_to_torch(token_mask))
        got = ours(x, mask=padding_mask(token_mask))
        close(got, want)
        same_gradients(got, want, x)

    def test_decoder_layer(self, norm_first, activation):
        theirs = oracle(nn.TransformerDecoderLayer, norm_first, activation)
        ours = stack_of(theirs)
        x, memory = x_and_memory()
        token_mask = real(7, 2, width=S)
        want = theirs(
            x,
            memory,
            tgt_mask=mask_to_torch(causal_mask(T)),
            memory_key_padding_mask=mask_to_torch(token_mask),
        )
        got = ours(x, is_causal=True, memory=memory, memory_mask=padding_mask(token_mask))
        close(got, want)
        same_gradients(got, want, x, memory)


# nn.Transformer warns that its nested tensors do not go with norm_first; they are not used here.
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_M15_whole_transformer_in_three_modes(mode, norm_first):
    """Compared at real places only: theirs zeroes or cuts off padding in one of its modes."""
    theirs = nn.Transformer(
        D, H, 2, 2, F, 0.0, "relu", batch_first=True, norm_first=norm_first
    ).double()
    scramble(theirs).train(mode == "train")
    encoder, decoder = transformer_from_torch(theirs)
    x, memory = x_and_memory()
    source_mask, target_mask = real(6, 2, width=S), real(5, 3, width=T)
    with torch.set_grad_enabled(mode != "no_grad"):
        encoded = theirs.encoder(memory, src_key_padding_mask=mask_to_torch(source_mask))
        got_encoded = encoder(memory, mask=padding_mask(source_mask))
        assert got_encoded.shape == memory.shape
        width = encoded.shape[1]  # its fast path cuts off what is padding in every row
        seen = source_mask[:, :width]
        close(got_encoded[:, :width][seen], encoded[seen])
        want = theirs.decoder(
            x,
            got_encoded,
            tgt_mask=mask_to_torch(causal_mask(T)),
            tgt_key_padding_mask=mask_to_torch(target_mask),
            memory_key_padding_mask=mask_to_torch(source_mask),
        )
        got = decoder(
            x,
            mask=padding_mask(target_mask),
            is_causal=True,
            memory=got_encoded,
            memory_mask=padding_mask(source_mask),
        )
        close(got[target_mask], want[target_mask])


@pytest.mark.parametrize(("ours", "theirs"), [(LayerNorm, nn.LayerNorm), (RMSNorm, nn.RMSNorm)])
def test_norms(ours, theirs):
    theirs = scramble(theirs(D, eps=0.01).double())
    mine = ours(D, eps=0.01).double()
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True) * 3
    close(mine(x), theirs(x))
    same_gradients(mine(x), theirs(x), x)
