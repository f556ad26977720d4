"""Right answers pass; typical wrong ones are told which property they lack."""

import math

import pytest
import torch
import torch.nn.functional as F
from glassformer import exercises


def layers(distance, kernel, growth):
    count = reach = 0
    while reach < distance:
        reach += (kernel - 1) * growth**count
        count += 1
    return count


def causal_window(x, weight, dilation):
    zeros = (weight.shape[-1] - 1) * dilation
    return F.conv1d(F.pad(x, (zeros, 0)), weight, dilation=dilation)


def gru(x, h, w_ih, w_hh, b_ih, b_hh, *, order="rzn", keep="z", candidate=torch.tanh):
    from_x = dict(zip(order, (x @ w_ih.mT + b_ih).chunk(3, dim=-1), strict=True))
    from_h = dict(zip(order, (h @ w_hh.mT + b_hh).chunk(3, dim=-1), strict=True))
    r = torch.sigmoid(from_x["r"] + from_h["r"])
    z = torch.sigmoid(from_x["z"] + from_h["z"])
    n = candidate(from_x["n"] + r * from_h["n"])
    return (1 - z) * n + z * h if keep == "z" else z * n + (1 - z) * h


def gru_of_the_paper(x, h, w_ih, w_hh, b_ih, b_hh):
    """The reset gate multiplies the state before the product, not after it."""
    from_x, weights, biases = (x @ w_ih.mT + b_ih).chunk(3, -1), w_hh.chunk(3), b_hh.chunk(3)
    r = torch.sigmoid(from_x[0] + h @ weights[0].mT + biases[0])
    z = torch.sigmoid(from_x[1] + h @ weights[1].mT + biases[1])
    n = torch.tanh(from_x[2] + (r * h) @ weights[2].mT + biases[2])
    return (1 - z) * n + z * h


def gru_without_reset(x, h, w_ih, w_hh, b_ih, b_hh):
    from_x, from_h = (x @ w_ih.mT + b_ih).chunk(3, -1), (h @ w_hh.mT + b_hh).chunk(3, -1)
    z = torch.sigmoid(from_x[1] + from_h[1])
    return (1 - z) * torch.tanh(from_x[2] + from_h[2]) + z * h


@torch.no_grad()
def open_gates(lstm, steps, keep, *, both=False, rows=None, share=None):
    size = lstm.hidden_size
    per_step = keep ** (1 / steps) if share is None else share(keep, steps)
    bias = math.log(per_step / (1 - per_step))
    rows = slice(size, 2 * size) if rows is None else rows
    lstm.bias_ih_l0[rows] = bias
    lstm.bias_hh_l0[rows] = bias if both else 0.0


@torch.no_grad()
def open_one_bias_only(lstm, steps, keep):
    per_step = keep ** (1 / steps)
    lstm.bias_ih_l0[7:14] = math.log(per_step / (1 - per_step))


@torch.no_grad()
def close_the_weights(lstm, steps, keep):
    open_gates(lstm, steps, keep)
    lstm.weight_hh_l0.zero_()


def pieces(lstm, x, size, *, detach=True, carry=True, hidden_only=False):
    state, outputs = None, []
    for start in range(0, x.shape[1], size):
        out, (h, c) = lstm(x[:, start : start + size], state)
        outputs.append(out)
        if carry:
            state = (h.detach(), c if hidden_only else c.detach()) if detach else (h, c)
    return torch.cat(outputs, dim=1)


