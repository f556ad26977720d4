"""Checks for the exercises of the chapter ``attention``."""

from typing import Any

import torch
from torch import Tensor

from glassformer.exercises import Failed, exercise, expect, expect_close
from glassformer.functional import attend, attention_weights, causal_mask
from glassformer.lab.measure import peak_bytes

__all__: list[str] = []


def _tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape) for shape in shapes]


@exercise("attention.review", minutes=15, level="medium")
def review(learner: Any) -> None:
    """Three bugs that a test of shapes does not see."""
    q, k, v = _tensors((2, 3, 4, 7), (2, 3, 5, 7), (2, 3, 5, 6))
    sizes = "4 queries and 5 keys of width 7"
    expect_close(
        "the weights of each query sum to one",
        learner(q.clone(), k.clone(), torch.ones_like(v)),
        torch.ones(2, 3, 4, 6),
        fed=f"{sizes}, and values that are all 1, whose average is 1",
        hint="Over which axis must the shares of one query sum to one: its queries or its keys?",
    )
    expect_close(
        "the scores are divided by the square root of the width",
        learner(q.clone(), k.clone(), v.clone()),
        attend(q, k, v, eager=True),
        fed=f"{sizes}, no mask",
        hint="The factor depends on how many products one score adds up, not on how many keys "
        "there are.",
    )
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[:, 2] = False
    loud = v.clone()
    loud[:, :, 2] = 1000.0
    fed = f"{sizes}, a mask that is False for key 2, whose value is 1000"
    expect_close(
        "a key whose mask is False has no say",
        learner(q.clone(), k.clone(), loud, mask),
        attend(q, k, v, mask=mask, eager=True),
        fed=fed,
        hint="True means may attend. Which entries does masked_fill overwrite?",
    )


@exercise("attention.lookup", minutes=10, level="easy")
def lookup(learner: Any) -> None:
    """A dictionary whose keys may match a little: temperature decides how little."""
    keys, values = torch.eye(5) * 3, torch.arange(10.0).square().reshape(5, 2)
    query = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.5])
    scores = keys @ query
    expect_close(
        "at temperature 1 the shares are the softmax of the dot products",
        learner(query, keys, values, 1.0),
        scores.softmax(-1) @ values,
        fed="one query of width 5, five keys, temperature 1",
        hint="Every key has a say, through the softmax of score / temperature. The temperature "
        "stands in the place of √d_k: do not divide by both.",
    )
    expect_close(
        "at a low temperature the best key takes everything",
        learner(query, keys, values, 0.05),
        values[2],
        fed="scores 3, 0, 6, 0, 1.5 and temperature 0.05",
        hint="A low temperature must make differences larger before the softmax. Does yours "
        "divide or multiply?",
        atol=1e-3,
    )
    expect_close(
        "at a high temperature every key has the same say",
        learner(query, keys, values, 1e6),
        values.mean(0),
        fed="the same scores and temperature 1,000,000",
        hint="Taking the best key alone is right only in the limit of temperature zero.",
        atol=1e-3,
    )
    expect_close(
        "several queries are answered at once",
        learner(torch.stack([query, -query, query]), keys, values, 2.0),
        torch.stack([(s / 2).softmax(-1) @ values for s in (scores, -scores, scores)]),
        fed="three queries, shape (3, 5)",
        hint="Put the queries on the left of the product and take the softmax over the last axis.",
    )
    queries, keys, values = _tensors((3, 5), (5, 5), (5, 2))
    expect_close(
        "a score is the dot product of a query with one row of the keys",
        learner(queries, keys, values, 2.0),
        (queries @ keys.mT / 2).softmax(-1) @ values,
        fed="three random queries and five random keys, all of width 5",
        hint="As many keys as each is wide: the shapes fit without the transposition too.",
    )


