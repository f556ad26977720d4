"""Right answers pass; typical wrong ones are told which property they lack."""

import math

import pytest
import torch
from glassformer import exercises


def cut(x, n_heads):
    return x.view(*x.shape[:2], n_heads, -1).transpose(1, 2)


def leaks(layer, x):
    before = layer(x)
    for t in range(1, x.shape[1]):
        other = x.clone()
        other[:, t] += 1
        if (layer(other) - before)[:, :t].abs().max() > 1e-4:
            return True
    return False


def leaks_at_the_end(layer, x):
    other = x.clone()
    other[:, -1] += 1
    return bool((layer(other) - layer(x))[:, :-1].abs().max() > 1e-4)


def leaks_to_the_first(layer, x):
    other = x.clone()
    other[:, 1:] += 1
    return bool((layer(other) - layer(x))[:, 0].abs().max() > 1e-4)


def leaks_to_itself(layer, x):
    other = x.clone()
    other[:, -1] += 1
    return bool((layer(other) - layer(x)).abs().max() > 1e-4)


def leaks_to_the_neighbour(layer, x):
    before = layer(x)
    for t in range(1, x.shape[1]):
        other = x.clone()
        other[:, t] += 1
        if (layer(other) - before)[:, t - 1].abs().max() > 1e-4:
            return True
    return False


def leaks_by_cutting(layer, x):
    """A causal layer gives the beginning of a row what it gives the row's beginning."""
    before = layer(x)
    lengths = range(1, x.shape[1])
    return not all(torch.allclose(layer(x[:, :t]), before[:, :t], atol=1e-4) for t in lengths)


def leaks_by_slopes(layer, x):
    x = x.clone().requires_grad_()
    for t in range(x.shape[1] - 1):
        (slope,) = torch.autograd.grad(layer(x)[:, t].sum(), x)
        if slope[:, t + 1 :].abs().max() > 1e-6:
            return True
    return False


def leaks_exactly(layer, x):
    before = layer(x)
    for t in range(1, x.shape[1]):
        other = x.clone()
        other[:, t] += 1
        if not torch.equal(layer(other)[:, :t], before[:, :t]):
            return True
    return False


def attention(q, k, v, scale=None):
    return (q @ k.mT / (scale or math.sqrt(q.shape[-1]))).softmax(-1) @ v


def in_one(x, w_q, w_k, w_v, w_o, *, merge=lambda out: out.transpose(1, 2).flatten(2), scale=None):
    q, k, v = (x[:, None] @ w for w in (w_q, w_k, w_v))
    return merge(attention(q, k, v, scale)) @ w_o


def in_a_loop(x, w_q, w_k, w_v, w_o):
    outs = [attention(x @ w_q[h], x @ w_k[h], x @ w_v[h]) for h in range(len(w_q))]
    return torch.cat(outs, dim=-1) @ w_o


def projected_in_a_loop(x, w_q, w_k, w_v, w_o):
    q, k, v = (torch.stack([x @ one for one in w], dim=1) for w in (w_q, w_k, w_v))
    return attention(q, k, v).transpose(1, 2).flatten(2) @ w_o


def by_one_projection(x, w_q, w_k, w_v, w_o):
    """The three weights as wide matrices, as a layer keeps them."""
    q, k, v = (cut(x @ w.transpose(0, 1).flatten(1), len(w_q)) for w in (w_q, w_k, w_v))
    return attention(q, k, v).transpose(1, 2).flatten(2) @ w_o


def groups(q, k, v):
    size = q.shape[1] // k.shape[1]
    return attention(q, k.repeat_interleave(size, dim=1), v.repeat_interleave(size, dim=1))


def groups_by_broadcast(q, k, v):
    q = q.unflatten(1, (k.shape[1], -1))
    return attention(q, k[:, :, None], v[:, :, None]).flatten(1, 2)


def shares(heads, w_o):
    columns = w_o.unflatten(1, (heads.shape[1], -1))
    return torch.einsum("bhtd,ehd->bhte", heads, columns)


def shares_by_rows(heads, w_o):
    return torch.einsum("bhtd,hde->bhte", heads, w_o.unflatten(0, (heads.shape[1], -1)))


def shares_in_equal_parts(heads, w_o):
    whole = heads.transpose(1, 2).flatten(2) @ w_o.mT
    return (whole / heads.shape[1])[:, None].expand(-1, heads.shape[1], -1, -1)


def fits(budget, *, n_layers, n_kv_heads, d_head, length, bytes_per_value):
    return budget // (2 * n_layers * n_kv_heads * d_head * length * bytes_per_value)