def pieces_without_the_last(lstm, x, size):
    return pieces(lstm, x[:, : x.shape[1] // size * size], size)


def pieces_with_the_last_alone_alive(lstm, x, size):
    out = pieces(lstm, x, size)
    start = (x.shape[1] - 1) // size * size
    return torch.cat([out[:, :start].detach(), out[:, start:]], dim=1)


def additive(state, memory, w_state, w_memory, v, mask, *, squash=torch.tanh, axis=-1):
    scores = squash((state @ w_state)[:, None] + memory @ w_memory) @ v
    return scores.masked_fill(~mask, -math.inf).softmax(dim=axis)


def additive_masked_too_late(state, memory, w_state, w_memory, v, mask):
    everything = torch.ones_like(mask)
    return additive(state, memory, w_state, w_memory, v, everything) * mask


RIGHT = {
    "layers": layers,
    "causal_window": causal_window,
    "gru": gru,
    "open_gates": open_gates,
    "pieces": pieces,
    "additive": additive,
}

WRONG = [
    ("layers", lambda d, k, g: math.ceil(d / k), "one beyond the kernel|adds as much"),
    ("layers", lambda d, k, g: d // (k - 1), "one beyond the kernel"),
    ("layers", lambda d, k, g: math.ceil(d / (k - 1)), "twice as far"),
    ("layers", lambda d, k, g: d / (k - 1), "as far as its kernel|one beyond"),
    (
        "layers",
        lambda d, k, g: math.ceil(math.log(d + 1, g)) if g > 1 else layers(d, k, g),
        "grow by three|twice as far",
    ),
    ("layers", lambda d, k, g: max(1, layers(d, k, g)), "no distance"),
    ("causal_window", lambda x, w, d: F.conv1d(x, w, padding="same", dilation=d), "later input"),
    ("causal_window", lambda x, w, d: F.conv1d(x, w, dilation=d), "one output for every"),
    (
        "causal_window",
        lambda x, w, d: F.conv1d(F.pad(x, (0, 2 * d)), w, dilation=d),
        "later input",
    ),
    (
        "causal_window",
        lambda x, w, d: F.conv1d(F.pad(x, (3, 0)), w)[..., :-1],
        "current position",
    ),
    ("causal_window", lambda x, w, d: causal_window(x, w.flip(-1), d), "current position"),
    ("causal_window", lambda x, w, d: causal_window(x, w, 1), "with gaps"),
    ("gru", lambda *a: gru(*a, keep="1 - z"), "keeps the state"),
    ("gru", lambda *a: gru(*a, order="zrn"), "keeps the state"),
    ("gru", lambda *a: gru(*a, candidate=lambda t: t * 3), "between -1 and 1"),
    ("gru", lambda *a: gru(*a, candidate=torch.sigmoid), "from an empty state"),
    ("gru", gru_without_reset, "from an empty state"),
    ("gru", gru_of_the_paper, "from an empty state|nn.GRUCell's step"),
    ("open_gates", lambda *a: open_gates(*a, both=True), "the one asked for"),
    ("open_gates", open_one_bias_only, "the one asked for"),
    ("open_gates", lambda *a: open_gates(*a, rows=slice(0, 7)), "other three gates"),
    ("open_gates", lambda *a: open_gates(*a, rows=slice(None)), "other three gates"),
    ("open_gates", lambda *a: open_gates(*a, share=lambda keep, _: keep), "the one asked for"),
    ("open_gates", close_the_weights, "weights stay"),
    ("open_gates", lambda *a: None, "the one asked for"),
    ("pieces", lambda lstm, x, size: lstm(x)[0], "earlier piece"),
    ("pieces", lambda *a: pieces(*a, detach=False), "earlier piece"),
    ("pieces", lambda *a: pieces(*a, hidden_only=True), "earlier piece"),
    ("pieces", lambda *a: pieces(*a, carry=False), "go on from the state"),
    ("pieces", pieces_without_the_last, "every position"),
    ("pieces", lambda *a: pieces(*a).detach(), "within a piece"),
    ("pieces", lambda lstm, x, size: pieces(lstm, x.detach(), size), "within a piece"),
    ("pieces", pieces_with_the_last_alone_alive, "within a piece"),
    ("additive", lambda *a: additive(*a, squash=lambda t: t), "v · tanh"),
    ("additive", lambda *a: additive(*a, axis=0), "padding|sum to one"),
    ("additive", additive_masked_too_late, "sum to one"),
    ("additive", lambda *a: additive(*a[:-1], ~a[-1]), "padding"),
    ("additive", lambda *a: additive(*a[:-1], torch.ones(2, 7).bool()), "padding"),
    ("additive", lambda *a: additive(*a)[:, None], "one share for each"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    report = exercises.check(f"motivation.{name}", RIGHT[name])
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, said):
    report = exercises.check(f"motivation.{name}", answer)
    assert not report.passed
    assert any(part in report.property for part in said.split("|")), report
    assert report.fed
    assert report.hint or "shape" in report.property or "tensor" in report.property


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("motivation"):
        assert sum(f"motivation.{wrong[0]}" == name for wrong in WRONG) >= 3