@exercise("attention.blind_rows", minutes=15, level="medium")
def blind_rows(learner: Any) -> None:
    """A query that may see nothing gives zeros, forward and backward."""
    q, k, v = (t.requires_grad_() for t in _tensors((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7)))
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0, 3:] = False
    mask[2] = False
    fed = "4 queries, 6 keys; query 0 may see keys 0 to 2, query 2 may see nothing"
    out = learner(q, k, v, mask)
    want = attend(q, k, v, mask=mask, eager=True)
    expect_close(
        "queries that may see something are as before",
        out[:, :, [0, 1, 3]],
        want[:, :, [0, 1, 3]],
        fed=fed,
        hint="Your repair must leave the other rows alone. Is True still 'may attend'?",
    )
    expect_close(
        "the query that may see nothing gives zeros",
        out[:, :, 2],
        want[:, :, 2],
        fed=fed,
        hint="Softmax of -inf everywhere is 0/0. Of one finite number everywhere it is an equal "
        "share for all, hidden ones too: so take their weights away after the softmax.",
    )
    got = torch.autograd.grad(out[:, :, [0, 1, 3]].sum(), (q, k, v))
    expected = torch.autograd.grad(want[:, :, [0, 1, 3]].sum(), (q, k, v))
    for name, mine, right in zip("qkv", got, expected, strict=True):
        expect_close(
            f"the gradient of {name} is sound although a row was blind",
            mine,
            right,
            fed=f"{fed}; the loss leaves query 2 out",
            hint="A NaN that is covered up afterwards is still there in the backward pass. Keep it "
            "from arising: fill with a finite number, torch.finfo(scores.dtype).min.",
        )


@exercise("attention.sample_mask", minutes=10, level="easy")
def sample_mask(learner: Any) -> None:
    """Causal, and blind to the padding of its own sample."""
    lengths, n = torch.tensor([5, 2, 3]), 5
    fed = "lengths [5, 2, 3] in a batch of width 5"
    mask = learner(lengths, n)
    expect(isinstance(mask, Tensor), "the mask is a tensor", fed=fed, expected="a tensor", got=mask)
    expect(
        mask.dtype == torch.bool,
        "the mask is boolean",
        fed=fed,
        expected="torch.bool",
        got=str(mask.dtype),
        hint="A comparison of two ranges of positions is boolean by itself.",
    )
    want = causal_mask(n) & (torch.arange(n) < lengths[:, None])[:, None, None, :]
    if mask.ndim != 4 or mask.shape[:2] != (3, 1):
        raise Failed(
            "the mask has an axis for the sample and one for the heads",
            fed=fed,
            expected="(3, 1, 5, 5), which broadcasts over the heads",
            got=str(tuple(mask.shape)),
            hint="With three axes the first is lined up with the heads. Insert an axis: "
            "mask[:, None].",
        )
    shown = mask.expand(3, mask.shape[1], n, n)[:, :1]
    future = shown & ~causal_mask(n)
    expect(
        not future.any(),
        "nobody sees the future",
        fed=fed,
        expected="False wherever the key stands after the query",
        got=f"{int(future.sum())} such entries are True",
        hint="Both conditions must hold: & and not |. And True means may attend.",
    )
    padding = shown & ~want
    expect(
        not padding.any(),
        "nobody attends to padding",
        fed=fed,
        expected="False wherever the key is padding",
        got=f"{int(padding.sum())} such entries are True",
        hint="Padding is a property of the key: its condition must vary along the last axis.",
    )
    missing = want & ~shown
    expect(
        not missing.any(),
        "every real key up to the query is allowed",
        fed=fed,
        expected="True for a real key that does not stand after the query",
        got=f"{int(missing.sum())} such entries are False",
        hint="Queries that are padding may look at real keys; only keys are hidden. Check < and "
        "<= at the diagonal.",
    )
    wider = learner(torch.tensor([2, 4]), 6)
    expect(
        tuple(wider.shape) == (2, 1, 6, 6),
        "the mask is n wide, whatever the lengths",
        fed="lengths [2, 4] in a batch of width 6",
        expected="(2, 1, 6, 6)",
        got=str(tuple(wider.shape)),
        hint="The longest sentence may be shorter than n.",
    )


