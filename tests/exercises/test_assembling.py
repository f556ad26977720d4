"""Right answers pass; typical wrong ones are told which property they lack."""

import random

import numpy as np
import pytest
import torch
from glassformer import exercises
from glassformer.functional import padding_mask


def count(vocab, d, layers, d_ff, kv, *, tables=2, matrices=3, norms=2, closing=1, own=True):
    """The count as a learner writes it, with knobs for typical mistakes."""
    attention = 2 * d * d + 2 * d * (kv if own else d)
    layer = attention + matrices * d * d_ff + norms * d
    return tables * vocab * d + layers * layer + closing * d


def wiring(model, source, target, real, *, causal=True, reader=True, bridge=True, upside=False):
    seen = padding_mask(~real if upside else real)
    places = torch.arange(source.shape[1])
    memory = model.encoder(model.embedding(source, places), mask=seen if reader else None)
    places = torch.arange(target.shape[1])
    x = model.decoder(
        model.embedding(target, places),
        is_causal=causal,
        memory=memory,
        memory_mask=seen if bridge else None,
    )
    return model.head(x)


def from_one(model, source, target, real):
    seen = padding_mask(real)
    places = torch.arange(source.shape[1])
    memory = model.encoder(model.embedding(source, places), mask=seen)
    x = model.decoder(
        model.embedding(target, torch.arange(target.shape[1]) + 1),
        is_causal=True,
        memory=memory,
        memory_mask=seen,
    )
    return model.head(x)


def with_seed(seed, make, *, libraries=3, back=3, always=True):
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    torch.manual_seed(seed)
    if libraries > 1:
        random.seed(seed)
    if libraries > 2:
        np.random.seed(seed)

    def restore():
        if back > 0:
            random.setstate(states[0])
        if back > 1:
            np.random.set_state(states[1])
        if back > 2:
            torch.set_rng_state(states[2])

    if not always:
        made = make()
        restore()
        return made
    try:
        return make()
    finally:
        restore()


def sows_again(seed, make):
    start = torch.initial_seed()
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        return make()
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.manual_seed(start)


def swallows(seed, make):
    try:
        return with_seed(seed, make)
    except ValueError:
        return None


def price(d, d_ff, layers, vocab, source, target, *, unit=2, bridge="both", head=True):
    def layer(n):
        return 4 * n * d**2 + 2 * n**2 * d + 2 * n * d * d_ff

    across = {
        "both": 2 * target * d**2 + 2 * source * d**2 + 2 * target * source * d,
        "none": 0,
        "target": 4 * target * d**2 + 2 * target * source * d,
    }[bridge]
    macs = layers * (layer(source) + layer(target) + across)
    return unit * (macs + (target * d * vocab if head else 0))


def start(d, excess):
    return (2 * excess / d) ** 0.5


RIGHT = {
    "count": count,
    "wiring": wiring,
    "with_seed": with_seed,
    "price": price,
    "start": start,
}

WRONG = [
    ("count", lambda *a: count(*a, tables=1), "a word has a row in the table and a row in the"),
    ("count", lambda *a: count(*a, matrices=2), "a gated network has three matrices"),
    ("count", lambda *a: count(*a, own=False), "keys and values have their own width"),
    ("count", lambda *a: count(*a, norms=0), "a layer has its two norms"),
    ("count", lambda *a: count(*a, closing=0), "what is there once is counted once"),
    ("count", lambda *a: count(*a) + 0.5, "the answer is a whole number"),
    ("wiring", lambda *a: wiring(*a, causal=False), "a later target token changes nothing"),
    ("wiring", lambda *a: wiring(*a, reader=False), "what stands in the padding changes nothing"),
    ("wiring", lambda *a: wiring(*a, bridge=False), "what stands in the padding changes nothing"),
    ("wiring", lambda *a: wiring(*a, upside=True), "what stands in the padding changes nothing"),
    ("wiring", from_one, "the logits are those of"),
    ("wiring", lambda *a: wiring(*a)[:, -1], "there is a logit for each word at each target"),
    ("wiring", lambda m, s, t, r: m(s * 0, t, source_mask=r), "the real source tokens are heard"),
    ("with_seed", lambda s, m: m(), "the same seed draws the same numbers: Python"),
    ("with_seed", lambda *a: with_seed(*a, libraries=1), "the same numbers: Python"),
    ("with_seed", lambda *a: with_seed(*a, libraries=2), "the same numbers: NumPy"),
    ("with_seed", lambda s, m: with_seed(42, m), "another seed draws other numbers"),
    ("with_seed", lambda *a: with_seed(*a, back=0), "as if nothing had happened: Python"),
    ("with_seed", lambda *a: with_seed(*a, back=1), "as if nothing had happened: NumPy"),
    ("with_seed", lambda *a: with_seed(*a, back=2), "as if nothing had happened: PyTorch"),
    ("with_seed", lambda *a: with_seed(*a, always=False), "put back where make() raises: Python"),
    ("with_seed", sows_again, "as if nothing had happened: PyTorch"),
    ("with_seed", swallows, "an error of make() reaches the caller"),
    ("with_seed", lambda s, m: with_seed(s, m) and None, "the answer is what make() returns"),
    ("price", lambda *a: price(*a, unit=1), "the unit is FLOPs"),
    ("price", lambda *a: price(*a, head=False), "every target position asks every word"),
    ("price", lambda *a: price(*a, bridge="none"), "one source token more"),
    ("price", lambda *a: price(*a, bridge="target"), "one source token more"),
    ("price", lambda *a: price(*a) + 2, "the sum is what the counter shows"),
    ("start", lambda d, e: 0.02, "the first loss is that far above ln V"),
    ("start", lambda d, e: d**-0.5, "the first loss is that far above ln V"),
    ("start", lambda d, e: (e / d) ** 0.5, "the first loss is that far above ln V"),
    ("start", lambda d, e: -0.1, "the answer is a positive number"),
]


def test_a_numpy_integer_is_a_whole_number() -> None:
    assert exercises.check("assembling.count", lambda *a: np.int64(count(*a))).passed


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name: str) -> None:
    report = exercises.check(f"assembling.{name}", RIGHT[name])
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "named"), WRONG)
def test_wrong_answers_are_named(name: str, answer, named: str) -> None:
    report = exercises.check(f"assembling.{name}", answer)
    assert not report.passed
    assert named in report.property, report


def test_the_check_of_seeds_leaves_the_generators_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    want = random.random(), float(np.random.rand())
    random.seed(1)
    np.random.seed(1)
    exercises.check("assembling.with_seed", with_seed)
    assert (random.random(), float(np.random.rand())) == want


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("assembling"):
        assert sum(f"assembling.{wrong[0]}" == name for wrong in WRONG) >= 3
