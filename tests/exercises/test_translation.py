"""Right answers pass; typical wrong ones are told which property they lack."""

import math
from collections import Counter

import pytest
import torch
from glassformer import exercises


def rows(targets, bos, eos, pad):
    width = max(map(len, targets)) + 1
    inputs, wanted, mask = [], [], []
    for row in targets:
        air = [pad] * (width - len(row) - 1)
        inputs.append([bos, *row, *air])
        wanted.append([*row, eos, *air])
        mask.append([True] * (len(row) + 1) + [False] * len(air))
    return torch.tensor(inputs), torch.tensor(wanted), torch.tensor(mask)


def rows_with_late_end(targets, bos, eos, pad):
    width = max(map(len, targets))
    filled = [row + [pad] * (width - len(row)) for row in targets]
    inputs = torch.tensor([[bos, *row] for row in filled])
    wanted = torch.tensor([[*row, eos] for row in filled])
    return inputs, wanted, wanted != pad


def rows_masked_by_id(targets, bos, eos, pad):
    inputs, wanted, _ = rows(targets, bos, eos, pad)
    return inputs, wanted, wanted != pad


def rows_without_end_in_the_mask(targets, bos, eos, pad):
    inputs, wanted, mask = rows(targets, bos, eos, pad)
    return inputs, wanted, mask & (wanted != eos)


def rows_not_shifted(targets, bos, eos, pad):
    _, wanted, mask = rows(targets, bos, eos, pad)
    return wanted, wanted, mask


def rows_without_eos(targets, bos, eos, pad):
    inputs, _, mask = rows(targets, bos, eos, pad)
    return inputs[:, :-1], inputs[:, 1:], mask[:, 1:]


def by_budget(lengths, budget):
    batches = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or lengths[i] * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def by_budget_of_sums(lengths, budget):
    batches = [[]]
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if sum(lengths[j] for j in batches[-1]) + lengths[i] > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def by_budget_below(lengths, budget):
    return by_budget(lengths, budget - 1)


def by_budget_longest_first(lengths, budget):
    batches = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def by_budget_unsorted(lengths, budget):
    batches = []
    for i, length in enumerate(lengths):
        longest = max([length, *(lengths[j] for j in batches[-1])] if batches else [length])
        if not batches or longest * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def by_budget_dropping(lengths, budget):
    short = [i for i in range(len(lengths)) if lengths[i] <= budget]
    return [[short[j] for j in batch] for batch in by_budget([lengths[i] for i in short], budget)]


def by_budget_with_an_empty_batch(lengths, budget):
    batches = [[]]
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if lengths[i] * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def ngrams(words, n):
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def my_bleu(ours, theirs):
    hits, tried = [0] * 4, [0] * 4
    for a, b in zip(ours, theirs, strict=True):
        for n in range(4):
            found, wanted = ngrams(a.split(), n + 1), ngrams(b.split(), n + 1)
            hits[n] += (found & wanted).total()
            tried[n] += found.total()
    if not all(hits):
        return 0.0
    lengths = [sum(len(text.split()) for text in side) for side in (ours, theirs)]
    mean = sum(math.log(h / t) for h, t in zip(hits, tried, strict=True)) / 4
    return 100 * math.exp(mean + min(0, 1 - lengths[1] / lengths[0]))


GOOD = ["the cat sat on the mat today", "she reads a very good book"]
CASES = {
    "clip": (["the the the cat sat on the mat"], ["the cat sat on the mat"]),
    "short": (["the cat sat on the"], ["the cat sat on the mat today"]),
    "mean": ([GOOD[0], "a b c d x"], [GOOD[0], "a b c d e"]),
    "order": (["mat the on sat cat the", GOOD[1]], ["the cat sat on the mat", GOOD[1]]),
}


def a_test_of(*names, lengths=True, always=None):
    def trusted(metric):
        if always is not None:
            return always
        for name in names:
            if abs(metric(*CASES[name]) - my_bleu(*CASES[name])) > 0.01:
                return False
        if not lengths:
            return True
        try:
            metric(GOOD[:1], GOOD)
        except ValueError:
            return True
        return False

    return trusted


