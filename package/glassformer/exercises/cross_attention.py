"""Checks for the exercises of the chapter ``cross_attention``."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glassformer.exercises import exercise, expect, expect_answer, expect_close

__all__: list[str] = []


@exercise("cross_attention.review", minutes=15, level="medium")
def review(learner: Any) -> None:
    """Queries from the target, keys and values from the source, padding hidden."""
    x, memory = torch.randn(2, 5, 11), torch.randn(2, 7, 11)
    matrices = torch.randn(3, 11, 3)
    all_real = torch.ones(2, 7, dtype=torch.bool)
    fed = "x (2, 5, 11), memory (2, 7, 11), three matrices (11, 3)"
    got = learner(x.clone(), memory.clone(), all_real.clone(), *matrices.clone())
    shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
    expect(
        shape == (2, 5, 3),
        "the output has a row for each token of the target",
        fed=fed,
        expected=(2, 5, 3),
        got=shape,
        hint="Who asks? The output is as long as the queries, and the decoder adds it to its own "
        "stream. So queries are made of x, keys and values of memory.",
    )
    ones = torch.ones(2, 7, 11)
    unchanging = learner(x.clone(), ones, all_real.clone(), *matrices.clone())
    expect_close(
        "a source of equal vectors gives their value, whatever is asked",
        unchanging,
        (ones @ matrices[2])[:, :5],
        fed="the same with a memory that is 1 everywhere",
        hint="The weights of a query sum to 1 over the source tokens, the last axis of the scores.",
        atol=1e-4,
    )
    expect_close(
        "the scores are divided by the root of the width of the keys",
        got,
        _attention(x, memory, all_real, *matrices),
        fed=fed + ", all tokens real",
        hint="√d_k, the last size of q, and not √D. They are 3 and 11 here. (If that is right: are "
        "keys and values made with their own matrices?)",
        atol=1e-4,
        rtol=1e-4,
    )
    real = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])
    masked = learner(x.clone(), memory.clone(), real.clone(), *matrices.clone())
    expect_close(
        "padding of the source has no say",
        masked,
        _attention(x, memory, real, *matrices),
        fed="the same, with 4 and 7 real tokens",
        hint="real is (B, S) and the scores are (B, T, S): an axis for the queries is missing. "
        "True means real, and what is filled with -inf is what is not.",
        atol=1e-4,
        rtol=1e-4,
    )


@exercise("cross_attention.reads_padding", minutes=15, level="medium")
def reads_padding(learner: Any) -> None:
    """A test that tells whether padding of the source changes the output."""
    real = torch.tensor([[True] * 4 + [False] * 3, [True] * 7, [True] * 2 + [False] * 5])
    left = real.flip(1)
    right_says, wrong_says = (
        "no dependence is reported where there is none",
        "a dependence on padding is found",
    )
    padded = "what stands in the padding must be changed everywhere, and the outputs compared"
    cases: list[tuple[str, Callable[..., Tensor], Tensor, bool, str]] = [
        (
            "a layer that hides the padding",
            _layer,
            real,
            False,
            "the real tokens must stay as they are: in row 1 of the batch all seven are real",
        ),
        (
            "the same, padded on the left",
            _layer,
            left,
            False,
            "which tokens are real stands in the mask, not in their place",
        ),
        (
            "a layer without a mask",
            lambda x, memory, real: _layer(x, memory, torch.ones_like(real)),
            real,
            True,
            "everything is seen",
        ),
        (
            "a layer without a mask, and a memory whose padding is 0",
            lambda x, memory, real: _layer(x, memory, torch.ones_like(real)),
            real,
            True,
            "zeros put in the place of zeros change nothing: put noise there",
        ),
        (
            "a layer that takes the mask of the first sentence for all",
            lambda x, memory, real: _layer(x, memory, real[:1].expand_as(real)),
            real,
            True,
            "look at all sentences, not the first alone",
        ),
        (
            "a layer that hides the last token only",
            lambda x, memory, real: _layer(x, memory, _without_last(real)),
            real,
            True,
            padded,
        ),
        (
            "a layer that hides the padding from the keys and adds up all values",
            lambda x, memory, real: (
                _layer(x, memory, real) + 0.05 * memory.sum(dim=1, keepdim=True)
            ),
            left,
            True,
            padded,
        ),
        (
            "a layer that hides the padding, and whose numbers wobble in the seventh digit",
            lambda x, memory, real: _layer(x, memory, real) + 1e-7 * torch.randn(3, 5, 11),
            real,
            False,
            "two runs may differ by rounding: compare with a tolerance of 1e-4 or so",
        ),
    ]
    for name, layer, mask, depends, hint in cases:
        x, memory = torch.randn(3, 5, 11), torch.randn(3, 7, 11)
        if "padding is 0" in name:
            memory = memory * mask[..., None]
        kept = x.clone(), memory.clone(), mask.clone()
        got = learner(layer, x, memory, mask)
        fed = f"{name}; x (3, 5, 11), memory (3, 7, 11)"
        expect(
            all(torch.equal(a, b) for a, b in zip((x, memory, mask), kept, strict=True)),
            "what it was given is as it was",
            fed=fed,
            expected="x, memory and real unchanged",
            got="one of them was written into",
            hint="memory[...] = 0 writes into the caller's tensor: make a new one, for instance "
            "with torch.where.",
        )
        expect_answer(
            f"{wrong_says if depends else right_says}: {name}",
            got,
            depends,
            fed=fed,
            meaning="the output depends on the padding",
            hint=hint,
        )


@exercise("cross_attention.links", minutes=10, level="easy")
def links(learner: Any) -> None:
    """The row that writes a word is the one before the row that has read it."""
    source, target = ["heute", "regnet", "es", "</s>"], ["<s>", "it", "is", "raining", "today"]
    weights = _pointing([2, 1, 1, 0, 3], 4)
    want = [("es", "it"), ("regnet", "is"), ("regnet", "raining"), ("heute", "today")]
    fed = f"source {source}, target {target}, rows that point to es, regnet, regnet, heute, </s>"
    got = _pairs(learner(weights.clone(), list(source), list(target)), fed)
    expect(
        not any("<s>" in pair for pair in got),
        "<s> is never written",
        fed=fed,
        expected=want,
        got=got,
        hint="Row 0 has read <s>. The word that it writes is target[1].",
    )
    expect(
        len(got) == 4,
        "there is a pair for each word that was written and is in target",
        fed=fed,
        expected=want,
        got=got,
        hint="Five rows, and the last one writes what comes after today, which is not in target.",
    )
    expect(
        got == want,
        "a word is linked by the row that writes it",
        fed=fed,
        expected=want,
        got=got,
        hint="Row t has read target[t] and writes target[t + 1]. A pair is (source, target).",
    )
    weights = _pointing([1, 2, 0], 3)
    fed = "source ['ja', 'bitte', '</s>'], target ['<s>', 'please', 'do'], second row on </s>"
    expect(
        (got := _pairs(learner(weights, ["ja", "bitte", "</s>"], ["<s>", "please", "do"]), fed))
        == [("bitte", "please")],
        "a word whose largest weight is on </s> has no pair",
        fed=fed,
        expected=[("bitte", "please")],
        got=got,
        hint="Leave the pair out; the second-best source token is not asked for.",
    )
    weights = _pointing([1, 0, 1], 3)
    fed = "source ['na', 'na', '</s>'], a word that occurs twice"
    expect(
        (got := _pairs(learner(weights, ["na", "na", "</s>"], ["<s>", "well", "well"]), fed))
        == [("na", "well"), ("na", "well")],
        "words that occur twice are linked twice",
        fed=fed,
        expected=[("na", "well"), ("na", "well")],
        got=got,
        hint="Go by places, not by words: a set or a dict of words loses the second one.",
    )


@exercise("cross_attention.aer", minutes=10, level="easy")
def aer(learner: Any) -> None:
    """One division, over the counts of all sentences."""
    sure = [{(0, 0), (1, 1)}]
    nothing: list[set[tuple[int, int]]] = [set(), set()]
    cases: list[tuple[str, tuple[list[set[tuple[int, int]]], ...], float, str]] = [
        (
            "all sure links and nothing else give 0",
            ([{(0, 0), (1, 1)}], sure, [{(0, 0), (1, 1)}]),
            0.0,
            "A perfect alignment: 2 + 2 hits over 2 + 2 links.",
        ),
        (
            "a possible link that was found costs nothing",
            ([{(0, 0), (1, 1), (2, 1)}], sure, [{(0, 0), (1, 1), (2, 1)}]),
            0.0,
            "2 sure hits and 3 possible ones, over 3 links found and 2 sure ones.",
        ),
        (
            "a sure link is possible, also where the list forgot it",
            ([{(0, 0), (1, 1)}], sure, [{(2, 1)}]),
            0.0,
            "Count the hits among p | s, not among p.",
        ),
        (
            "a sure link that was not found costs",
            ([{(0, 0)}], sure, sure),
            1 / 3,
            "1 + 1 hits over 1 + 2 links. |S| is what should have been found.",
        ),
        (
            "counts are added up over the sentences before the division",
            ([{(0, 0)}, {(0, 0), (1, 1), (2, 2), (3, 3)}], [{(5, 5)}, sure[0]], nothing),
            1 - 4 / 8,
            "A mean of rates gives a sentence of one word the weight of one of forty.",
        ),
        (
            "where nothing was found and nothing is sure, nothing is wrong",
            (nothing, nothing, [set(), {(0, 0)}]),
            0.0,
            "0 / 0: ask before you divide.",
        ),
        (
            "a sentence without links does not stop the others",
            ([set(), {(0, 0)}], [set(), {(0, 0)}], nothing),
            0.0,
            "Divide once, at the end.",
        ),
    ]
    for name, (found, gold, may), want, hint in cases:
        fed = f"found {found}, sure {gold}, possible {may}"
        got = learner(*([set(x) for x in part] for part in (found, gold, may)))
        expect(
            isinstance(got, int | float),
            "the answer is a number",
            fed=fed,
            expected=round(want, 4),
            got=got,
            hint="Return 1 - hits / total.",
        )
        expect(
            math.isclose(got, want, abs_tol=1e-9),
            name,
            fed=fed,
            expected=round(want, 4),
            got=round(got, 4),
            hint=hint,
        )


@exercise("cross_attention.once", minutes=15, level="medium")
def once(learner: Any) -> None:
    """Keys and values of a source are made once, however many steps ask."""
    memory, w_k, w_v = torch.randn(3, 7, 11), torch.randn(11, 5), torch.randn(11, 5)
    calls = {"k": 0, "v": 0}

    def counting(name: str, matrix: Tensor) -> Callable[[Tensor], Tensor]:
        def project(rows: Tensor) -> Tensor:
            calls[name] += 1
            return rows @ matrix

        return project

    ask = learner(memory, counting("k", w_k), counting("v", w_v))
    queries = torch.randn(4, 3, 5)
    got = [ask(query.clone()) for query in queries]
    fed = "a memory (3, 7, 11), and four queries (3, 5) one after the other"
    want = [_one_step(query, memory, w_k, w_v) for query in queries]
    expect_close(
        "each query gets the context of its own sentence",
        got[0],
        want[0],
        fed=fed,
        hint="(B, d_k) times (B, d_k, S) broadcasts to (B, B, S), every sentence against every "
        "other: give the query an axis for its one step, and take it away afterwards.",
        atol=1e-4,
    )
    expect_close(
        "later steps get theirs, not the first one's",
        torch.stack(list(got)),
        torch.stack(want),
        fed=fed,
        hint="Keys and values stay; scores and context belong to one query.",
        atol=1e-4,
    )
    expect(
        calls == {"k": 1, "v": 1},
        "four steps run each projection once",
        fed=fed,
        expected="project_k once, project_v once",
        got=f"project_k {calls['k']} times, project_v {calls['v']} times",
        hint="Neither depends on the query: make k and v before the inner function.",
    )
    other = torch.randn(3, 4, 11)
    ask_other = learner(other, counting("k", w_k), counting("v", w_v))
    second = ask_other(queries[0].clone())
    expect_close(
        "a second source has keys and values of its own",
        second,
        _one_step(queries[0], other, w_k, w_v),
        fed="a second asker, for a source of 4 tokens",
        hint="Keep k and v where one asker can see them: not in a global, not on the function.",
        atol=1e-4,
    )
    expect_close(
        "and the first asker still has its own",
        ask(queries[1].clone()),
        want[1],
        fed="the first asker again, after the second",
        hint="Keep k and v where one asker can see them: not in a global, not on the function.",
        atol=1e-4,
    )


def _attention(x: Tensor, memory: Tensor, real: Tensor, *matrices: Tensor) -> Tensor:
    w_q, w_k, w_v = matrices
    scores = (x @ w_q) @ (memory @ w_k).mT / math.sqrt(w_q.shape[-1])
    return scores.masked_fill(~real[:, None], -math.inf).softmax(dim=-1) @ (memory @ w_v)


def _layer(x: Tensor, memory: Tensor, real: Tensor) -> Tensor:
    scores = (x @ memory.mT / 4).masked_fill(~real[:, None], -math.inf)
    return scores.softmax(dim=-1) @ memory


def _without_last(real: Tensor) -> Tensor:
    seen = torch.ones_like(real)
    seen[:, -1] = real[:, -1]
    return seen


def _pointing(places: list[int], n_source: int) -> Tensor:
    """Weights of which each row has its largest where it is told."""
    weights = torch.full((len(places), n_source), 0.1)
    weights[range(len(places)), places] = 0.6
    return weights / weights.sum(dim=-1, keepdim=True)


def _pairs(got: Any, fed: str) -> list[tuple[str, str]]:
    fits = isinstance(got, list) and all(isinstance(p, tuple) and len(p) == 2 for p in got)
    expect(
        fits,
        "the answer is a list of pairs",
        fed=fed,
        expected="[(source token, target token), ...]",
        got=got,
        hint="A list of tuples of two strings, in the order of the target.",
    )
    return list(got)


def _one_step(query: Tensor, memory: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    scores = query[:, None] @ (memory @ w_k).mT / math.sqrt(query.shape[-1])
    return (scores.softmax(dim=-1) @ (memory @ w_v))[:, 0]
