"""Checks for the exercises of the chapter ``adaptation``."""

from typing import Any

import torch
from torch import Tensor, nn

from glassformer.exercises import exercise, expect, expect_answer, expect_close

__all__: list[str] = []


@exercise("adaptation.blocks", minutes=10, level="easy")
def blocks(learner: Any) -> None:
    """Round to 4 bits in blocks of neighbours, with a short last block."""
    weight = torch.randn(3, 7)
    for block in (7, 2):
        steps = [part.abs().amax(1, keepdim=True) / 7 for part in weight.split(block, dim=1)]
        loud = weight.clone()
        loud[1, 0] = 500.0
        fed = f"weight of shape (3, 7), block={block}"
        first, second = learner(weight.clone(), block), learner(loud.clone(), block)
        expect_close(
            "a loud weight disturbs no other row",
            second[[0, 2]],
            first[[0, 2]],
            fed=f"{fed}; then the same with 500 at [1, 0]",
            hint="One step for the whole matrix lets one weight decide for all. Take the largest "
            "along the row, within a block.",
        )
        if block < 7:
            expect_close(
                "a loud weight disturbs no other block of its row",
                second[1, block:],
                first[1, block:],
                fed=f"{fed}; then the same with 500 at [1, 0]",
                hint="Each block of neighbours has its own step: weight.split(block, dim=1) cuts "
                "a row into blocks, the last of which may be short.",
            )
        parts = zip(weight.split(block, dim=1), steps, strict=True)
        want = torch.cat([(part / step).round() * step for part, step in parts], dim=1)
        expect_close(
            "each weight comes back as the nearest whole number of steps",
            first,
            want,
            fed=fed,
            hint="The step is max |w| / 7. Round w / step to a whole number (round, not floor or "
            "int), then multiply by the step again.",
        )
    silent = weight.clone()
    silent[2] = 0.0
    expect_close(
        "a block of zeros comes back as zeros",
        learner(silent, 2)[2],
        torch.zeros(7),
        fed="a row of zeros, block=2",
        hint="The step of such a block is 0, and 0 / 0 is NaN. Any positive step serves it.",
    )


@exercise("adaptation.unpack", minutes=10, level="easy")
def unpack(learner: Any) -> None:
    """Two codes out of each byte, the first from its lower half."""
    for n in (7, 8):
        codes = torch.randint(0, 16, (3, n), dtype=torch.uint8)
        codes[0] = torch.arange(1, n + 1)
        padded = torch.cat((codes, torch.zeros(3, n % 2, dtype=torch.uint8)), dim=1)
        packed = padded[:, ::2] | (padded[:, 1::2] << 4)
        row = ", ".join(f"0x{byte:02x}" for byte in packed[0].tolist())
        fed = f"bytes of shape (3, 4) that hold {n} codes a row; row 0 is {row}"
        got = learner(packed.clone(), n)
        expect(
            isinstance(got, Tensor) and got.shape == (3, n),
            "there are as many codes as were packed",
            fed=fed,
            expected=f"shape (3, {n})",
            got=f"shape {tuple(got.shape)}" if isinstance(got, Tensor) else type(got).__name__,
            hint="Two codes a byte give 8; where n is 7, the last half only fills the byte.",
        )
        expect(
            bool((got <= 15).all()),
            "a code has four bits",
            fed=fed,
            expected="numbers from 0 to 15",
            got=f"a number up to {int(got.max())}",
            hint="byte & 15 keeps the lower half; byte >> 4 brings the upper half down.",
        )
        numbers = got.long().tolist()
        expect(
            numbers == codes.long().tolist(),
            "codes come in their order: lower half, upper half, next byte",
            fed=fed,
            expected=f"{codes[0].tolist()} in row 0",
            got=f"{numbers[0]}",
            hint="The two halves of a byte are neighbours. stack on a new last axis, then "
            "flatten(1); cat puts all lower halves first. And which half holds the first code?",
        )


@exercise("adaptation.bypass", minutes=15, level="medium")
def bypass(learner: Any) -> None:
    """A frozen layer, a bypass beside it, and a merge."""
    linear = nn.Linear(7, 5)
    kept = linear.weight.detach().clone()
    x = torch.randn(3, 7)
    fed = "nn.Linear(7, 5), rank=2, alpha=6.0, and x of shape (3, 7)"
    layer = learner(linear, rank=2, alpha=6.0)
    expect_close(
        "the adapted layer starts as the layer itself",
        layer(x).detach(),
        linear(x).detach(),
        fed=fed,
        hint="The bypass must give 0 at the start, so one of its two factors is zero: B.",
    )
    layer(x).square().sum().backward()
    grads = {name: p.grad for name, p in layer.named_parameters() if p.requires_grad}
    expect(
        linear.weight.grad is None and (linear.bias is None or linear.bias.grad is None),
        "the frozen layer gets no gradient",
        fed=f"{fed}; then a backward pass",
        expected="requires_grad is False for the weight and the bias of linear",
        got="a gradient on linear",
        hint="linear.requires_grad_(False) in __init__.",
    )
    expect(
        any(g is not None and bool(g.any()) for g in grads.values()),
        "the first step can learn",
        fed=f"{fed}; then a backward pass",
        expected="a gradient that is not zero on B",
        got="zero everywhere, or no parameter that learns",
        hint="With A and B both zero, the gradient of each is a product with the other: zero. "
        "Start A random, and keep both as nn.Parameter.",
    )
    with torch.no_grad():
        for p in layer.parameters():
            if p.requires_grad:
                p.copy_(torch.randn_like(p))
    small = [p.detach() for p in layer.parameters() if p.requires_grad]
    shapes = {tuple(p.shape): p for p in small}
    expect(
        set(shapes) == {(2, 7), (5, 2)},
        "A is (rank, n_in) and B is (n_out, rank)",
        fed=fed,
        expected="two parameters that learn, (2, 7) and (5, 2)",
        got=f"{sorted(shapes)}",
        hint="The bypass goes from 7 numbers to 2 and from 2 to 5.",
    )
    want = x @ kept.T + linear.bias.detach() + 3.0 * (x @ shapes[2, 7].T @ shapes[5, 2].T)
    expect_close(
        "the bypass counts alpha / rank",
        layer(x).detach(),
        want,
        fed=f"{fed}; A and B random",
        hint="y = W x + b + (alpha / rank) B A x, here 6 / 2 = 3 times B A x.",
    )
    for time in ("once", "a second time"):
        merged = layer.merged()
        expect(
            isinstance(merged, nn.Linear),
            "merged() gives a plain layer",
            fed=fed,
            expected="nn.Linear",
            got=type(merged).__name__,
            hint="Make a new nn.Linear(7, 5) and copy W + (alpha / rank) B A and the bias into it.",
        )
        expect_close(
            f"merged() called {time} answers as the adapted layer does",
            merged(x).detach(),
            want,
            fed=f"{fed}; A and B random",
            hint="The merged weight is W + (alpha / rank) B A, and the bias comes along. Leave W "
            "itself alone: += on it adds the bypass again at the next call.",
        )


