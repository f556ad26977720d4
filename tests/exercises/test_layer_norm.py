"""Right answers pass; typical wrong ones are told which property they lack."""

import pytest
import torch
import torch.nn.functional as F
from glassformer import exercises


def norm(x, weight, bias, *, axis=-1, unbiased=False, inside=1e-5, outside=0.0):
    """LayerNorm as a learner writes it, with knobs for typical mistakes."""
    mean = x.mean(axis, keepdim=True)
    variance = x.var(axis, unbiased=unbiased, keepdim=True)
    return (x - mean) / ((variance + inside).sqrt() + outside) * weight + bias


def rms(x, weight, eps):
    wide = x.float()
    scaled = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    return (scaled * weight.float()).to(x.dtype)


def backward(y, sd, grad):
    along = (grad * y).mean(-1, keepdim=True)
    return (grad - grad.mean(-1, keepdim=True) - y * along) / sd


def fold(weight, bias, matrix, offset):
    return matrix * weight, offset + matrix @ bias


def streaming(pieces):
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for piece in pieces:
        n, m = len(piece), piece.mean()
        apart = m - mean
        squares = squares + (piece - m).square().sum() + apart**2 * count * n / (count + n)
        mean = mean + apart * n / (count + n)
        count += n
    return mean, squares / count


def mean_of_squares(pieces):
    count = sum(len(piece) for piece in pieces)
    mean = sum(piece.sum() for piece in pieces) / count
    return mean, sum(piece.square().sum() for piece in pieces) / count - mean**2


def kept(pieces):
    row = torch.cat(list(pieces))
    return row.mean(), row.var(unbiased=False)


def streaming_in_two_loops(pieces):
    sums = [(piece.sum(), len(piece)) for piece in pieces]
    count = sum(n for _, n in sums)
    mean = sum(total for total, _ in sums) / count
    return mean, sum((piece - mean).square().sum() for piece in pieces) / count


def averaged(pieces):
    return (
        torch.stack([piece.mean() for piece in pieces]).mean(),
        torch.stack([piece.var(unbiased=False) for piece in pieces]).mean(),
    )


def only_within(pieces):
    mean, _ = streaming(pieces)
    count = sum(len(piece) for piece in pieces)
    return mean, sum((piece - piece.mean()).square().sum() for piece in pieces) / count


def equal_weights(pieces):
    means = torch.stack([piece.mean() for piece in pieces])
    within = torch.stack([piece.var(unbiased=False) for piece in pieces]).mean()
    return means.mean(), within + means.var(unbiased=False)


RIGHT = {
    "review": norm,
    "rms": rms,
    "backward": backward,
    "fold": fold,
    "streaming": streaming,
}

