"""Checks for the exercises of the chapter ``evolution``."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.exercises import Failed, exercise, expect, expect_close
from glassformer.functional import attend
from glassformer.nn import load_balancing_loss

__all__: list[str] = []


@exercise("evolution.memory", minutes=10, level="easy")
def memory(learner: Any) -> None:
    """Bytes of the weights of a model: each trained number once."""
    plain = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))  # 66 numbers
    tied = nn.ModuleDict({"table": nn.Embedding(11, 4), "head": nn.Linear(4, 11, bias=False)})
    tied["head"].weight = tied["table"].weight
    buffered = nn.BatchNorm1d(8)  # 16 trained numbers, and statistics that are not trained
    cases = [
        (
            "a number of 32 bits takes 4 bytes",
            (plain, 32),
            264,
            "two linear layers with 66 numbers in all, and 32 bits",
            "Eight bits are a byte. The answer is in bytes, not in thousands of them.",
        ),
        (
            "a number of 16 bits takes 2 bytes",
            (plain, 16),
            132,
            "two linear layers with 66 numbers in all, and 16 bits",
            "The parameters may lie there in another width than the one that is asked about.",
        ),
        (
            "a matrix that serves two layers is counted once",
            (tied, 16),
            88,
            "a table of 11 rows of 4 and a head that uses the same matrix, and 16 bits",
            "state_dict() lists a shared matrix under both of its names, parameters() once.",
        ),
        (
            "buffers are not weights",
            (buffered, 32),
            64,
            "a batch norm of 8 features, and 32 bits",
            "Running statistics stand in state_dict() too. Count what training changes.",
        ),
        (
            "bits that do not fill a byte take one",
            (nn.Linear(3, 1, bias=False), 4),
            2,
            "a layer with 3 numbers, and 4 bits",
            "3 numbers of 4 bits are 12 bits. How many whole bytes hold them?",
        ),
    ]
    for name, (model, bits), want, fed, hint in cases:
        got = learner(model, bits)
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Failed("the answer is a number", fed=fed, expected=want, got=got, hint=hint)
        expect(got == want, name, fed=fed, expected=want, got=got, hint=hint)


@exercise("evolution.tiles", minutes=15, level="medium")
def tiles(learner: Any) -> None:
    """Keys that are fetched if tiles in the future are skipped."""
    cases = [
        (
            "one tile fetches every key once",
            (6, 6, 6),
            6,
            "There is one tile of queries, and its last query sees all 6 keys.",
        ),
        (
            "a tile that lies wholly in the future is skipped",
            (8, 4, 4),
            12,
            "Queries 0 to 3 need the first tile of keys alone, queries 4 to 7 need both: 4 + 8.",
        ),
        (
            "a tile on the diagonal is fetched whole",
            (12, 4, 6),
            30,
            "Queries 0 to 3 fetch keys 0 to 5, although keys 4 and 5 stay hidden from them. "
            "Queries 4 to 7 reach key 7, which lies in the second tile.",
        ),
        (
            "the last tile holds what is left",
            (10, 4, 3),
            25,
            "The tiles of queries end before 4, 8 and 10. Ten keys in tiles of 3 are 3, 3, 3 and "
            "1: 6 + 9 + 10.",
        ),
        (
            "a tile may be longer than the text",
            (5, 64, 64),
            5,
            "Nobody can fetch more keys than there are.",
        ),
    ]
    for name, (n, rows, columns), want, hint in cases:
        got = learner(n, rows, columns)
        fed = f"{n} tokens, tiles of {rows} queries and {columns} keys"
        expect(got == want, name, fed=fed, expected=want, got=got, hint=hint)


@exercise("evolution.merge", minutes=20, level="hard")
def merge(learner: Any) -> None:
    """Attention over two halves of the keys, joined."""
    q = torch.randn(4, 6, dtype=torch.float64)
    k, v = torch.randn(10, 6, dtype=torch.float64), torch.randn(10, 3, dtype=torch.float64)

    def half(keys: slice, louder: float = 1.0) -> tuple[Tensor, Tensor]:
        scores = louder * q @ k[keys].mT / math.sqrt(6)
        return scores.softmax(dim=-1) @ v[keys], scores.logsumexp(dim=-1)

    def whole(keys: slice, louder: float = 1.0) -> Tensor:
        return attend((louder * q)[None, None], k[None, None, keys], v[None, None, keys])[0, 0]

    def pair(fed: str, *parts: Tensor) -> tuple[Tensor, Tensor]:
        got = learner(*(part.clone() for part in parts))
        if not (isinstance(got, tuple) and len(got) == 2):
            raise Failed(
                "an average and a logsumexp come back",
                fed=fed,
                expected="a tuple of two tensors",
                got=got,
                hint="The result may be merged again, so it needs its logsumexp too.",
            )
        out, lse = got
        return out, lse

    shapes = "averages of shape (4, 3) and logsumexps of shape (4,)"
    fed = f"two halves of 5 keys each, {shapes}"
    left, right = half(slice(0, 5)), half(slice(5, 10))
    out, lse = pair(fed, *left, *right)
    expect_close(
        "two halves give what all keys give",
        out,
        whole(slice(0, 10)),
        fed=fed,
        hint="A half whose sum of exponentials is larger has more to say. The logsumexp is the "
        "log of that sum: the weight of the left half is exp(lse_a - lse of both).",
    )
    expect_close(
        "the logsumexp is that of all keys",
        lse,
        torch.logaddexp(left[1], right[1]),
        fed=fed,
        hint="The log of the sum of both sums: torch.logaddexp.",
    )
    parts = [half(slice(0, 1)), half(slice(1, 3)), half(slice(3, 10))]
    fed = f"1, 2 and 7 keys, merged one after the other, {shapes}"
    first = pair(fed, *parts[0], *parts[1])
    expect_close(
        "a third part can be merged into the first two",
        pair(fed, *first, *parts[2])[0],
        whole(slice(0, 10)),
        fed=fed,
        hint="Parts of unequal size: only their logsumexps say how much each has to say.",
    )
    fed = f"scores around 1,000, {shapes}"
    shout = 3000.0
    loud = [half(slice(0, 5), shout), half(slice(5, 10), shout)]
    expect_close(
        "large scores do not overflow",
        pair(fed, *loud[0], *loud[1])[0],
        whole(slice(0, 10), shout),
        fed=fed,
        hint="exp(1000) is infinite. Subtract the logsumexp of both before you take exp.",
    )
    blind = (torch.zeros(4, 3, dtype=torch.float64), torch.full((4,), -torch.inf).double())
    fed = f"a right half in which nobody may see anything: average 0, logsumexp -inf, {shapes}"
    expect_close(
        "a half that sees nothing changes nothing",
        pair(fed, *left, *blind)[0],
        left[0],
        fed=fed,
        hint="exp(-inf) is 0, as it should be. Do not multiply a logsumexp by a number.",
    )
    fed = f"a left half in which nobody may see anything: average 0, logsumexp -inf, {shapes}"
    out, lse = pair(fed, *blind, *right)
    expect_close(
        "either half may see nothing",
        out,
        right[0],
        fed=fed,
        hint="What was right for the right half must be right for the left one.",
    )
    expect_close(
        "the logsumexp is that of the half that sees",
        lse,
        right[1],
        fed=fed,
        hint="-inf - (-inf) is NaN. Subtract a finite number, the larger logsumexp, or let "
        "torch.logaddexp do it.",
    )


@exercise("evolution.balance", minutes=15, level="medium")
def balance(learner: Any) -> None:
    """A loss that is lowest when all experts are visited alike, and that can be learnt from."""
    equal = torch.full((8, 4), 0.25)
    taken = torch.arange(8)[:, None] % 4
    fed = "8 tokens, 4 experts with probability 1/4, each of them chosen by two tokens"
    expect_close(
        "equal shares cost 1",
        learner(equal, taken),
        1.0,
        fed=fed,
        hint="The shares are 1/4, the mean probabilities too, and 4 products of them sum to 1/4. "
        "Multiply by the number of experts.",
    )
    crowd = F.one_hot(torch.zeros(8).long(), 4).float()
    fed = "8 tokens, 4 experts, all tokens sure of expert 0, which all of them chose"
    expect_close(
        "one expert for all costs as much as there are experts",
        learner(crowd, torch.zeros(8, 1).long()),
        4.0,
        fed=fed,
        hint="Share 1 and mean probability 1 for one expert, 0 for the others.",
    )
    with torch.enable_grad():  # whatever the chapter switched off
        _balance_learns(learner)


def _balance_learns(learner: Any) -> None:
    scores = torch.randn(10, 5, requires_grad=True)
    probs = scores.softmax(dim=-1)
    chosen = probs.detach().topk(2, dim=-1).indices
    fed = "10 tokens, 5 experts, each token visits 2"
    got = learner(probs, chosen)
    want = load_balancing_loss(probs, chosen)
    expect_close(
        "shares are counted from the visits",
        got.detach() if isinstance(got, Tensor) else got,
        want.detach(),
        fed=fed,
        hint="The share of an expert is the part of all visits that went to it, so the shares sum "
        "to 1 even if a token visits two. The other factor is the mean probability.",
    )
    expect(
        got.requires_grad,
        "the probabilities carry a gradient",
        fed=fed,
        expected="a loss with requires_grad=True",
        got="a loss without a gradient",
        hint="Counting has no slope. Which of the two factors has one?",
    )
    (mine,) = torch.autograd.grad(got, scores, retain_graph=True)
    (theirs,) = torch.autograd.grad(want, scores)
    expect_close(
        "the gradient flows through the probabilities alone",
        mine,
        theirs,
        fed=fed,
        hint="The shares are constants; the mean probability is what can move.",
    )


@exercise("evolution.halves", minutes=15, level="medium")
def halves(learner: Any) -> None:
    """Rows of a projection from neighbouring rotary pairs to halves, head by head."""
    fed = "a projection to 1 head of width 6, whose row i holds the number i"
    rows = torch.arange(6.0)[:, None].repeat(1, 2)
    got = learner(rows.clone(), 1)
    expect_close(
        "the first of each pair comes first",
        got,
        torch.tensor([0.0, 2, 4, 1, 3, 5])[:, None].repeat(1, 2),
        fed=fed,
        hint="Pairs are (0, 1), (2, 3), (4, 5). In halves, partner of row i is row i + 3. So "
        "the rows come in the order 0, 2, 4, 1, 3, 5. (0, 3, 1, 4, 2, 5 is the way back.)",
    )
    fed = "a projection to 2 heads of width 4, whose row i holds the number i"
    got = learner(torch.arange(8.0)[:, None].clone(), 2)
    expect_close(
        "every head keeps its own rows",
        got,
        torch.tensor([0.0, 2, 1, 3, 4, 6, 5, 7])[:, None],
        fed=fed,
        hint="Cut the rows into heads first, then into pairs.",
    )
    fed = "the bias of a projection to 2 heads of width 4, shape (8,)"
    expect_close(
        "a bias is moved like the rows",
        learner(torch.arange(8.0), 2),
        torch.tensor([0.0, 2, 1, 3, 4, 6, 5, 7]),
        fed=fed,
        hint="Some models have a bias on queries and keys. flatten(0, 2) works for any axes behind "
        "the first.",
    )
