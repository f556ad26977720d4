"""Checks for the exercises of the chapter ``pruning``."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from glassformer.exercises import exercise, expect, expect_answer, expect_close
from glassformer.nn import MultiHeadAttention

__all__: list[str] = []


@exercise("pruning.cut", minutes=15, level="medium")
def cut(learner: Any) -> None:
    """Cut heads out of the four matrices of an attention."""
    q, k, v = torch.randn(3, 20, 23)  # 4 heads, 5 wide, in a model 23 wide
    o = torch.randn(23, 20)
    fed = "w_q, w_k, w_v of shape (20, 23), w_o of shape (23, 20), n_heads=4, gone=[1]"
    got = learner(q.clone(), k.clone(), v.clone(), o.clone(), 4, [1])
    expect(
        isinstance(got, tuple | list) and len(got) == 4,
        "four matrices come back",
        fed=fed,
        expected="w_q, w_k, w_v, w_o",
        got=got,
        hint="Return them in the order in which they came.",
    )
    shapes = [tuple(w.shape) for w in got]
    expect(
        shapes == [(15, 23)] * 3 + [(23, 15)],
        "three heads of width 5 are left",
        fed=fed,
        expected="(15, 23) three times, then (23, 15)",
        got=", ".join(map(str, shapes)),
        hint="A head owns 5 rows of w_q, w_k and w_v, and 5 columns of w_o. gone names those that "
        "leave.",
    )
    rows = [i for i in range(20) if i // 5 != 1]
    hint = (
        "Head h owns the rows from 5h to 5h + 4, which lie side by side. The heads that stay keep "
        "their order."
    )
    for name, mine, whole in zip(("w_q", "w_k", "w_v"), got, (q, k, v), strict=False):
        expect_close(
            f"{name} keeps the rows of heads 0, 2 and 3", mine, whole[rows], fed=fed, hint=hint
        )
    expect_close(
        "w_o keeps the columns of heads 0, 2 and 3",
        got[3],
        o[:, rows],
        fed=fed,
        hint="The columns of w_o belong to heads as the rows of w_q do.",
    )
    for gone, left in (([0, 2], [1, 3]), ([3, 0], [1, 2])):  # popping fails in one of the orders
        rows = [5 * head + i for head in left for i in range(5)]
        wanted = (q[rows], k[rows], v[rows], o[:, rows])
        got = learner(q.clone(), k.clone(), v.clone(), o.clone(), 4, list(gone))
        for name, mine, want in zip(("w_q", "w_k", "w_v", "w_o"), got, wanted, strict=True):
            expect_close(
                f"several heads go at once, named in any order ({name})",
                mine,
                want,
                fed=f"the same, gone={gone}",
                hint="If you remove one after the other, the second number no longer means the "
                "same row.",
            )


@exercise("pruning.renumber", minutes=10, level="easy")
def renumber(learner: Any) -> None:
    """The number in the whole model of a head that stands at some place now."""
    cases: list[tuple[str, list[int], str]] = [
        ("nothing is gone: places are numbers", [], "With no head gone nothing has moved."),
        ("heads behind the gap move up by one", [3], "Before the gap nothing has moved."),
        (
            "several gaps add up, the last one too",
            [1, 2, 3],
            "With 1 to 3 gone, place 1 is head 4: passing one gap may bring you to the next.",
        ),
        ("gaps may be named in any order", [6, 0, 4], "Sort what is gone, or ask for each number."),
    ]
    for name, gone, hint in cases:
        left = [head for head in range(9) if head not in gone]
        for place, number in enumerate(left):
            got = learner(place, list(gone))
            expect(
                got == number,
                name,
                fed=f"place={place}, gone={gone}",
                expected=number,
                got=got,
                hint=hint,
            )


@exercise("pruning.top_k", minutes=15, level="medium")
def top_k(learner: Any) -> None:
    """Weights of the k best keys among those that may be seen."""
    scores = torch.randn(2, 3, 5, 7) - 3.0  # mostly negative: a zero would win
    everything = torch.ones(5, 7, dtype=torch.bool)
    causal = torch.ones(5, 7, dtype=torch.bool).tril(2)  # rows see 3 to 7 keys
    fed = "scores of shape (2, 3, 5, 7), mostly negative, top_k=2"
    got = learner(scores.clone(), everything, 2)
    want = _best(scores, everything, 2)
    expect_close(
        "every row sums to one",
        got.sum(dim=-1),
        torch.ones(2, 3, 5),
        fed=fed,
        hint="Weights that are cut after the softmax need a new sum.",
    )
    expect(
        bool(((got > 0).sum(dim=-1) == 2).all()),
        "two keys of each row have weight, all others none",
        fed=fed,
        expected="2 in each row",
        got=f"{sorted((got > 0).sum(dim=-1).unique().tolist())} in a row",
        hint="e to the 0 is 1: a score of zero is not a weight of zero. What score has weight 0?",
    )
    expect_close(
        "the weights are the softmax of the two best scores",
        got,
        want,
        fed=fed,
        hint="Which two are kept, and are both divided by the sum of the two?",
    )
    expect_close(
        "the best are chosen among the keys that may be seen",
        learner(scores.clone(), causal, 2),
        _best(scores, causal, 2),
        fed="the same scores, and a causal mask of which row 0 sees 3 keys",
        hint="Hide first, then choose; and let nothing that is hidden come back.",
    )
    narrow = torch.ones(5, 7, dtype=torch.bool).tril(0)  # row 0 sees one key
    expect_close(
        "a row with fewer keys than top_k uses all it may see",
        learner(scores.clone(), narrow, 3),
        _best(scores, narrow, 3),
        fed="top_k=3, and a causal mask of which row 0 sees 1 key and row 1 sees 2",
        hint="The hidden ones among its top_k must still weigh nothing.",
    )
    short = scores[..., :1].clone()
    expect_close(
        "one key is enough, whatever top_k",
        learner(short, everything[:, :1], 2),
        torch.ones_like(short),
        fed="scores of shape (2, 3, 5, 1), top_k=2",
        hint="topk cannot take 2 of 1: min(top_k, scores.shape[-1]).",
    )
    ties = learner(torch.zeros(2, 3, 5, 7), everything, 2)
    expect(
        bool(((ties > 0).sum(dim=-1) == 2).all()),
        "of equal scores no more than top_k stay",
        fed="scores that are all equal, top_k=2",
        expected="2 in each row",
        got=f"{sorted((ties > 0).sum(dim=-1).unique().tolist())} in a row",
        hint="A threshold keeps all that equal it. Keep the places that topk returns instead: "
        "scatter.",
    )


@exercise("pruning.whole_speed", minutes=10, level="easy")
def whole_speed(learner: Any) -> None:
    """The speed of a whole of which a part becomes faster."""
    cases = [
        ("a part that keeps its pace changes nothing", 0.5, 1.0, "All takes the old time."),
        (
            "a part that is left out takes no time",
            0.32,
            math.inf,
            "0.68 of the time is left. How fast is that?",
        ),
        (
            "the rest goes on as before",
            0.5,
            2.0,
            "Half of the time stays, and the other half becomes a quarter: 0.75 in all.",
        ),
        ("all of it becomes faster", 1.0, 3.0, "Then the whole is as much faster as the part."),
        (
            "a small part cannot do much",
            0.1,
            1000.0,
            "Nine tenths of the time stay, so no factor brings more than 1.11.",
        ),
        ("a part that becomes slower slows the whole", 0.2, 0.5, "A fifth becomes two fifths."),
    ]
    for name, share, times, hint in cases:
        expect_close(
            name,
            learner(share, times),
            1.0 / (1.0 - share + share / times),
            fed=f"share={share}, times={times}",
            hint=hint,
        )


@exercise("pruning.really_smaller", minutes=15, level="medium")
def really_smaller(learner: Any) -> None:
    """A test that tells a model with less to compute from one that only has zeros in it."""
    whole = _model()
    cases: dict[str, tuple[nn.Module, bool, str]] = {
        "an untouched copy": (copy.deepcopy(whole), False, "nothing has changed"),
        "a copy with half of its weights zero": (
            _zeroed(whole),
            False,
            "a zero is multiplied like any other number",
        ),
        "a copy that torch.nn.utils.prune has masked": (
            _masked(whole),
            False,
            "it keeps every weight, and has a mask as large beside it",
        ),
        "a copy whose weights are frozen": (
            copy.deepcopy(whole).requires_grad_(False),
            False,
            "frozen weights are computed with all the same",
        ),
        "a copy with a head cut out": (_without_head(whole), True, "its matrices are smaller"),
        "a copy without its last layer": (whole[:-1], True, "a whole matrix is gone"),
        "a copy with a head cut out and a mask elsewhere": (
            _masked(_without_head(whole)),
            True,
            "masks, which are buffers, are not what is counted",
        ),
    }
    wanted = {True: "a real saving is found", False: "no saving is reported where there is none"}
    for name, (pruned, smaller, hint) in cases.items():
        expect_answer(
            f"{wanted[smaller]}: {name}",
            learner(whole, pruned),
            smaller,
            fed=f"a model, and {name}",
            meaning="there is less to compute",
            hint=hint,
        )


def _best(scores: Tensor, mask: Tensor, top_k: int) -> Tensor:
    hidden = scores.masked_fill(~mask, -math.inf)
    best, places = hidden.topk(min(top_k, scores.shape[-1]), dim=-1)
    return torch.zeros_like(scores).scatter(-1, places, best.softmax(dim=-1))


def _model() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(21, 21), MultiHeadAttention(21, 3), nn.Linear(21, 21), nn.Linear(21, 21)
    )


def _zeroed(model: nn.Sequential) -> nn.Sequential:
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.view(-1)[::2] = 0.0
    return changed


def _masked(model: nn.Sequential) -> nn.Sequential:
    changed = copy.deepcopy(model)
    for place in (0, 2):
        prune.random_unstructured(changed[place], "weight", amount=0.5)
    return changed


def _without_head(model: nn.Sequential) -> nn.Sequential:
    changed = copy.deepcopy(model)
    attention = changed[1]
    if isinstance(attention, MultiHeadAttention):
        attention.remove_heads([1])
    return changed