@exercise("attention.softmax_backward", minutes=15, level="medium")
def softmax_backward(learner: Any) -> None:
    """The backward pass of softmax from its output alone."""
    scores = torch.randn(2, 4, 5, requires_grad=True)
    weights = scores.softmax(dim=-1)
    grad = torch.randn(2, 4, 5)
    fed = "weights and their gradient, both of shape (2, 4, 5)"
    got = learner(weights.detach().clone(), grad.clone())
    expected = torch.autograd.grad(weights, scores, grad)[0]
    shape_only = got if isinstance(got, Tensor) and got.shape == expected.shape else None
    if shape_only is not None:
        expect_close(
            "the gradient of each row of scores sums to zero",
            shape_only.sum(-1),
            torch.zeros(2, 4),
            fed=fed,
            hint="Adding one number to all scores of a row changes no weight, so nothing can be "
            "gained that way. A row of the Jacobian has entries off its diagonal too.",
        )
    expect_close(
        "it equals what autograd computes",
        got,
        expected,
        fed=fed,
        hint="Row by row: weights * (grad - something), where something is one number for the row: "
        "the average of grad, weighted by the weights.",
    )


@exercise("attention.streaming", minutes=25, level="hard")
def streaming(learner: Any) -> None:
    """The softmax over all keys, met a chunk at a time."""
    q, k, v = _tensors((4, 6), (12, 6), (12, 3))
    expect_close(
        "a single chunk gives ordinary attention",
        learner(q.clone(), k.clone(), v.clone(), 12),
        _reference(q, k, v),
        fed="4 queries, 12 keys, chunks of 12",
        hint="Start there: scores divided by √d_k, exponentials, their sum, the average.",
    )
    expect_close(
        "several chunks give the same as one",
        learner(q.clone(), k.clone(), v.clone(), 4),
        _reference(q, k, v),
        fed="4 queries, 12 keys, chunks of 4",
        hint="When a new chunk raises the largest score, what was summed so far was measured "
        "against the old one: multiply the sum and the average by exp(old - new).",
    )
    expect_close(
        "a last chunk that is shorter is not lost",
        learner(q.clone(), k.clone(), v.clone(), 5),
        _reference(q, k, v),
        fed="4 queries, 12 keys, chunks of 5",
        hint="range(0, 12, 5) gives 0, 5, 10; a slice beyond the end is cut by itself.",
    )
    expect_close(
        "large scores do not overflow",
        learner(q * 300, k, v, 5),
        _reference(q * 300, k, v),
        fed="queries 300 times as long",
        hint="exp(100) has no float32. Subtract the largest score seen so far first.",
        atol=1e-4,
    )
    expect_close(
        "scores far below zero do not underflow",
        learner(q.abs() * 300, -k.abs(), v, 5),
        _reference(q.abs() * 300, -k.abs(), v),
        fed="the same, with every score below zero",
        hint="exp(-200) is 0 in float32, and 0/0 is NaN. The largest score may be negative: start "
        "from -inf and not from 0.",
        atol=1e-4,
    )
    q, k, v = _tensors((64, 8), (2048, 8), (2048, 2))
    whole = 4 * 64 * 2048
    used = peak_bytes(learner, q, k, v, 32)
    expect(
        used < whole // 2,
        "the full matrix of scores is never stored",
        fed="64 queries, 2,048 keys, chunks of 32",
        expected=f"less than {whole // 2:,} bytes at any time; the full matrix has {whole:,}",
        got=f"{used:,} bytes",
        hint="Multiply the queries with one slice of the keys at a time, inside the loop.",
    )


def _reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention_weights(q[None, None], k[None, None])[0, 0] @ v
