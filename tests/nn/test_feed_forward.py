"""The feed-forward network: its formulas, one position at a time."""

import math

import pytest
import torch
from glassformer.errors import ConfigError
from glassformer.nn import FeedForward
from support.core import scramble
from torch.testing import assert_close

D, F = 5, 11


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x * torch.sigmoid(x)


FORMULAS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}
GATED = {"swiglu": silu, "geglu": gelu_tanh}


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("bias", [True, False])
def test_formula(activation, bias):
    layer = scramble(FeedForward(D, F, activation=activation, bias=bias).double())
    x = torch.randn(2, 3, D).double()
    up = x @ layer.up_proj.weight.T + (layer.up_proj.bias if bias else 0)
    want = FORMULAS[activation](up) @ layer.down_proj.weight.T
    assert_close(layer(x), want + (layer.down_proj.bias if bias else 0))
    assert (layer.up_proj.bias is not None) == bias


@pytest.mark.parametrize("activation", GATED)
def test_gated_formula(activation):
    layer = scramble(FeedForward(D, F, activation=activation, bias=False).double())
    x = torch.randn(2, 3, D).double()
    gate, up = x @ layer.gate_proj.weight.T, x @ layer.up_proj.weight.T
    want = (GATED[activation](gate) * up) @ layer.down_proj.weight.T
    assert_close(layer(x), want)


def test_positions_do_not_mix():
    layer = scramble(FeedForward(D, F))
    x = torch.randn(2, 7, D)
    assert_close(layer(x)[:, 3], layer(x[:, 3]))


def test_dropout_acts_on_hidden_values_in_training_only():
    layer = FeedForward(D, F, activation="relu", dropout=0.5)
    x = torch.randn(2, 7, D)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.usefixtures("no_shape_checks")
def test_unknown_activation():
    with pytest.raises(ConfigError, match="'glu' is unknown; it may be relu, gelu, gelu_tanh"):
        FeedForward(D, F, activation="glu")
