"""Right answers pass; typical wrong ones are told which property they lack."""

import math

import pytest
import torch
from glassformer import exercises


def listen(q, k, v, mask=None, *, fill=-math.inf, scale=None, axis=-1):
    """Attention as a learner writes it, with knobs for typical mistakes."""
    scores = q @ k.mT / (scale or math.sqrt(q.shape[-1]))
    if mask is not None:
        scores = scores.masked_fill(~mask, fill)
    return scores.softmax(dim=axis) @ v


def without_blind_rows(q, k, v, mask):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, torch.finfo(q.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~mask, 0.0) @ v


def lookup(query, keys, values, temperature):
    return (query @ keys.mT / temperature).softmax(dim=-1) @ values


def sample_mask(lengths, n):
    place = torch.arange(n)
    return (place <= place[:, None]) & (place < lengths[:, None])[:, None, None, :]


def softmax_backward(weights, grad):
    return weights * (grad - (weights * grad).sum(-1, keepdim=True))


def streaming(q, k, v, chunk, *, rescale=True, shift=True, lowest=-math.inf):
    top = torch.full((len(q), 1), lowest)
    total, mixed = torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[-1])
    for start in range(0, len(k), chunk):
        scores = q @ k[start : start + chunk].mT / math.sqrt(q.shape[-1])
        new = torch.maximum(top, scores.amax(-1, keepdim=True)) if shift else torch.zeros_like(top)
        keep = (top - new).exp() if rescale and shift else 1.0
        part = (scores - new).exp()
        total = total * keep + part.sum(-1, keepdim=True)
        mixed = mixed * keep + part @ v[start : start + chunk]
        top = new
    return mixed / total


def mean_of_chunks(q, k, v, chunk):
    starts = range(0, len(k), chunk)
    parts = [listen(q, k[s : s + chunk], v[s : s + chunk]) for s in starts]
    return torch.stack(parts).mean(0)


def without_last_chunk(q, k, v, chunk):
    whole = len(k) // chunk * chunk
    return streaming(q, k[:whole], v[:whole], chunk)


RIGHT = {
    "review": listen,
    "lookup": lookup,
    "blind_rows": without_blind_rows,
    "sample_mask": sample_mask,
    "softmax_backward": softmax_backward,
    "streaming": streaming,
}

