"""Checks for the exercises of the chapter ``translation``."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.exercises import exercise, expect, expect_answer, expect_close

__all__: list[str] = []

Metric = Callable[[Sequence[str], Sequence[str]], float]


@exercise("translation.decoder_rows", minutes=10, level="easy")
def decoder_rows(learner: Any) -> None:
    """What the decoder reads and what it must say, shifted against each other by one."""
    pad, bos, eos = 0, 7, 9
    targets = [[11, 12, 13, 14, 15], [21, 0], [31, 32, 33]]
    fed = "targets [[11, 12, 13, 14, 15], [21, 0], [31, 32, 33]], bos 7, eos 9, pad 0"
    got = learner([list(row) for row in targets], bos, eos, pad)
    expect(
        isinstance(got, tuple | list)
        and len(got) == 3
        and all(isinstance(part, Tensor) for part in got),
        "three tensors: inputs, targets, mask",
        fed=fed,
        expected="a tuple of three tensors",
        got=got,
    )
    inputs, wanted, mask = got
    shapes = {tuple(part.shape) for part in got}
    expect(
        shapes == {(3, 6)},
        "each has a row for each sentence, and room for the longest and one more",
        fed=fed,
        expected=(3, 6),
        got=sorted(shapes),
        hint="Five words need six places: bos before them in one row, eos behind them in another.",
    )
    expect_close(
        "the decoder reads bos first, then the words",
        inputs,
        torch.tensor([[bos, *row, *[pad] * (5 - len(row))] for row in targets]),
        fed=fed,
        hint="In inputs, row t stands one place to the right of where it stands in the targets.",
    )
    ends = [row.index(eos) if eos in row else None for row in wanted.tolist()]
    expect(
        ends == [5, 2, 3],
        "eos follows the last word of each target",
        fed=fed,
        expected="eos at places 5, 2 and 3",
        got=f"eos at places {ends}",
        hint="A short sentence ends where its words end. Padding comes behind eos.",
    )
    expect_close(
        "what it must say is the words, then eos",
        wanted,
        torch.tensor([[*row, eos, *[pad] * (5 - len(row))] for row in targets]),
        fed=fed,
        hint="No bos here: nobody has to say it.",
    )
    expect(
        mask.dtype == torch.bool,
        "the mask is boolean",
        fed=fed,
        expected="torch.bool",
        got=mask.dtype,
    )
    expect(
        bool(mask[0, 5] and mask[1, 2] and mask[2, 3]),
        "the end of a sentence counts",
        fed=fed,
        expected="True where eos stands",
        got=mask.tolist(),
        hint="A model that is never asked for eos never stops.",
    )
    expect(
        bool(mask[1, 1]),
        "a real token with the id of the padding counts",
        fed=f"{fed}: the second word of the second sentence is 0",
        expected="True at row 1, place 1",
        got=mask[1].tolist(),
        hint="Take the mask from the lengths and not from the ids.",
    )
    expect_close(
        "padding does not count",
        mask.long(),
        torch.tensor([[1] * 6, [1] * 3 + [0] * 3, [1] * 4 + [0] * 2]),
        fed=fed,
    )


@exercise("translation.by_budget", minutes=15, level="medium")
def by_budget(learner: Any) -> None:
    """Batches of sentences of similar length whose padded size stays within a budget."""
    lengths = [3, 29, 5, 7, 31, 4, 11, 6, 13, 5, 8, 30, 12, 9, 3, 71, 10, 4, 28, 6]
    budget = 60
    fed = f"{len(lengths)} lengths from 3 to 71, budget={budget}"
    got = learner(list(lengths), budget)
    batches = [list(batch) for batch in got]
    seen = sorted(i for batch in batches for i in batch)
    twice = sorted({i for i in seen if seen.count(i) > 1})
    missing = sorted(set(range(len(lengths))) - set(seen))
    expect(
        seen == list(range(len(lengths))),
        "every sentence is in exactly one batch",
        fed=fed,
        expected="the numbers 0 to 19, once each",
        got=f"missing {missing}, more than once {twice}",
        hint="The last batch may be smaller, and a sentence longer than the budget is not dropped.",
    )
    expect(
        all(batches),
        "no batch is empty",
        fed=fed,
        expected="batches of one sentence or more",
        got=batches,
    )
    costs = [max(lengths[i] for i in batch) * len(batch) for batch in batches]
    over = [
        (sorted(lengths[i] for i in batch), cost)
        for batch, cost in zip(batches, costs, strict=True)
        if cost > budget and len(batch) > 1
    ]
    expect(
        not over,
        "a batch costs its longest sentence times their number, within the budget",
        fed=fed,
        expected=f"at most {budget} for each batch of several sentences",
        got=f"lengths {over[0][0]} cost {over[0][1]}" if over else "",
        hint="Padding costs as much as words: add up rectangles and not lengths.",
    )
    real, filled = sum(lengths), sum(costs)
    expect(
        1 - real / filled < 0.15,
        "neighbours have similar lengths",
        fed=fed,
        expected="less than 15 % padding",
        got=f"{1 - real / filled:.0%} padding",
        hint="Go through the sentences in the order of their lengths.",
    )
    expect(
        len(batches) <= 9,
        "batches are filled up to the budget",
        fed=fed,
        expected="9 batches or fewer",
        got=f"{len(batches)} batches",
        hint="Begin a new batch only if the next sentence would make this one too dear.",
    )
    full = [list(batch) for batch in learner([5] * 24, budget)]
    expect(
        sorted(map(len, full)) == [12, 12],
        "a batch may cost exactly the budget",
        fed="24 sentences of length 5, budget=60",
        expected="two batches of twelve, which cost 60 each",
        got=f"batches of {[len(batch) for batch in full]}",
        hint="At most the budget: is that > or >=?",
    )
    long_first = [list(batch) for batch in learner([90, 95], budget)]
    expect(
        sorted(map(len, long_first)) == [1, 1],
        "a sentence longer than the budget is a batch of its own",
        fed="lengths [90, 95], budget=60",
        expected="two batches of one sentence",
        got=long_first,
        hint="Is there an empty batch at the beginning, or one that took a second sentence?",
    )


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def _bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    clip: bool = True,
    brevity: bool = True,
    orders: int = 4,
    strict: bool = True,
) -> float:
    hits, tried, ours, theirs = [0] * orders, [0] * orders, 0, 0
    for hypothesis, reference in zip(hypotheses, references, strict=strict):
        a, b = hypothesis.split(), reference.split()
        ours, theirs = ours + len(a), theirs + len(b)
        for n in range(orders):
            found, wanted = _ngrams(a, n + 1), _ngrams(b, n + 1)
            hits[n] += sum(
                min(count, wanted[gram]) if clip else count * (gram in wanted)
                for gram, count in found.items()
            )
            tried[n] += sum(found.values())
    if not all(hits):
        return 0.0
    mean = sum(math.log(h / t) for h, t in zip(hits, tried, strict=True)) / orders
    return 100 * math.exp(mean + (min(0.0, 1 - theirs / ours) if brevity else 0.0))


def _mean_of_sentences(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    pairs = list(zip(hypotheses, references, strict=True))
    return sum(_bleu([a], [b]) for a, b in pairs) / len(pairs)


METRICS: dict[str, tuple[Metric, bool, str]] = {
    "a BLEU that is right": (
        _bleu,
        True,
        "it splits at blanks and smooths nothing: where no run of four words is right, it says 0",
    ),
    "a BLEU without clipping": (
        lambda a, b: _bleu(a, b, clip=False),
        False,
        "a word may count no more often than the reference has it: say one too often",
    ),
    "a BLEU without the brevity penalty": (
        lambda a, b: _bleu(a, b, brevity=False),
        False,
        "leave the end of a sentence away: what is there is right, and the score must fall",
    ),
    "the mean of the BLEUs of the sentences": (
        _mean_of_sentences,
        False,
        "give a long and a short sentence, one good and one bad: sums come first",
    ),
    "a BLEU that looks at single words only": (
        lambda a, b: _bleu(a, b, orders=1),
        False,
        "put the right words into the wrong order",
    ),
    "a BLEU that cuts to the shorter list": (
        lambda a, b: _bleu(a, b, strict=False),
        False,
        "give one translation too few: a good metric refuses",
    ),
}


@exercise("translation.trusted", minutes=20, level="medium")
def trusted(learner: Any) -> None:
    """A test that tells a right BLEU from five wrong ones."""
    for name, (metric, right, hint) in METRICS.items():
        expect_answer(
            f"{name} is {'trusted' if right else 'not trusted'}",
            learner(metric),
            right,
            fed=name,
            meaning="the metric can be trusted",
            hint=hint,
        )


@exercise("translation.difference_interval", minutes=15, level="medium")
def difference_interval(learner: Any) -> None:
    """The paired bootstrap: both systems on the same sentences, drawn with replacement."""
    lengths = torch.randint(3, 29, (211,)).double()
    hard = torch.rand(211).double()
    a, b = (
        torch.stack([(lengths * (hard + shift + noise).clamp(0, 1)).round(), lengths], dim=1)
        for shift, noise in ((0.03, torch.randn(211) * 0.05), (0.0, torch.randn(211) * 0.05))
    )

    def score(rows: Tensor) -> Tensor:
        return 100 * rows[:, 0].sum() / rows[:, 1].sum()

    fed = "two systems on 211 sentences, hits and tries of each, n=4000"
    got = learner(a.clone(), b.clone(), score, 4000)
    if hasattr(got, "tolist"):  # a tensor or an array of two numbers
        got = got.tolist()
    expect(
        isinstance(got, tuple | list) and len(got) == 2,
        "a pair: low and high",
        fed=fed,
        expected="two numbers",
        got=got,
    )
    low, high = (float(value) for value in got)
    draws = [torch.randint(211, (211,)) for _ in range(4000)]
    differences = torch.stack([score(a[rows]) - score(b[rows]) for rows in draws])
    ends = differences.quantile(torch.tensor([0.025, 0.975]).double())
    expected = [round(float(end), 2) for end in ends]
    width, wanted = high - low, float(ends[1] - ends[0])
    shown: dict[str, Any] = {
        "fed": fed,
        "expected": f"about {expected}",
        "got": [round(low, 2), round(high, 2)],
    }
    expect(
        width > 0.1 * wanted,
        "sentences are drawn with replacement",
        hint="A permutation has every sentence once, so its score is the score of all.",
        **shown,
    )
    same = [float(value) for value in learner(a.clone(), a.clone(), score, 50)]
    expect(
        max(abs(value) for value in same) < 1e-6,
        "both systems are scored on the same draw",
        fed="a system against itself, n=50",
        expected="0 and 0",
        got=[round(value, 2) for value in same],
        hint="Draw once, and take these sentences from a and from b.",
    )
    expect(
        abs((low + high) / 2 - float(ends.mean())) < 0.3 * wanted,
        "the difference is that of a to b",
        hint="score(a) - score(b), of the resamples.",
        **shown,
    )
    expect(
        0.92 * wanted < width < 1.09 * wanted,  # 0.84 has the middle 90 %, 1.31 the middle 99 %
        "it is the middle 95 % of draws as large as the test set",
        hint="Cut 2.5 % off at each end, and draw as many sentences as there are.",
        **shown,
    )


@exercise("translation.own_loss", minutes=15, level="hard")
def own_loss(learner: Any) -> None:
    """What one of several processes calls backward on."""
    _one_step(
        learner,
        [[4.0], [1.0] * 9],
        "two processes: one token of gradient 4, and nine tokens of gradient 1",
    )
    _one_step(
        learner,
        [[4.0, 2.0], [1.0] * 7, []],
        "three processes of 2, 7 and 0 tokens",
    )


class _AskedError(BaseException):
    """A process has called all_reduce, and the answer is not known yet."""


def _until_it_asks(
    learner: Any, own: list[float], world: int, known: list[float]
) -> tuple[float | None, float]:
    """What one process sends in its next all_reduce; if it has none left, its gradient."""
    answers = iter(known)
    sent: list[float] = []

    def all_reduce(x: Any) -> float:
        for answer in answers:
            return answer
        sent.append(float(x.detach() if isinstance(x, Tensor) else x))
        raise _AskedError

    weight = torch.tensor(1.0, requires_grad=True)
    total = sum((weight * value for value in own), start=weight * 0.0)
    try:
        loss = learner(total, len(own), world, all_reduce)
    except _AskedError:
        return sent[0], 0.0
    expect(
        isinstance(loss, Tensor) and loss.requires_grad,
        "the result can be called backward on",
        fed=f"a process of {len(own)} tokens, {world} processes",
        expected="a tensor made from total",
        got=loss,
        hint="What all_reduce returns has no gradient: make the loss from your own total.",
    )
    (gradient,) = torch.autograd.grad(loss, weight)
    return None, float(gradient)


def _one_step(learner: Any, tokens: list[list[float]], fed: str) -> None:
    world = len(tokens)
    everyone = [value for own in tokens for value in own]
    wanted = sum(everyone) / len(everyone)
    known: list[float] = []  # what the calls of all_reduce so far return
    while True:
        found = [_until_it_asks(learner, own, world, known) for own in tokens]
        asked = [sent for sent, _ in found if sent is not None]
        if not asked:
            break
        expect(
            len(asked) == world,
            "all processes call all_reduce equally often",
            fed=fed,
            expected="as many calls in each process",
            got=f"call number {len(known) + 1} comes from {len(asked)} of {world} processes",
            hint="A process without tokens must take part as well: the others wait for it.",
        )
        known.append(sum(asked))
    gradients = [gradient for _, gradient in found]
    averaged = sum(float(gradient) for gradient in gradients) / world
    expect(
        math.isfinite(averaged),
        "a process without tokens adds nothing, and no NaN",
        fed=fed,
        expected=round(wanted, 4),
        got=averaged,
        hint="Its own count is 0. By which count do you divide?",
    )
    expect(
        not math.isclose(averaged * world, wanted, rel_tol=1e-5),
        "the average of the engine is undone",
        fed=fed,
        expected=round(wanted, 4),
        got=round(averaged, 4),
        hint="The engine divides by the number of processes, and you have divided by all tokens.",
    )
    expect(
        math.isclose(averaged, wanted, rel_tol=1e-5),
        "every token weighs the same, whichever process has it",
        fed=fed,
        expected=round(wanted, 4),
        got=round(averaged, 4),
        hint="A mean of means lets the tokens of a small batch pull harder: count all of them.",
    )
