"""Checks for the exercises of the chapter ``visualization``."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.exercises import exercise, expect, expect_answer, expect_close

__all__: list[str] = []


@exercise("visualization.token_before", minutes=15, level="medium")
def token_before(learner: Any) -> None:
    """The mean weight on the token before, without padding."""
    shift = _pointing([0, 0, 1, 2, 3, 4, 5]).expand(3, 2, -1, -1).clone()
    full = torch.ones(3, 7, dtype=torch.bool)
    fed = "weights (3, 2, 7, 7) of heads that give all to the token before; no padding"
    expect_close(
        "a head that gives all to the token before scores 1",
        learner(shift.clone(), full.clone()),
        torch.ones(2),
        fed=fed,
        hint="Token 0 has no token before it, so a sentence of 7 has 6 such rows. And the result "
        "has one number for each head: the mean runs over samples and rows.",
    )
    lengths = torch.tensor([7, 4, 2])
    real = torch.arange(7) < lengths[:, None]
    padded = shift.clone()
    padded.masked_fill_(~real[:, None, :, None], 1 / 7)  # rows of padding look at everybody
    fed = "the same heads on sentences of 7, 4 and 2 tokens, padded to 7"
    expect_close(
        "rows of padding do not count",
        learner(padded.clone(), real.clone()),
        torch.ones(2),
        fed=fed,
        hint="real[:, 1:] says which rows of the diagonal belong to a token. Leave the others out "
        "of the sum and out of the number that you divide by.",
    )
    weights = torch.randn(3, 2, 7, 7).masked_fill(~real[:, None, None, :], -1e9).softmax(dim=-1)
    rows = [(b, t) for b in range(3) for t in range(1, int(lengths[b]))]
    pairs = torch.stack([weights[b, :, t, t - 1] for b, t in rows])
    after = torch.stack([weights[b, :, t - 1, t] for b, t in rows]).mean(dim=0)
    got = learner(weights.clone(), real.clone())
    fed = "random weights for the same three sentences"
    expect(
        not (isinstance(got, Tensor) and got.shape == after.shape and torch.allclose(got, after)),
        "it is the token before, and not the one after",
        fed=fed,
        expected=pairs.mean(dim=0),
        got=got,
        hint="Row t, column t - 1, lies below the main diagonal: offset=-1.",
    )
    by_sample = [
        pairs[[i for i, (b, _) in enumerate(rows) if b == s]].mean(dim=0) for s in range(3)
    ]
    mean_of_means = torch.stack(by_sample).mean(dim=0)
    same = isinstance(got, Tensor) and got.shape == mean_of_means.shape
    expect(
        not (same and torch.allclose(got, mean_of_means)),
        "every token counts alike, whatever sentence it stands in",
        fed=fed,
        expected=pairs.mean(dim=0),
        got=got,
        hint="A mean for each sample and then a mean of those gives a short sentence as much say "
        "as a long one. Sum over everything, then divide once.",
    )
    expect_close(
        "the mean over all tokens that have one before them",
        got,
        pairs.mean(dim=0),
        fed=fed,
        hint="Ten rows count here: 6 of the first sentence, 3 of the second, 1 of the third. Print "
        "how many yours has.",
    )


@exercise("visualization.induction", minutes=10, level="easy")
def induction(learner: Any) -> None:
    """The mean weight on the token after the last occurrence."""
    places = {
        "the token after its first time": [0, 0, 0, 0, 1, 2, 3, 4],
        "the same token": [0, 0, 0, 0, 0, 1, 2, 3],
        "the token before its first time": [0, 0, 0, 0, 0, 0, 1, 2],
    }
    heads = torch.cat([_pointing(place) for place in places.values()], dim=1).expand(2, -1, -1, -1)
    fed = "weights (2, 3, 8, 8) of three heads, and p=4: tokens 4 to 7 are tokens 0 to 3 again"
    got = learner(heads.clone(), 4)
    hint = "Token t stands at t - p too; what came after it stands at t - p + 1."
    expect(
        isinstance(got, Tensor) and got.shape == (3,),
        "there is one number for each head",
        fed=fed,
        expected="shape (3,)",
        got=got if not isinstance(got, Tensor) else f"shape {tuple(got.shape)}",
        hint="The mean runs over samples and rows.",
    )
    for place, (role, score) in enumerate(zip(places, (1.0, 0.0, 0.0), strict=True)):
        if role == "the token after its first time":
            continue
        expect(
            abs(float(got[place]) - score) < 0.3,
            f"a head that looks at {role} does not score",
            fed=fed,
            expected=torch.tensor([1.0, 0.0, 0.0]),
            got=got,
            hint=hint,
        )
    weights = torch.randn(2, 5, 11, 11).softmax(dim=-1)
    want = torch.stack([weights[:, :, t, t - 3] for t in range(4, 11)]).mean(dim=(0, 1))
    got = learner(weights.clone(), 4)
    first = torch.stack([weights[:, :, t, t - 3] for t in range(3, 11)]).mean(dim=(0, 1))
    same = isinstance(got, Tensor) and got.shape == first.shape and torch.allclose(got, first)
    expect(
        not same,
        "only tokens that have been there before ask",
        fed="random weights (2, 5, 11, 11), p=4",
        expected=want,
        got=got,
        hint="The diagonal through t - p + 1 begins in row p - 1, whose token is still new. The "
        "rows that count are p and later.",
    )
    expect_close(
        "it is the mean over the rows from p on",
        got,
        want,
        fed="random weights (2, 5, 11, 11), p=4",
        hint=hint,
    )


@exercise("visualization.on_its_side", minutes=10, level="easy")
def on_its_side(learner: Any) -> None:
    """A test that tells whether a map has been transposed."""
    weights = torch.randn(2, 3, 7, 7).softmax(dim=-1)
    wide = torch.randn(2, 3, 5, 11).softmax(dim=-1)
    causal = torch.randn(6, 6).masked_fill(~torch.ones(6, 6).tril().bool(), -1e9).softmax(dim=-1)
    blind = weights.clone()
    blind[:, :, 2] = 0
    rounded = torch.randn(4, 40, 40).softmax(dim=-1)
    rounded = (rounded * 1000).round() / 1000
    cases = {
        "square weights as they should be": (weights, False, "its rows sum to one"),
        "square weights, transposed": (weights.mT, True, "its columns sum to one, its rows do not"),
        "weights of 5 queries and 11 keys": (wide, False, "a cross-attention need not be square"),
        "these, transposed": (wide.mT, True, "its columns sum to one"),
        "one causal map": (causal, False, "give the test a map with two axes only"),
        "weights with a row that may see nothing": (
            blind,
            False,
            "a row of zeros is allowed: its sum is 0 and not 1",
        ),
        "that one, transposed": (blind.mT, True, "a column of zeros is then the blind row"),
        "weights of 40 tokens, rounded to three digits": (
            rounded,
            False,
            "40 roundings add up: allow sums between 0.97 and 1.03",
        ),
        "each token looks at itself": (
            torch.eye(5),
            False,
            "here rows and columns sum to one, and nothing is wrong",
        ),
    }
    for name, (given, sideways, hint) in cases.items():
        expect_answer(
            f"{'a map on its side is found' if sideways else 'a good map passes'}: {name}",
            learner(given.clone()),
            sideways,
            fed=f"{name}, shape {tuple(given.shape)}",
            meaning="the columns share out one whole, and the rows do not",
            hint=hint,
        )


@exercise("visualization.patches", minutes=15, level="medium")
def patches(learner: Any) -> None:
    """Where [CLS] looks, on the pixels of the patches."""
    weights = torch.randn(2, 3, 26, 26).softmax(dim=-1)
    weights[..., 0, 0] = 0.9  # [CLS] looks at itself a lot
    want = weights[:, :, 0, 1:].unflatten(-1, (5, 5))
    want = want.repeat_interleave(4, dim=-1).repeat_interleave(4, dim=-2)
    fed = "weights (2, 3, 26, 26): [CLS] and 5 by 5 patches, each 4 pixels wide"
    got = learner(weights.clone(), 4)
    expect(
        isinstance(got, Tensor) and got.shape == (2, 3, 20, 20),
        "there is a picture of 20 by 20 pixels for each sample and head",
        fed=fed,
        expected="shape (2, 3, 20, 20)",
        got=got if not isinstance(got, Tensor) else f"shape {tuple(got.shape)}",
        hint="26 tokens are 1 and 5 · 5, and 5 patches of 4 pixels are 20. Heads stay apart.",
    )
    expect(
        not torch.allclose(got, want.mT),
        "patches are read line by line",
        fed=fed,
        expected="patch 1 to the right of patch 0",
        got="patch 1 below patch 0",
        hint="The patches of the first line come first, so the last axis is the column.",
    )
    received = weights.mean(dim=-2)[..., 1:].unflatten(-1, (5, 5))
    received = received.repeat_interleave(4, dim=-1).repeat_interleave(4, dim=-2)
    expect(
        not torch.allclose(got, received),
        "it is [CLS] that asks",
        fed=fed,
        expected="row 0 of the weights",
        got="the mean of all rows",
        hint="The vector of [CLS] is what the model answers from. Which row is its?",
    )
    inside = got.unflatten(-1, (5, 4)).unflatten(-3, (5, 4)).movedim(-3, -2)
    flat = (inside.amax(dim=(-2, -1)) - inside.amin(dim=(-2, -1))).abs().max() < 1e-6
    expect(
        flat,
        "all pixels of a patch have the same value",
        fed=fed,
        expected="25 squares of one colour",
        got="shades inside a patch",
        hint="Cut out the row of [CLS] before anything is enlarged, give it two dimensions, and do "
        "not interpolate: repeat_interleave repeats.",
    )
    expect_close(
        "every pixel has the share that [CLS] gives to its patch",
        got,
        want,
        fed=fed,
        hint="Key 0 is [CLS] itself, the patches begin at key 1. Shares stay as they are: their "
        "sum over the patches says how much [CLS] kept for itself.",
    )


@exercise("visualization.arrives", minutes=15, level="hard")
def arrives(learner: Any) -> None:
    """The length of what each key adds to the output of each query, through each head."""
    weights = torch.randn(2, 3, 5, 7).softmax(dim=-1)
    values, mixing = torch.randn(2, 3, 7, 4), torch.randn(11, 12) / 3
    fed = "weights (2, 3, 5, 7), values (2, 3, 7, 4), o_weight (11, 12)"
    parts = [values[:, h] @ mixing[:, 4 * h : 4 * h + 4].mT for h in range(3)]
    want = weights * torch.stack(parts, dim=1).norm(dim=-1)[:, :, None, :]
    got = learner(weights.clone(), values.clone(), mixing.clone())
    same = isinstance(got, Tensor) and got.shape == want.shape
    raw = weights * values.norm(dim=-1)[:, :, None, :]
    expect(
        not (same and torch.allclose(got, raw, atol=1e-5)),
        "the value has gone through the output matrix",
        fed=fed,
        expected=f"{float(want[0, 0, 0, 0]):.4f} at index (0, 0, 0, 0)",
        got=f"{float(raw[0, 0, 0, 0]):.4f}, the length of the value alone",
        hint="A head can have long values in directions that o_weight drops. Measure the vector "
        "that is added to the stream.",
    )
    dealt = mixing.mT.unflatten(0, (-1, 3)).transpose(0, 1)
    wrong = weights * (values @ dealt).norm(dim=-1)[:, :, None, :]
    expect(
        not (same and torch.allclose(got, wrong, atol=1e-5)),
        "head h meets columns h·d to (h + 1)·d - 1 of o_weight",
        fed=fed,
        expected="columns 0 to 3 for head 0",
        got="columns 0, 3, 6, 9 for head 0",
        hint="In unflatten(0, (a, b)) the first number counts blocks, the second what is in one.",
    )
    square = torch.randn(12, 12) / 3
    parts = [values[:, h] @ square[:, 4 * h : 4 * h + 4].mT for h in range(3)]
    on_square = weights * torch.stack(parts, dim=1).norm(dim=-1)[:, :, None, :]
    expect_close(
        "nn.Linear multiplies by the transpose of its weight",
        learner(weights.clone(), values.clone(), square.clone()),
        on_square,
        fed="the same with a square o_weight (12, 12)",
        hint="Feature j of the joined heads meets column j of o_weight: transpose first, then cut.",
    )
    expect_close(
        "weight times the length of what the head hands over",
        got,
        want,
        fed=fed,
        hint="One length for each head and key, (B, H, S); then an axis for the queries.",
    )
    one = learner(F.one_hot(torch.zeros(2, 3, 5).long(), 7).float(), values, mixing)
    expect(
        float(one[..., 1:].abs().max()) == 0,
        "a key without weight adds nothing",
        fed="weights that give all to key 0",
        expected="0 for all other keys",
        got=f"up to {float(one[..., 1:].abs().max()):.4f}",
        hint="Multiply by the weight of query and key, after the norm.",
    )


def _pointing(places: list[int]) -> Tensor:
    """Weights (1, 1, T, T) of a head whose row t gives all to places[t]."""
    return F.one_hot(torch.tensor(places), len(places)).float()[None, None]
