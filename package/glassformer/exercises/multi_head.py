"""Checks for the exercises of the chapter ``multi_head``."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.exercises import exercise, expect, expect_answer, expect_close
from glassformer.functional import attend, causal_mask

__all__: list[str] = []


@exercise("multi_head.cut", minutes=10, level="easy")
def cut(learner: Any) -> None:
    """Split the last axis into heads, each with the features of its own token."""
    x = torch.arange(2 * 5 * 21.0).reshape(2, 5, 21)
    fed = "x of shape (2, 5, 21) that holds 0, 1, 2 ..., and n_heads=3"
    got = learner(x.clone(), 3)
    _shaped(
        got,
        (2, 3, 5, 7),
        fed,
        "Batch, heads, tokens, width: heads come before tokens.",
    )
    inside = torch.stack([got[:, h, t] for t in range(5) for h in range(3)], dim=1)
    tokens = (inside // 21).long() % 5
    strange = (tokens != torch.arange(5).repeat_interleave(3)[None, :, None]).any(dim=-1)
    b, at = strange.nonzero()[0].tolist() if strange.any() else (0, 0)
    expect(
        not strange.any(),
        "row t of a head holds features of token t alone",
        fed=fed,
        expected="got[:, h, t] made of features of x[:, t]",
        got=f"got[{b}, {at % 3}, {at // 3}] holds features of tokens {tokens[b, at].tolist()}",
        hint="A view cuts what lies one behind the other in memory: all features of token 0, then "
        "all of token 1. Cut the last axis first, then swap two axes.",
    )
    expect_close(
        "head h holds features h·d to (h+1)·d - 1, in their order",
        got,
        torch.stack([x[..., h * 7 : h * 7 + 7] for h in range(3)], dim=1),
        fed=fed,
        hint="In unflatten(-1, (a, b)) or view(..., a, b) the first of the two counts blocks, the "
        "second what is inside a block. Which one is the head?",
    )


@exercise("multi_head.leak_test", minutes=15, level="medium")
def leak_test(learner: Any) -> None:
    """A test that tells whether a causal layer lets a later token speak to an earlier one."""
    layers = {
        "a causal layer": (_layer(_glue), False, "it must find no leak where there is none"),
        "a layer without a mask": (_layer(_glue, causal=False), True, "everybody sees everybody"),
        "a layer that merges its heads without moving them back": (
            _layer(lambda out: out.reshape(out.shape[0], out.shape[2], -1)),
            True,
            "the classic bug: token 0 of the output is made of head 0 of several tokens",
        ),
        "a layer in which only token 4 hears token 5": (
            _whisper(4, 5),
            True,
            "disturb each token, and look at all outputs before it",
        ),
        "a layer in which only token 2 hears token 3": (
            _whisper(2, 3),
            True,
            "disturb each token, not the last alone, and look at all outputs before it",
        ),
        "a layer in which only token 1 hears token 5": (
            _whisper(1, 5),
            True,
            "a leak may skip its neighbours: look at all outputs before the disturbed token",
        ),
        "a causal layer whose numbers wobble in the seventh digit": (
            _wobble(_layer(_glue)),
            False,
            "two runs on a GPU may differ by rounding: compare with a tolerance of 1e-5 or so; the "
            "absolute tolerance that torch.allclose has by default is 1e-8",
        ),
    }
    wanted = {True: "a leak is found", False: "no leak is reported where there is none"}
    for name, (layer, leaks, hint) in layers.items():
        x = torch.randn(2, 7, 15)
        got = learner(layer, x)
        fed = f"{name}, and x of shape (2, 7, 15)"
        expect_answer(
            f"{wanted[leaks]}: {name}",
            got,
            leaks,
            fed=fed,
            meaning="some output depends on a later token",
            hint=hint,
        )


@exercise("multi_head.in_one", minutes=15, level="medium")
def in_one(learner: Any) -> None:
    """All heads at once: as many matrix products for eight heads as for two."""
    counts = {}
    for heads in (3, 8):
        x, w_q, w_k, w_v = (torch.randn(2, 5, 24), *torch.randn(3, heads, 24, 7))
        w_o = torch.randn(heads * 7, 24) / 5
        want = torch.cat(
            [attend(*((x @ w[h])[:, None] for w in (w_q, w_k, w_v)))[:, 0] for h in range(heads)],
            dim=-1,
        )
        fed = f"{heads} heads of width 7, x of shape (2, 5, 24), w_q, w_k, w_v ({heads}, 24, 7)"
        with _Products() as products:
            got = learner(x.clone(), w_q.clone(), w_k.clone(), w_v.clone(), w_o.clone())
        counts[heads] = products.count
        expect_close(
            "the output is that of the heads one by one",
            got,
            want @ w_o,
            fed=fed,
            hint="Compare shapes first: q, k, v are (2, heads, 5, 7). The scale is the root of the "
            "width of one head. And where do the heads go before w_o?",
            atol=1e-4,
            rtol=1e-4,
        )
    expect(
        counts[3] == counts[8],
        "eight heads take as many matrix products as three",
        fed="the same with 3 heads and with 8",
        expected="the same number of calls",
        got=f"{counts[3]} and {counts[8]} calls",
        hint="x[:, None] is (2, 1, 5, 24) and w_q is (heads, 24, 7): a matrix product broadcasts.",
    )


@exercise("multi_head.groups", minutes=10, level="medium")
def groups(learner: Any) -> None:
    """Neighbouring query heads share one key head."""
    q, k, v = torch.randn(2, 6, 5, 7), torch.randn(2, 2, 4, 7), torch.randn(2, 2, 4, 7)
    marked = torch.zeros_like(v)
    marked[:, 1] = 1.0
    fed = "6 query heads, 2 key/value heads; the values of key head 0 are 0, those of head 1 are 1"
    got = learner(q.clone(), k.clone(), marked)
    _shaped(got, (2, 6, 5, 7), fed, "There is an output for every query head.")
    expect_close(
        "query heads 0, 1, 2 listen with key head 0, and 3, 4, 5 with key head 1",
        got,
        torch.tensor([0.0, 0, 0, 1, 1, 1])[:, None, None].expand(2, 6, 5, 7),
        fed=fed,
        hint="repeat gives 0, 1, 0, 1, 0, 1; repeat_interleave gives 0, 0, 0, 1, 1, 1.",
    )
    expect_close(
        "each head attends as usual",
        learner(q.clone(), k.clone(), v.clone()),
        attend(q, k, v, eager=True),
        fed="6 query heads, 2 key/value heads, random values",
        hint="Keys must be shared in the same way as values, and the scale is the root of the "
        "width of a head.",
    )
    expect_close(
        "one key head serves all",
        learner(q.clone(), k[:, :1].clone(), v[:, :1].clone()),
        attend(q, k[:, :1], v[:, :1], eager=True),
        fed="6 query heads, 1 key/value head",
        hint="The size of a group is q.shape[1] // k.shape[1], and not always 3.",
    )


@exercise("multi_head.shares", minutes=15, level="hard")
def shares(learner: Any) -> None:
    """Joining and projecting is a sum: one contribution from each head."""
    heads, w_o = torch.randn(2, 3, 5, 4), torch.randn(12, 12)
    fed = "3 heads of width 4, shape (2, 3, 5, 4), and the weight (12, 12) of nn.Linear"
    want = torch.stack(
        [heads[:, h] @ w_o[:, 4 * h : 4 * h + 4].mT for h in range(3)],
        dim=1,
    )
    got = learner(heads.clone(), w_o.clone())
    _shaped(got, (2, 3, 5, 12), fed, "One contribution of full width for each head.")
    expect_close(
        "the contributions add up to the output of the layer",
        got.sum(dim=1),
        heads.transpose(1, 2).flatten(2) @ w_o.mT,
        fed=fed,
        hint="nn.Linear computes x @ weight.T. So the features of head h meet the columns "
        "4h to 4h + 3 of the weight, not its rows.",
        atol=1e-4,
    )
    expect_close(
        "a contribution depends on its own head alone",
        got,
        want,
        fed=fed,
        hint="The sum is right, and the parts are not. Which head meets which columns?",
        atol=1e-4,
    )


@exercise("multi_head.fits", minutes=10, level="easy")
def fits(learner: Any) -> None:
    """How many conversations fit into the memory that is left for their caches."""
    one = {"n_layers": 32, "n_kv_heads": 8, "d_head": 128, "length": 8192, "bytes_per_value": 2}
    gib = 2**30  # exactly one of them
    cases = [
        ("keys and values are both kept", 10 * gib, {}, 10, "Two tensors a layer."),
        (
            "only whole conversations count",
            10 * gib - 1,
            {},
            9,
            "Nine and almost one more are nine.",
        ),
        (
            "fewer key heads make room",
            10 * gib,
            {"n_kv_heads": 1},
            80,
            "What does each kept token cost with one key head?",
        ),
        (
            "all sizes count",
            10 * gib,
            {"n_layers": 16, "d_head": 64, "length": 1024, "bytes_per_value": 4},
            160,
            "Layers, heads, width, tokens, bytes: is each of the five a factor?",
        ),
    ]
    for name, budget, changed, want, hint in cases:
        sizes = one | changed
        got = learner(budget, **sizes)
        said = ", ".join(f"{key}={value}" for key, value in sizes.items())
        fed = f"{budget:,} bytes, {said}"
        expect(got == want, name, fed=fed, expected=want, got=got, hint=hint)
        expect(
            isinstance(got, int),
            "the answer counts conversations: an int",
            fed=fed,
            expected=want,
            got=f"{got!r} of type {type(got).__name__}",
            hint="budget // one stays an int, budget / one becomes a float.",
        )


def _shaped(got: Any, shape: tuple[int, ...], fed: str, hint: str) -> None:
    found = tuple(got.shape) if isinstance(got, Tensor) else got
    expect(
        found == shape,
        f"the result has the shape {shape}",
        fed=fed,
        expected=shape,
        got=found,
        hint=hint,
    )


Layer = Callable[[Tensor], Tensor]


def _glue(out: Tensor) -> Tensor:
    return out.transpose(1, 2).flatten(2)


def _layer(merge: Layer, *, causal: bool = True) -> Layer:
    """Attention with 3 heads and random weights; ``merge`` puts the heads together."""
    weights = torch.randn(3, 15, 15) / math.sqrt(15)

    def run(x: Tensor) -> Tensor:
        q, k, v = ((x @ w).unflatten(-1, (3, -1)).transpose(1, 2) for w in weights)
        mask = causal_mask(x.shape[1]) if causal else None
        return merge(attend(q, k, v, mask=mask, eager=True))

    return run


def _whisper(to: int, source: int) -> Layer:
    def run(x: Tensor) -> Tensor:
        out = x.cumsum(dim=1)
        if source < x.shape[1]:  # whoever cuts the later tokens off tests in a right way too
            out[:, to] = out[:, to] + 0.1 * x[:, source]
        return out

    return run


def _wobble(layer: Layer) -> Layer:
    def run(x: Tensor) -> Tensor:
        out = layer(x)
        return out + 1e-7 * torch.randn_like(out)

    return run


class _Products(TorchDispatchMode):
    """Counts matrix products and calls of fused attention."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func)
        self.count += any(part in name for part in ("mm", "attention", "matmul", "mv", "dot"))
        return func(*args, **(kwargs or {}))
