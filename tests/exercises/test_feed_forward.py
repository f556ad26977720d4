"""Right answers pass; typical wrong ones are told which property they lack."""

import pytest
import torch
import torch.nn.functional as F
from glassformer import exercises
from glassformer.nn import FeedForward


def review(x, norm, up, down):
    return x + down(F.gelu(up(norm(x))))


def in_place(x, norm, up, down):
    x += down(F.gelu(up(norm(x))))
    return x


def gated_width(d_ff, multiple):
    return -(-2 * d_ff // (3 * multiple)) * multiple


def in_slices(ffn, x, size):
    return torch.cat([ffn(part) for part in x.split(size, dim=1)], dim=1)


def add_fact(ffn, key, value, *, bias=-0.5, scale=2.0, keep_bias=True):
    d_ff, d_model = ffn.up_proj.weight.shape
    more = FeedForward(d_model, d_ff + 1, activation="relu")
    with torch.no_grad():
        more.up_proj.weight.copy_(torch.cat([ffn.up_proj.weight, key[None]]))
        more.up_proj.bias.copy_(torch.cat([ffn.up_proj.bias, torch.tensor([bias])]))
        widened = torch.cat([ffn.down_proj.weight, scale * value[:, None]], dim=1)
        more.down_proj.weight.copy_(widened)
        if keep_bias:
            more.down_proj.bias.copy_(ffn.down_proj.bias)
    return more


def overwritten(ffn, key, value):
    more = add_fact(ffn, key, value)
    ffn.down_proj.bias.data += 1
    return more


def gradient_norms(stack, loss):
    norms = []
    for block in stack.blocks:
        grads = torch.autograd.grad(loss, list(block.parameters()), retain_graph=True)
        norms.append(float(torch.cat([g.flatten() for g in grads]).norm()))
    return norms


def by_backward(stack, loss, *, clear=False):
    if clear:
        stack.zero_grad()
    loss.backward()
    return [
        float(torch.cat([p.grad.flatten() for p in block.parameters()]).norm())
        for block in stack.blocks
    ]


def sum_of_lengths(stack, loss):
    loss.backward()
    return [sum(float(p.grad.norm()) for p in block.parameters()) for block in stack.blocks]


def cleared(stack, loss):
    norms = by_backward(stack, loss, clear=True)
    stack.zero_grad()
    return norms


def one_call(stack, loss):
    grads = iter(torch.autograd.grad(loss, [p for b in stack.blocks for p in b.parameters()]))
    return [
        float(torch.cat([next(grads).flatten() for _ in block.parameters()]).norm())
        for block in stack.blocks
    ]


RIGHT = {
    "review": review,
    "gated_width": gated_width,
    "in_slices": in_slices,
    "add_fact": add_fact,
    "gradient_norms": gradient_norms,
}

WRONG = [
    ("review", lambda x, n, u, d: n(x) + d(F.gelu(u(n(x)))), "leaves the stream"),
    ("review", lambda x, n, u, d: d(F.gelu(u(n(x)))), "leaves the stream"),
    ("review", lambda x, n, u, d: n(x + d(F.gelu(u(x)))), "leaves the stream"),
    ("review", lambda x, n, u, d: x + d(u(n(x))), "bends"),
    ("review", lambda x, n, u, d: x + d(F.gelu(u(x))), "hears the norm"),
    ("review", in_place, "left alone"),
    ("gated_width", lambda d, m: d * 2 / 3, "whole number"),
    ("gated_width", lambda d, m: d // 2, "three matrices"),
    ("gated_width", lambda d, m: d, "three matrices"),
    ("gated_width", lambda d, m: d * 2 // 3, "rounded up"),
    ("gated_width", lambda d, m: -(-d * 2 // 3), "a multiple"),
    (
        "gated_width",
        lambda d, m: (
            d * 2 // 3
            if m == 1 and d > 99 and d % 3 == 0
            else (67 if m == 1 else (d * 2 // 3 // m + 1) * m)
        ),
        "fits already",
    ),
    ("in_slices", lambda f, x, n: torch.cat([f(p) for p in x.split(n, 1)], 0), "slices that fit"),
    ("in_slices", lambda f, x, n: sum(f(p) for p in x.split(n, 1)), "slices that fit"),
    (
        "in_slices",
        lambda f, x, n: torch.cat([f(x[:, i * n : (i + 1) * n]) for i in range(12 // n)], 1),
        "shorter is not lost",
    ),
    ("in_slices", lambda f, x, n: f(x), "never whole"),
    ("in_slices", lambda f, x, n: torch.cat([f(p) for p in x.chunk(n, 1)], 1), "never whole"),
    ("add_fact", lambda f, k, v: f, "one more hidden unit"),
    ("add_fact", lambda f, k, v: add_fact(f, k, v, scale=1.0), "adds its value"),
    ("add_fact", lambda f, k, v: add_fact(f, k, v, bias=0.0, scale=1.0), "60 degrees"),
    ("add_fact", lambda f, k, v: add_fact(f, k, v, keep_bias=False), "adds its value"),
    ("add_fact", overwritten, "untouched: down_proj.bias"),
    ("gradient_norms", lambda s, loss: gradient_norms(s, loss)[:1], "one number for each"),
    ("gradient_norms", sum_of_lengths, "taken as one vector"),
    ("gradient_norms", by_backward, "measuring twice"),
    ("gradient_norms", lambda s, loss: by_backward(s, loss, clear=True), "no trace"),
    ("gradient_norms", cleared, "that were there stay"),
    ("gradient_norms", one_call, "still be sent backward"),
]


@pytest.mark.parametrize(("name", "learner"), RIGHT.items(), ids=RIGHT)
def test_right_answer_passes(name, learner) -> None:
    report = exercises.check(f"feed_forward.{name}", learner)
    assert report.passed, repr(report)


@pytest.mark.parametrize(
    ("name", "learner", "named"), WRONG, ids=[f"{name}-{named}" for name, _, named in WRONG]
)
def test_wrong_answer_is_told_what_it_lacks(name, learner, named) -> None:
    report = exercises.check(f"feed_forward.{name}", learner)
    assert not report.passed
    assert named in report.property
    assert report.hint


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("feed_forward"):
        assert sum(f"feed_forward.{wrong[0]}" == name for wrong in WRONG) >= 3