WRONG = [
    ("review", lambda x, w, b: norm(x, w, b, axis=1), "no other token has a say"),
    ("review", lambda x, w, b: norm(x, w, b, axis=(-2, -1)), "no other token has a say"),
    ("review", lambda x, w, b: norm(x, w, b, unbiased=True), "the variance of a normalised"),
    ("review", lambda x, w, b: norm(x, w, b, inside=0.0, outside=1e-5), "inside the root"),
    ("review", lambda x, w, b: norm(x, w, b, inside=1e-12), "inside the root"),
    ("review", lambda x, w, b: norm(x, 1.0, 0.0), "weight scales"),
    ("review", lambda x, w, b: norm(x, w, b)[0], "the shape stays"),
    (
        "review",
        lambda x, w, b: F.layer_norm(x, (7,), w, b) + 0 * x.var(-1, keepdim=True).sqrt(),
        "constant row is finite",
    ),
    ("rms", lambda x, w, eps: F.layer_norm(x, (7,), w, None, eps), "root of its mean square"),
    ("rms", lambda x, w, eps: x / x.square().sum(-1, keepdim=True).sqrt() * w, "mean square"),
    (
        "rms",
        lambda x, w, eps: x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * w,
        "inside the root",
    ),
    (
        "rms",
        lambda x, w, eps: x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * w,
        "no float16",
    ),
    ("rms", lambda x, w, eps: rms(x.float(), w, eps), "no float16"),
    (
        "rms",
        lambda x, w, eps: x / (x.square().mean(2, keepdim=True) + eps).sqrt() * w,
        "it runs without an error",
    ),
    ("backward", lambda y, sd, g: g / sd, "sums to zero"),
    ("backward", lambda y, sd, g: (g - g.mean(-1, keepdim=True)) / sd, "no part along y"),
    ("backward", lambda y, sd, g: backward(y, 1.0, g), "what autograd says"),
    ("backward", lambda y, sd, g: backward(y, sd**2, g), "what autograd says"),
    ("backward", lambda y, sd, g: (g - y * (g * y).mean(-1, keepdim=True)) / sd, "sums to zero"),
    ("backward", lambda y, sd, g: backward(y, sd, g).sum(-1), "the shape of x"),
    ("fold", lambda w, b, m, o: (m * w, o), "through the matrix as it was"),
    ("fold", lambda w, b, m, o: (m * w, o + (m * w) @ b), "through the matrix as it was"),
    ("fold", lambda w, b, m, o: (m, o + m @ b), "takes the weight in"),
    ("fold", lambda w, b, m, o: (m * w[:5, None], o + m @ b), "takes the weight in"),
    ("fold", lambda w, b, m, o: m * w, "a matrix and a bias come back"),
    ("streaming", mean_of_squares, "does not eat the variance"),
    ("streaming", kept, "each piece is seen once"),
    ("streaming", streaming_in_two_loops, "each piece is seen once"),
    ("streaming", averaged, "several pieces give the same"),
    ("streaming", only_within, "several pieces give the same"),
    ("streaming", equal_weights, "counts for less"),
    ("streaming", lambda pieces: streaming(pieces[:1]), "several pieces give the same"),
    ("streaming", lambda pieces: streaming(pieces)[0], "mean and variance come back"),
    (
        "streaming",
        lambda pieces: (torch.cat(pieces).mean(), torch.cat(pieces).var()),
        "one piece gives",
    ),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    report = exercises.check(f"layer_norm.{name}", RIGHT[name])
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, said):
    report = exercises.check(f"layer_norm.{name}", answer)
    assert not report.passed
    assert said in report.property, report
    assert report.fed
    assert report.hint or "shape" in report.property or "come back" in report.property


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("layer_norm"):
        assert sum(f"layer_norm.{wrong[0]}" == name for wrong in WRONG) >= 3


def norm_by_torch(x, weight, bias):
    return F.layer_norm(x, (7,), weight, bias)


def backward_in_place(y, sd, grad):
    along = (grad * y).mean(-1, keepdim=True)
    grad -= grad.mean(-1, keepdim=True)
    grad -= y * along
    return grad.div_(sd)


def streaming_from_the_first_number(pieces):
    """Shift by the first number, then squares are small: a correct one-pass way."""
    first, count, total, squares = None, 0, 0.0, 0.0
    for piece in pieces:
        first = float(piece[0]) if first is None else first
        count += len(piece)
        total = total + (piece - first).sum()
        squares = squares + (piece - first).square().sum()
    mean = total / count
    return mean + first, squares / count - mean**2


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("review", norm_by_torch),
        ("rms", lambda x, w, eps: F.rms_norm(x.float(), (7,), w.float(), eps).to(x.dtype)),
        ("backward", backward_in_place),
        ("fold", lambda w, b, m, o: (m @ w.diag(), F.linear(b, m, o))),
        ("streaming", streaming_from_the_first_number),
    ],
)
def test_a_correct_answer_in_another_form_passes(name, answer):
    report = exercises.check(f"layer_norm.{name}", answer)
    assert report.passed, report
