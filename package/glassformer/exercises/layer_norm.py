"""Checks for the exercises of the chapter ``layer_norm``."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.exercises import Failed, exercise, expect, expect_close

__all__: list[str] = []

_ONCE = (
    "The memory of a piece is used again for the next one: keep what you computed from a piece, "
    "not the piece, and go through the pieces once."
)


@exercise("layer_norm.review", minutes=15, level="medium")
def review(learner: Any) -> None:
    """Three bugs that leave shapes, ranges and the first look of the numbers right."""
    x, weight, bias = torch.randn(3, 5, 7), torch.rand(7) + 0.5, torch.randn(7)
    fed = "x of shape (3, 5, 7): 3 sentences of 5 tokens, 7 features"
    got = learner(x.clone(), weight, bias)
    shape = tuple(got.shape) if isinstance(got, Tensor) else got
    expect(shape == (3, 5, 7), "the shape stays", fed=fed, expected="(3, 5, 7)", got=shape)
    changed = x.clone()
    changed[:, 4] += 3.0 * torch.randn(7)
    apart = learner(changed, weight, bias)[:, :4] - got[:, :4]
    moved = float(apart.detach().abs().max())
    expect(
        moved < 1e-6,
        "a token is normalised by itself: no other token has a say",
        fed=f"{fed}; then the last token of each sentence is changed",
        expected="the first four tokens stay as they are",
        got=f"they move by up to {moved:.2g}",
        hint="Which axis holds the numbers of one token? Only that axis may be averaged over.",
    )
    spread = learner(x * 100, torch.ones(7), torch.zeros(7)).square().mean(-1)
    expect_close(
        "the variance of a normalised token is 1",
        spread,
        torch.ones(3, 5),
        fed="the same x a hundred times as large, weight 1, bias 0",
        hint="Is the sum of squares divided by 7 or by 6? The default of var and std is N - 1.",
        atol=1e-3,
    )
    expect_close(
        "weight scales and bias shifts each feature",
        got,
        F.layer_norm(x, (7,), weight, bias),
        fed=f"{fed}, random weight and bias",
        hint="normalised * weight + bias, with eps = 1e-5 added to the variance.",
        atol=1e-4,
    )
    small = x * 1e-3
    expect_close(
        "eps is added to the variance, inside the root",
        learner(small.clone(), weight, bias),
        F.layer_norm(small, (7,), weight, bias),
        fed="the same x a thousand times as small, so that eps decides",
        hint="sqrt(variance + eps), not sqrt(variance) + eps.",
        atol=1e-4,
    )
    rows = torch.zeros(1, 5, 7, requires_grad=True)
    learner(rows, weight, bias).sum().backward()
    broken = 0 if rows.grad is None else int((~rows.grad.isfinite()).sum())
    expect(
        broken == 0,
        "the gradient of a constant row is finite",
        fed="a row of zeros, as padding often is",
        expected="every gradient a finite number",
        got=f"{broken} of 35 are NaN or infinite",
        hint="The slope of a square root at 0 is infinite. What must stand under the root?",
    )


@exercise("layer_norm.rms", minutes=10, level="easy")
def rms(learner: Any) -> None:
    """RMSNorm that survives half precision."""
    x, weight = torch.randn(2, 3, 7) + 1.0, torch.rand(7) + 0.5
    expect_close(
        "a row is divided by the root of its mean square",
        learner(x.clone(), weight, 1e-6),
        F.rms_norm(x, (7,), weight, 1e-6),
        fed="x of shape (2, 3, 7) whose rows have means near 1, in float32",
        hint="No mean is subtracted. The mean square is x.square().mean(-1, keepdim=True).",
    )
    expect_close(
        "any leading shape will do",
        learner(x[0, 0].clone(), weight, 1e-6),
        F.rms_norm(x[0, 0], (7,), weight, 1e-6),
        fed="a single row, x of shape (7,)",
        hint="The features are the last axis, however many stand before it: dim=-1.",
    )
    quiet = x * 1e-3
    expect_close(
        "eps is added to the mean square, inside the root",
        learner(quiet.clone(), weight, 1e-6),
        F.rms_norm(quiet, (7,), weight, 1e-6),
        fed="the same x a thousand times as small",
        hint="sqrt(mean square + eps).",
    )
    half = (x * 200).half()
    expect_close(
        "numbers whose squares are no float16 come out right",
        learner(half.clone(), weight.half(), 1e-6),
        F.rms_norm(half.float(), (7,), weight.half().float(), 1e-6).half(),
        fed="x with numbers up to several hundred and the weight, both in float16",
        hint="The largest float16 is 65504, and 300 squared is 90000. Square in float32, and give "
        "the dtype back at the end: the result and its weight are as x came in.",
        atol=5e-3,
        rtol=5e-3,
    )


@exercise("layer_norm.backward", minutes=20, level="medium")
def backward(learner: Any) -> None:
    """The gradient through the normalisation, without autograd."""
    x = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(3, 5, 7, dtype=torch.float64)
    y = F.layer_norm(x, (7,), eps=1e-5)
    (want,) = torch.autograd.grad(y, x, grad)
    sd = (x.detach().var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    got = learner(y.detach().clone(), sd.clone(), grad.clone())
    if not isinstance(got, Tensor) or got.shape != want.shape:
        raise Failed(
            "the gradient has the shape of x",
            fed="y and its gradient of shape (3, 5, 7), sd of shape (3, 5, 1)",
            expected="(3, 5, 7)",
            got=str(tuple(got.shape)) if isinstance(got, Tensor) else got,
            hint="Sums over the features need keepdim=True.",
        )
    expect_close(
        "the gradient of each row sums to zero",
        got.sum(-1),
        torch.zeros(3, 5, dtype=torch.float64),
        fed="y, sd and the gradient of y",
        hint="Adding a number to a whole row changes nothing in y. So the gradient has no part in "
        "the direction (1, ..., 1): subtract the mean of grad over the features.",
    )
    expect_close(
        "the gradient of each row has no part along y",
        (got * y.detach()).sum(-1),
        torch.zeros(3, 5, dtype=torch.float64),
        fed="y, sd and the gradient of y",
        hint="Stretching a row changes nothing in y either: subtract y times the mean of grad * y.",
        atol=1e-3,
    )
    expect_close(
        "the gradient equals what autograd says",
        got,
        want.detach(),
        fed="y, sd and the gradient of y",
        hint="What is left is divided by sd: a row ten times as large moves y a tenth as much.",
        atol=1e-4,
    )


@exercise("layer_norm.fold", minutes=15, level="medium")
def fold(learner: Any) -> None:
    """Weight and bias of a norm vanish into the linear layer behind it."""
    weight, bias = torch.rand(7) + 0.5, torch.randn(7)
    linear = torch.nn.Linear(7, 5)
    matrix, offset = linear.weight.detach(), linear.bias.detach()
    fed = "weight and bias of width 7, a matrix of shape (5, 7) and its bias of width 5"
    result = learner(weight.clone(), bias.clone(), matrix.clone(), offset.clone())
    expect(
        isinstance(result, tuple) and len(result) == 2,
        "a matrix and a bias come back",
        fed=fed,
        expected="a tuple of two",
        got=result,
    )
    new_matrix, new_offset = result
    expect_close(
        "the matrix takes the weight in: each of its columns is scaled",
        new_matrix,
        matrix * weight,
        fed=fed,
        hint="A feature enters the matrix through one column. nn.Linear stores (out, in).",
    )
    expect_close(
        "the bias takes the norm's bias in, through the matrix as it was",
        new_offset,
        offset + matrix @ bias,
        fed=fed,
        hint="W (z * weight + bias) + b: multiply it out. The norm's bias meets W alone.",
    )
    x = torch.randn(3, 4, 7)
    expect_close(
        "the folded layer gives what both gave before",
        F.linear(F.layer_norm(x, (7,)), new_matrix, new_offset),
        F.linear(F.layer_norm(x, (7,), weight, bias), matrix, offset),
        fed="random tokens of shape (3, 4, 7)",
    )


@exercise("layer_norm.streaming", minutes=25, level="hard")
def streaming(learner: Any) -> None:
    """Mean and variance of a long row that arrives in pieces, once."""
    row = torch.randn(12)
    _statistics("one piece gives the mean and the variance", learner, row, [12], "12 numbers")
    _statistics(
        "several pieces give the same as one",
        learner,
        torch.cat([row[:4], row[4:8] + 3.0, row[8:] - 5.0]),
        [4, 4, 4],
        "12 numbers in pieces of 4, whose means lie apart",
    )
    _statistics(
        "a shorter piece counts for less",
        learner,
        torch.cat([row[:10], row[10:] + 4.0]),
        [10, 2],
        "12 numbers in pieces of 10 and 2",
    )
    _statistics(
        "a mean far from zero does not eat the variance",
        learner,
        row + 10_000.0,
        [5, 5, 2],
        "12 numbers around 10,000 with a spread of 1, in float32",
        atol=2e-2,
    )
    _statistics(
        "each piece is seen once",
        learner,
        torch.cat([row[:5], row[5:] + 4.0]),
        [5, 5, 2],
        "12 numbers in pieces of 5, 5 and 2, one at a time, all in the same memory",
        once=True,
    )


def _one_at_a_time(row: Tensor, sizes: list[int]) -> Iterator[Tensor]:
    """The pieces in one buffer: each overwrites the one before."""
    buffer = torch.empty(max(sizes))
    for piece in row.split(sizes):
        yield buffer[: len(piece)].copy_(piece)


def _statistics(
    property: str,
    learner: Any,
    row: Tensor,
    sizes: list[int],
    fed: str,
    *,
    atol: float = 1e-4,
    once: bool = False,
) -> None:
    pieces = _one_at_a_time(row, sizes) if once else [piece.clone() for piece in row.split(sizes)]
    result = learner(pieces)
    expect(
        isinstance(result, tuple) and len(result) == 2,
        f"{property}: mean and variance come back",
        fed=fed,
        expected="a tuple of two",
        got=result,
    )
    exact = row.double()
    mean, variance = (float(number) for number in result)
    expect_close(
        f"{property}: the mean",
        mean,
        float(exact.mean()),
        fed=fed,
        hint=_ONCE if once else "Weigh each piece by how many numbers it has.",
        atol=1e-4,
    )
    expect_close(
        f"{property}: the variance",
        variance,
        float(exact.var(unbiased=False)),
        fed=fed,
        hint=_ONCE
        if once
        else "Pieces whose means lie apart spread wider together than each alone: add "
        "n_a n_b / (n_a + n_b) times the squared distance of the means to the sums of squared "
        "deviations. And never subtract two large numbers: the mean square minus the squared "
        "mean loses every digit far from zero. Divide by N.",
        atol=atol,
    )
