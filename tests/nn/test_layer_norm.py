"""Norms: the formulas, and statistics in float32 whatever the dtype."""

import pytest
import torch
from glassformer.nn import LayerNorm, RMSNorm
from support.core import scramble
from torch.testing import assert_close

D = 7
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_its_formula(bias):
    norm = scramble(LayerNorm(D, eps=0.1, bias=bias).double())
    x = torch.randn(2, 3, D).double() * 5 + 1
    mean = x.sum(-1, keepdim=True) / D
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / D  # divisor D, not D - 1
    want = (x - mean) / (variance + 0.1).sqrt() * norm.weight
    assert_close(norm(x), want + norm.bias if bias else want)
    assert ("bias" in dict(norm.named_parameters())) == bias


def test_rms_norm_is_its_formula():
    norm = scramble(RMSNorm(D, eps=0.1).double())
    x = torch.randn(2, 3, D).double() * 5 + 1
    want = x / ((x**2).sum(-1, keepdim=True) / D + 0.1).sqrt() * norm.weight
    assert_close(norm(x), want)
    assert list(dict(norm.named_parameters())) == ["weight"]


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dtype", HALVES)
def test_statistics_are_computed_in_float32(kind, dtype):
    """The square of 300 is no float16, and a sum of 4096 squares no exact half."""
    norm = kind(4096)
    x = (torch.randn(3, 4096) * 300).to(dtype)
    got = norm.to(dtype)(x)
    want = kind(4096)(x.float())
    assert got.dtype == dtype
    assert_close(got.float(), want, atol=torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_gradients(kind):
    norm = scramble(kind(D).double())
    x = torch.randn(3, D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, x)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_constant_input_stays_finite(kind):
    norm = kind(D)
    assert norm(torch.zeros(2, D)).isfinite().all()


def test_repr_names_what_it_is():
    assert repr(LayerNorm(D, eps=0.5, bias=False)) == "LayerNorm(7, eps=0.5, bias=False)"
    assert repr(RMSNorm(D, eps=0.5)) == "RMSNorm(7, eps=0.5)"