@exercise("adaptation.one_row", minutes=15, level="medium")
def one_row(learner: Any) -> None:
    """A table in which one row learns and no optimizer can move another."""
    table = torch.randn(7, 5)
    ids = torch.tensor([[6, 2, 6], [0, 6, 5]])
    for row in (6, 3):
        fed = f"a table of shape (7, 5), row={row}"
        module = learner(table.clone(), row)
        expect_close(
            "it looks up what the table holds",
            module(ids).detach(),
            table[ids],
            fed=f"{fed}, ids {ids.tolist()}",
            hint="The learning row takes its place among the others: the row may stand in the "
            "middle.",
        )
        asked = torch.tensor([[row, row, 1]])
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.1)
        loss = module(asked).sum()
        expect(
            loss.requires_grad,
            "the row gets a gradient",
            fed=f"{fed}, ids {asked.tolist()}",
            expected="a loss with a gradient",
            got="none: nothing in the module learns, or the row is detached on its way",
            hint="nn.Parameter for the row; build the table anew in forward.",
        )
        loss.backward()
        optimizer.step()
        every = module(torch.arange(7)[None])[0].detach()
        others = torch.arange(7) != row
        expect(
            torch.equal(every[others], table[others]),
            "no step moves another row, with weight decay either",
            fed=f"{fed}; one step of AdamW with weight_decay=0.1",
            expected="all other rows bit for bit",
            got=f"rows {(every != table).any(dim=1).nonzero()[:, 0].tolist()} moved",
            hint="A gradient of zero does not stop weight decay. What is no Parameter cannot be "
            "moved: keep the other rows in a buffer.",
        )
        expect(
            not torch.equal(every[row], table[row]),
            "the row moves",
            fed=f"{fed}; one step of AdamW",
            expected=f"another row {row}",
            got="the same as before",
            hint="forward must read the parameter at each call, not a copy from __init__.",
        )


class _Toy:
    """A tokenizer that takes the longest piece it knows."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = list(pieces)

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            piece = max((p for p in self.pieces if text.startswith(p)), key=len)
            ids.append(self.pieces.index(piece))
            text = text[len(piece) :]
        return ids


@exercise("adaptation.safe_growth", minutes=15, level="medium")
def safe_growth(learner: Any) -> None:
    """A test that tells whether a grown tokenizer leaves old texts as they were."""
    letters = tuple("abcdefghijklmnopqrstuvwxyz ")
    old = _Toy(*letters, "the", "mark", "et", "is")
    kept = old.pieces
    texts = ["the market is far", "a dark den"]
    cases = {
        "a piece behind all others": (_Toy(*kept, "<tool>"), True, "nothing has changed"),
        "two pieces behind all others": (_Toy(*kept, "<a>", "<b>"), True, "growing is allowed"),
        "a piece in front": (_Toy("<tool>", *kept), False, "every id has moved by one"),
        "a piece in the middle": (
            _Toy(*kept[:29], "<tool>", *kept[29:]),
            False,
            "ids behind the new piece have moved: look at all of them",
        ),
        "two old pieces exchanged, which no text here uses": (
            _Toy(*("z" if p == "q" else "q" if p == "z" else p for p in kept), "<tool>"),
            False,
            "the texts are samples; the list of pieces is the whole truth about ids",
        ),
        "a piece that occurs inside words, behind all others": (
            _Toy(*kept, "ark"),
            False,
            "every id is where it was, and yet 'dark' is now cut as d + ark: encode the texts too",
        ),
        "an old piece left out": (_Toy(*kept[:-1], "<tool>"), False, "'is' has lost its id"),
    }
    wanted = {True: "a harmless change is accepted", False: "a harmful change is found"}
    for name, (new, safe, hint) in cases.items():
        expect_answer(
            f"{wanted[safe]}: {name}",
            learner(old, new, texts),
            safe,
            fed=f"old and new, each with .pieces (a list) and .encode(text); {name}",
            meaning="old texts get the ids that they had, and old ids mean what they meant",
            hint=hint,
        )