WRONG = [
    ("review", lambda q, k, v, m=None: listen(q, k, v, m, axis=-2), "sum to one"),
    ("review", lambda q, k, v, m=None: listen(q, k, v, m, axis=1), "sum to one"),
    (
        "review",
        lambda q, k, v, m=None: listen(q, k, v, m, scale=k.shape[-2] ** 0.5),
        "square root of the width",
    ),
    ("review", lambda q, k, v, m=None: listen(q, k, v, m, scale=1.0), "square root of the width"),
    (
        "review",
        lambda q, k, v, m=None: listen(q, k, v, None if m is None else ~m),
        "mask is False has no say",
    ),
    ("review", lambda q, k, v, m=None: listen(q, k, v), "mask is False has no say"),
    ("lookup", lambda q, k, v, t: (q @ k.mT).softmax(-1) @ v, "low temperature"),
    ("lookup", lambda q, k, v, t: (q @ k.mT * t).softmax(-1) @ v, "low temperature"),
    ("lookup", lambda q, k, v, t: lookup(q, k, v, t * math.sqrt(5)), "at temperature 1"),
    ("lookup", lambda q, k, v, t: v[(q @ k.mT).argmax(-1)], "at temperature 1"),
    (
        "lookup",
        lambda q, k, v, t: lookup(q, k, v, t) if t >= 1 and t < 9 else v[(q @ k.mT).argmax(-1)],
        "high temperature",
    ),
    ("lookup", lambda q, k, v, t: lookup(q if q.ndim == 1 else q[0], k, v, t), "several queries"),
    ("lookup", lambda q, k, v, t: (q @ k / t).softmax(-1) @ v, "one row of the keys"),
    ("blind_rows", listen, "gives zeros"),
    ("blind_rows", lambda q, k, v, m: listen(q, k, v, m).nan_to_num(), "gradient of v is sound"),
    ("blind_rows", lambda q, k, v, m: listen(q, k, v, m, fill=-1e9), "gives zeros"),
    ("blind_rows", lambda q, k, v, m: without_blind_rows(q, k, v, ~m), "as before"),
    (
        "blind_rows",
        lambda q, k, v, m: without_blind_rows(q, k, v, m) * m.all(),
        "as before",
    ),
    ("sample_mask", lambda n, w: sample_mask(n, w)[:, 0], "an axis for the sample and one for"),
    ("sample_mask", lambda n, w: sample_mask(n, w).float(), "is boolean"),
    ("sample_mask", lambda n, w: ~sample_mask(n, w), "sees the future"),
    (
        "sample_mask",
        lambda n, w: torch.ones(w, w).tril().bool() | (torch.arange(w) < n[:, None])[:, None, None],
        "sees the future",
    ),
    (
        "sample_mask",
        lambda n, w: torch.ones(len(n), 1, w, w).tril().bool(),
        "attends to padding",
    ),
    (
        "sample_mask",
        lambda n, w: (
            torch.ones(w, w).tril().bool() & (torch.arange(w) < n[:, None])[:, None, :, None]
        ),
        "attends to padding|real key",
    ),
    (
        "sample_mask",
        lambda n, w: sample_mask(n, w) & ~torch.eye(w).bool(),
        "every real key up to the query",
    ),
    ("sample_mask", lambda n, w: n.tolist(), "is a tensor"),
    ("sample_mask", lambda n, w: sample_mask(n, w).expand(-1, 8, -1, -1), "one for the heads"),
    ("sample_mask", lambda n, w: sample_mask(n, int(n.max())), "n wide, whatever the lengths"),
    ("softmax_backward", lambda p, g: p * g, "sums to zero"),
    ("softmax_backward", lambda p, g: p * (1 - p) * g, "sums to zero"),
    (
        "softmax_backward",
        lambda p, g: p * (g - (p * g).sum(-2, keepdim=True)),
        "sums to zero",
    ),
    ("softmax_backward", lambda p, g: g - g.mean(-1, keepdim=True), "equals what autograd"),
    ("softmax_backward", lambda p, g: (p * g).sum(-1), "the shape"),
    ("streaming", mean_of_chunks, "several chunks give the same"),
    ("streaming", lambda *a: streaming(*a, rescale=False), "several chunks give the same"),
    ("streaming", lambda *a: streaming(*a, shift=False), "large scores do not overflow"),
    ("streaming", without_last_chunk, "shorter is not lost"),
    ("streaming", lambda *a: streaming(*a, lowest=0.0), "do not underflow"),
    ("streaming", lambda q, k, v, chunk: listen(q, k, v), "full matrix of scores is never"),
    ("streaming", lambda q, k, v, chunk: listen(q, k, v, scale=1.0), "single chunk"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    report = exercises.check(f"attention.{name}", RIGHT[name])
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, said):
    report = exercises.check(f"attention.{name}", answer)
    assert not report.passed
    assert any(part in report.property for part in said.split("|")), report
    assert report.fed
    assert report.hint or "shape" in report.property or "tensor" in report.property


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("attention"):
        assert sum(f"attention.{wrong[0]}" == name for wrong in WRONG) >= 3


def lookup_by_einsum(query, keys, values, temperature):
    return torch.einsum("...s,sd->...d", (query @ keys.mT / temperature).softmax(-1), values)


def softmax_backward_in_place(weights, grad):
    grad *= weights
    return grad - weights * grad.sum(-1, keepdim=True)


def softmax_backward_over_the_weights(weights, grad):
    inner = (weights * grad).sum(-1, keepdim=True)
    weights *= grad - inner
    return weights


def review_in_place(q, k, v, mask=None):
    q /= math.sqrt(k.shape[-1])
    return listen(q, k, v, mask, scale=1.0)


def streaming_by_merging(q, k, v, chunk):
    """Each chunk by itself, and then a softmax over the chunks."""
    parts, sums = [], []
    for start in range(0, len(k), chunk):
        scores = q @ k[start : start + chunk].mT / math.sqrt(q.shape[-1])
        parts.append(scores.softmax(-1) @ v[start : start + chunk])
        sums.append(scores.logsumexp(-1))
    return (torch.stack(sums).softmax(0)[..., None] * torch.stack(parts)).sum(0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("lookup", lookup_by_einsum),
        ("softmax_backward", softmax_backward_in_place),
        ("softmax_backward", softmax_backward_over_the_weights),
        ("review", review_in_place),
        ("streaming", streaming_by_merging),
    ],
)
def test_a_correct_answer_in_another_form_passes(name, answer):
    report = exercises.check(f"attention.{name}", answer)
    assert report.passed, report