RIGHT = [
    ("cut", cut),
    ("cut", lambda x, n: x.unflatten(-1, (n, -1)).permute(0, 2, 1, 3)),
    ("leak_test", leaks),
    ("leak_test", leaks_by_cutting),
    ("leak_test", leaks_by_slopes),
    ("in_one", in_one),
    ("in_one", by_one_projection),
    ("groups", groups),
    ("groups", groups_by_broadcast),
    ("shares", shares),
    ("fits", fits),
]

WRONG = [
    ("cut", lambda x, n: x.view(x.shape[0], n, x.shape[1], -1), "features of token t alone"),
    ("cut", lambda x, n: x.unflatten(-1, (n, -1)), "has the shape"),
    ("cut", lambda x, n: x.unflatten(-1, (-1, n)).permute(0, 3, 1, 2), "in their order"),
    ("cut", lambda x, n: torch.stack(x.chunk(n, dim=-1)), "has the shape"),
    (
        "cut",
        lambda x, n: x.mT.reshape(x.shape[0], n, x.shape[1], -1),
        "features of token t alone",
    ),
    ("leak_test", lambda layer, x: layer(x).shape != x.shape, "found: a layer without a mask"),
    ("leak_test", lambda layer, x: leaks_at_the_end(layer, x), "only token 4 hears"),
    ("leak_test", lambda layer, x: leaks_to_the_first(layer, x), "only token 4 hears"),
    ("leak_test", lambda layer, x: leaks_to_the_neighbour(layer, x), "only token 1 hears"),
    ("leak_test", lambda layer, x: leaks_to_itself(layer, x), "no leak is reported"),
    ("leak_test", leaks_exactly, "no leak is reported|wobble"),
    ("leak_test", lambda layer, x: not leaks(layer, x), "no leak is reported"),
    ("leak_test", lambda layer, x: "leaks", "True or False"),
    ("in_one", in_a_loop, "as many matrix products"),
    ("in_one", projected_in_a_loop, "as many matrix products"),
    ("in_one", lambda *a: in_one(*a, scale=math.sqrt(24)), "heads one by one"),
    (
        "in_one",
        lambda *a: in_one(*a, merge=lambda out: out.reshape(out.shape[0], out.shape[2], -1)),
        "heads one by one",
    ),
    (
        "in_one",
        lambda *a: in_one(*a, merge=lambda out: out.permute(0, 2, 3, 1).flatten(2)),
        "heads one by one",
    ),
    (
        "groups",
        lambda q, k, v: attention(
            q, *(x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
        ),
        "query heads 0, 1, 2 listen with key head 0",
    ),
    (
        "groups",
        lambda q, k, v: attention(
            q,
            k.repeat(1, q.shape[1] // k.shape[1], 1, 1),
            v.repeat_interleave(q.shape[1] // k.shape[1], dim=1),
        ),
        "attends as usual",
    ),
    (
        "groups",
        lambda q, k, v: attention(q, *(x.repeat_interleave(3, dim=1) for x in (k, v)))[:, :6],
        "one key head serves all|runs without",
    ),
    ("groups", lambda q, k, v: attention(q[:, : k.shape[1]], k, v), "has the shape"),
    ("shares", shares_by_rows, "add up to the output"),
    ("shares", shares_in_equal_parts, "its own head alone"),
    ("shares", lambda heads, w: shares(heads, w).sum(1), "has the shape"),
    (
        "shares",
        lambda heads, w: shares(heads, w.unflatten(1, (4, 3)).mT.flatten(1)),
        "add up to the output",
    ),
    ("fits", lambda budget, **sizes: fits(2 * budget, **sizes), "keys and values are both"),
    ("fits", lambda budget, **sizes: -(-budget // (2**30)), "whole conversations"),
    ("fits", lambda budget, **sizes: budget // 2**30, "fewer key heads"),
    (
        "fits",
        lambda budget, **sizes: fits(budget, **sizes | {"length": 8192}),
        "all sizes count",
    ),
    ("fits", lambda budget, **sizes: fits(budget, **sizes) * 1.0, "an int"),
]


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_right_answers_pass(name, answer):
    report = exercises.check(f"multi_head.{name}", answer)
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, said):
    report = exercises.check(f"multi_head.{name}", answer)
    assert not report.passed
    assert any(part in report.property for part in said.split("|")), report
    assert report.fed
    assert report.hint


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("multi_head"):
        assert sum(f"multi_head.{wrong[0]}" == name for wrong in WRONG) >= 3
