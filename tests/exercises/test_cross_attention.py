"""Right answers pass; typical wrong ones are told which property they lack."""

import math

import pytest
import torch
from glassformer import exercises


def reviewed(x, memory, real, w_q, w_k, w_v, *, swap=False, width=0, mask=True, dim=-1):
    q, k, v = x @ w_q, memory @ w_k, memory @ w_v
    if swap:
        q, k, v = memory @ w_q, x @ w_k, x @ w_v
    scores = q @ k.mT / math.sqrt(width or q.shape[-1])
    if mask is True:
        scores = scores.masked_fill(~real[:, None], -math.inf)
    if mask == "upside down":
        scores = scores.masked_fill(real[:, None] & ~real.all(), -1e9)
    return scores.softmax(dim=dim) @ v


def review(**options):
    return lambda *args: reviewed(*args, **options)


def reads(layer, x, memory, real):
    other = torch.where(real[..., None], memory, 3 * torch.randn_like(memory))
    return bool((layer(x, other, real) - layer(x, memory, real)).abs().max() > 1e-4)


def reads_with_zeros(layer, x, memory, real):
    other = memory * real[..., None]
    return bool((layer(x, other, real) - layer(x, memory, real)).abs().max() > 1e-4)


def reads_last(layer, x, memory, real):
    other = memory.clone()
    other[:, -1] += 1
    return bool((layer(x, other, real) - layer(x, memory, real)).abs().max() > 1e-4)


def reads_first_sentence(layer, x, memory, real):
    other = torch.where(real[..., None], memory, 3 * torch.randn_like(memory))
    return bool((layer(x, other, real) - layer(x, memory, real))[0].abs().max() > 1e-4)


def reads_exactly(layer, x, memory, real):
    other = torch.where(real[..., None], memory, 3 * torch.randn_like(memory))
    return not torch.equal(layer(x, other, real), layer(x, memory, real))


def reads_in_place(layer, x, memory, real):
    before = layer(x, memory, real)
    memory[~real] = 7.0
    return bool((layer(x, memory, real) - before).abs().max() > 1e-4)


def reads_by_slopes(layer, x, memory, real):
    memory = memory.clone().requires_grad_()
    (slope,) = torch.autograd.grad(layer(x, memory, real).square().sum(), memory)
    return bool(slope[~real].abs().max() > 1e-5)


def links(weights, source, target):
    best = weights.argmax(dim=-1).tolist()
    pairs = [(source[s], word) for s, word in zip(best, target[1:], strict=False)]
    return [(s, word) for s, word in pairs if s != "</s>"]


def links_that_read(weights, source, target):
    best = weights.argmax(dim=-1).tolist()
    return [(source[s], word) for s, word in zip(best, target, strict=True) if word != "<s>"]


def links_of_bos(weights, source, target):
    best = weights.argmax(dim=-1).tolist()
    return [(source[s], word) for s, word in zip(best, target, strict=True)]


def links_to_the_end(weights, source, target):
    best = weights.argmax(dim=-1).tolist()
    return [(source[s], word) for s, word in zip(best, target[1:], strict=False)]


def links_around_the_end(weights, source, target):
    best = weights[:, :-1].argmax(dim=-1).tolist()
    return [(source[s], word) for s, word in zip(best, target[1:], strict=False)]


def links_by_word(weights, source, target):
    return [(s, word) for word, s in {w: s for s, w in links(weights, source, target)}.items()]


def aer(found, sure, possible, *, union=True, guard=True, recall=True):
    hits = total = 0
    for a, s, p in zip(found, sure, possible, strict=True):
        hits += len(a & s) + len(a & (p | s if union else p))
        total += len(a) + (len(s) if recall else len(a))
    return 1 - hits / total if total or not guard else 0.0


def mean_aer(found, sure, possible):
    rates = [aer([a], [s], [p]) for a, s, p in zip(found, sure, possible, strict=True)]
    return sum(rates) / len(rates)


def once(memory, project_k, project_v):
    k, v = project_k(memory), project_v(memory)

    def ask(query):
        scores = query[:, None] @ k.mT / math.sqrt(query.shape[-1])
        return (scores.softmax(dim=-1) @ v)[:, 0]

    return ask