def interval(a, b, score, n, *, level=0.95, unpaired=False, replace=True, size=None, swap=1):
    def draw():
        return torch.randint(len(a), (size or len(a),)) if replace else torch.randperm(len(a))

    found = []
    for _ in range(n):
        rows_a = draw()
        rows_b = draw() if unpaired else rows_a
        found.append(swap * float(score(a[rows_a]) - score(b[rows_b])))
    tail = (1 - level) / 2
    low, high = torch.tensor(found).quantile(torch.tensor([tail, 1 - tail]))
    return float(low), float(high)


def variant(**options):
    return lambda a, b, score, n: interval(a, b, score, n, **options)


def own_loss(total, n_own, world, all_reduce):
    return total * world / max(all_reduce(n_own), 1)


def own_loss_only_with_tokens(total, n_own, world, all_reduce):
    return total * world / all_reduce(n_own) if n_own else total


PASSES = {
    "decoder_rows": [rows],
    "by_budget": [by_budget, by_budget_longest_first],
    "trusted": [a_test_of(*CASES)],
    "difference_interval": [variant(), lambda *given: torch.tensor(interval(*given))],
    "own_loss": [own_loss],
}
FAILS = [
    ("decoder_rows", rows_with_late_end, "eos follows the last word"),
    ("decoder_rows", rows_masked_by_id, "with the id of the padding counts"),
    ("decoder_rows", rows_without_end_in_the_mask, "the end of a sentence counts"),
    ("decoder_rows", rows_not_shifted, "reads bos first"),
    ("decoder_rows", rows_without_eos, "room for the longest and one more"),
    ("decoder_rows", lambda *given: rows(*given)[0], "three tensors"),
    ("by_budget", by_budget_of_sums, "longest sentence times their number"),
    ("by_budget", by_budget_unsorted, "similar lengths"),
    ("by_budget", by_budget_below, "exactly the budget"),
    ("by_budget", by_budget_dropping, "exactly one batch"),
    ("by_budget", by_budget_with_an_empty_batch, "a batch of its own"),
    ("by_budget", lambda lengths, budget: [[i] for i in range(len(lengths))], "are filled"),
    ("trusted", a_test_of(*CASES, always=True), "without clipping is not trusted"),
    ("trusted", a_test_of(always=False), "a BLEU that is right is trusted"),
    ("trusted", a_test_of("short", "mean", "order"), "without clipping"),
    ("trusted", a_test_of("clip", "mean", "order"), "brevity penalty is not"),
    ("trusted", a_test_of("clip", "short"), "mean of the BLEUs"),
    ("trusted", a_test_of(*CASES, lengths=False), "cuts to the shorter list"),
    ("trusted", a_test_of(always=3), "True or False"),
    ("difference_interval", variant(unpaired=True), "on the same draw"),
    ("difference_interval", variant(replace=False), "with replacement"),
    ("difference_interval", variant(level=0.9), "middle 95 %"),
    ("difference_interval", variant(level=0.99), "middle 95 %"),
    ("difference_interval", variant(size=50), "middle 95 %"),
    ("difference_interval", variant(swap=-1), "that of a to b"),
    ("difference_interval", lambda *given: 1.0, "a pair"),
    ("own_loss", lambda total, n, world, all_reduce: total / n, "every token weighs the same"),
    (
        "own_loss",
        lambda total, n, world, all_reduce: total / all_reduce(n),
        "the average of the engine is undone",
    ),
    ("own_loss", own_loss_only_with_tokens, "equally often"),
    (
        "own_loss",
        lambda total, n, world, all_reduce: world * all_reduce(total) / all_reduce(n),
        "called backward on",
    ),
    (
        "own_loss",
        lambda total, n, world, all_reduce: total * world * n / n / all_reduce(n),
        "adds nothing, and no NaN",
    ),
]


@pytest.mark.parametrize(
    ("name", "answer"), [(name, answer) for name, answers in PASSES.items() for answer in answers]
)
def test_a_right_answer_passes(name, answer):
    report = exercises.check(f"translation.{name}", answer)
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "named"), FAILS)
def test_a_wrong_answer_is_named(name, answer, named):
    report = exercises.check(f"translation.{name}", answer)
    assert not report.passed
    assert named in report.property, report
    assert report.fed


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("translation"):
        assert sum(f"translation.{wrong[0]}" == name for wrong in FAILS) >= 3