def each_time(memory, project_k, project_v):
    return lambda query: once(memory, project_k, project_v)(query)


def crossed(memory, project_k, project_v):
    k, v = project_k(memory), project_v(memory)

    def ask(query):
        return ((query @ k.mT / math.sqrt(query.shape[-1])).softmax(dim=-1) @ v)[:, 0]

    return ask


KEPT = {}


def kept_for_all(memory, project_k, project_v):
    if not KEPT:
        KEPT["k"], KEPT["v"] = project_k(memory), project_v(memory)

    def ask(query):
        scores = query[:, None] @ KEPT["k"].mT / math.sqrt(query.shape[-1])
        return (scores.softmax(dim=-1) @ KEPT["v"])[:, 0]

    return ask


def kept_for_the_last(memory, project_k, project_v):
    KEPT["k"], KEPT["v"] = project_k(memory), project_v(memory)
    return kept_for_all(memory, project_k, project_v)


def first_answer(memory, project_k, project_v):
    ask, answers = once(memory, project_k, project_v), []

    def repeat(query):
        answers.append(ask(query))
        return answers[0]

    return repeat


RIGHT = [
    ("review", review()),
    ("reads_padding", reads),
    ("reads_padding", reads_by_slopes),
    ("links", links),
    ("aer", aer),
    ("once", once),
]

WRONG = [
    ("review", review(swap=True, mask=False), "a row for each token of the target"),
    ("review", review(width=11), "root of the width of the keys"),
    ("review", review(mask=False), "padding of the source has no say"),
    ("review", review(mask="upside down"), "padding of the source has no say"),
    ("review", review(dim=-2), "a source of equal vectors gives their value"),
    ("reads_padding", reads_with_zeros, "a memory whose padding is 0"),
    ("reads_padding", reads_last, "no dependence is reported where there is none"),
    ("reads_padding", reads_first_sentence, "the first sentence for all"),
    ("reads_padding", reads_exactly, "no dependence is reported where there is none"),
    ("reads_padding", reads_in_place, "what it was given is as it was"),
    ("reads_padding", lambda *args: None, "the answer is True or False"),
    ("links", links_of_bos, "<s> is never written"),
    ("links", links_that_read, "a word is linked by the row that writes it"),
    ("links", links_to_the_end, "largest weight is on </s> has no pair"),
    ("links", links_around_the_end, "largest weight is on </s> has no pair"),
    ("links", links_by_word, "words that occur twice are linked twice"),
    ("links", lambda *args: {"es": "it"}, "a list of pairs"),
    ("aer", mean_aer, "counts are added up over the sentences"),
    ("aer", lambda *args: aer(*args, union=False), "a sure link is possible"),
    ("aer", lambda *args: aer(*args, guard=False), "it runs without an error"),
    ("aer", lambda *args: aer(*args, recall=False), "a possible link that was found costs nothing"),
    ("aer", lambda *args: 1 - aer(*args), "all sure links and nothing else give 0"),
    ("once", each_time, "four steps run each projection once"),
    ("once", crossed, "each query gets the context of its own sentence"),
    ("once", first_answer, "later steps get theirs"),
    ("once", kept_for_all, "a second source has keys and values of its own"),
    ("once", kept_for_the_last, "the first asker still has its own"),
]


@pytest.fixture(autouse=True)
def forget() -> None:
    KEPT.clear()


@pytest.mark.parametrize(("task", "learner"), RIGHT)
def test_right(task, learner) -> None:
    report = exercises.check(f"cross_attention.{task}", learner)
    assert report.passed, repr(report)


@pytest.mark.parametrize(("task", "learner", "named"), WRONG)
def test_wrong(task, learner, named) -> None:
    report = exercises.check(f"cross_attention.{task}", learner)
    assert not report.passed
    assert named in report.property, repr(report)
    assert report.hint


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("cross_attention"):
        assert sum(f"cross_attention.{wrong[0]}" == name for wrong in WRONG) >= 3
