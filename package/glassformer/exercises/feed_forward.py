"""Checks for the exercises of the chapter ``feed_forward``."""

import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.exercises import exercise, expect, expect_close
from glassformer.lab.measure import peak_bytes
from glassformer.nn import Block, FeedForward, LayerNorm, MultiHeadAttention, Stack

__all__: list[str] = []


@exercise("feed_forward.review", minutes=15, level="medium")
def review(learner: Any) -> None:
    """A pre-norm sublayer with three bugs."""
    x, norm = torch.randn(2, 5, 7), LayerNorm(7)
    up, down = nn.Linear(7, 11), nn.Linear(11, 7)
    fed = "x of shape (2, 5, 7), a LayerNorm, and linear layers 7 to 11 and 11 to 7"
    silent = nn.Linear(11, 7)
    nn.init.zeros_(silent.weight)
    nn.init.zeros_(silent.bias)
    with torch.no_grad():
        expect_close(
            "a network that says nothing leaves the stream as it was",
            learner(x.clone(), norm, up, silent),
            x,
            fed=f"{fed}, the second all zeros",
            hint="What is added to what? The norm is for the ears of the network only: the stream "
            "itself is passed on as it came.",
        )
        expect_close(
            "the network hears the norm of x",
            learner(10 * x, norm, up, down) - 10 * x,
            learner(x.clone(), norm, up, down) - x,
            atol=1e-4,
            fed=f"{fed}; then 10 x, whose norm is the same",
            hint="What up is given must be norm(x): it does not change when x is ten times larger.",
        )
        expect_close(
            "the network bends between its two layers",
            learner(x.clone(), norm, up, down),
            x + down(F.gelu(up(norm(x)))),
            fed=f"{fed}; expected: GELU in between",
            hint="Two linear layers in a row are one linear layer.",
        )
        kept = x.clone()
        learner(kept, nn.Identity(), up, down)
        expect_close(
            "the caller's x is left alone",
            kept,
            x,
            fed="the same x, with a norm that does nothing",
            hint="x += y writes into the tensor that the caller still holds. x = x + y does not.",
        )


@exercise("feed_forward.gated_width", minutes=10, level="easy")
def gated_width(learner: Any) -> None:
    """How wide a gated network may be at the price of a plain one."""
    width = learner(1536, 1)
    expect(
        isinstance(width, int),
        "a width is a whole number",
        fed="d_ff = 1536, multiple = 1",
        expected="an int",
        got=repr(width),
        hint="Divide with //, which stays among the integers.",
    )
    for d_ff, multiple, want, name, hint in (
        (1536, 1, 1024, "three matrices hold as much as two", "3 · d · width = 2 · d · d_ff"),
        (
            100,
            1,
            67,
            "the width is rounded up",
            "66 · 3 is 198, less than 200. -(-a // b) rounds up.",
        ),
        (
            100,
            32,
            96,
            "the width is a multiple of what the hardware likes",
            "Round up to whole multiples, after taking two thirds.",
        ),
        (
            96,
            32,
            64,
            "a width that fits already stays",
            "64 is two thirds of 96, and two times 32.",
        ),
        (16384, 256, 11008, "LLaMA's own width comes out", "4 · 4096 = 16,384, in steps of 256."),
    ):
        got = learner(d_ff, multiple)
        expect(
            got == want,
            name,
            fed=f"d_ff = {d_ff}, multiple = {multiple}",
            expected=str(want),
            got=repr(got),
            hint=hint,
        )


@exercise("feed_forward.in_slices", minutes=15, level="medium")
def in_slices(learner: Any) -> None:
    """The same output without ever holding the whole hidden layer."""
    ffn, x = FeedForward(7, 29), torch.randn(3, 12, 7)
    fed = "a network 7 -> 29 -> 7 and x of shape (3, 12, 7)"
    with torch.no_grad():
        expect_close(
            "slices that fit give what the whole gives",
            learner(ffn, x, 4),
            ffn(x),
            fed=f"{fed}, slices of 4 positions",
            hint="Cut along the axis of time, and put the results side by side along the same.",
        )
        expect_close(
            "a last slice that is shorter is not lost",
            learner(ffn, x, 5),
            ffn(x),
            fed=f"{fed}, slices of 5 positions",
            hint="x.split(5, dim=1) gives 5, 5 and 2.",
        )
        large, tokens = FeedForward(16, 512), torch.randn(1, 256, 16)
        whole = peak_bytes(large, tokens)
        used = peak_bytes(learner, large, tokens, 4)
        expect(
            used < whole // 6,
            "the hidden layer is never whole in memory",
            fed="a network 16 -> 512 -> 16, 256 positions, slices of 4",
            expected=f"less than a sixth of {whole:,} bytes, what the whole takes",
            got=f"{used:,} bytes",
            hint="Run the network on one slice at a time, inside the loop. (chunk(4) makes four "
            "slices; split(4) makes slices of four.)",
        )


@exercise("feed_forward.add_fact", minutes=25, level="hard")
def add_fact(learner: Any) -> None:
    """One more hidden unit, one more fact, and nothing else forgotten."""
    keys = torch.eye(7)
    values = torch.randn(7, 7)
    ffn = FeedForward(7, 3, activation="relu")
    with torch.no_grad():
        ffn.up_proj.weight.copy_(keys[:3])
        ffn.up_proj.bias.fill_(-0.5)
        ffn.down_proj.weight.copy_(2 * values[:3].mT)
        ffn.down_proj.bias.copy_(torch.randn(7))
        before, weights = ffn(keys), copy.deepcopy(ffn.state_dict())
        near = (keys[4] + keys[5] * 3**0.5) / 2  # at 60 degrees to key 4
        near_before = ffn(near)
        fed = "a ReLU network that holds 3 facts, and the fourth: key 4 and its value"
        more = learner(ffn, keys[4].clone(), values[4].clone())
        expect(
            isinstance(more, FeedForward) and more.up_proj.out_features == 4,
            "the new network has one more hidden unit",
            fed=fed,
            expected="a FeedForward with d_ff = 4",
            got=str(more),
            hint="Make FeedForward(d_model, d_ff + 1, activation='relu') and copy the old rows.",
        )
        after = more(keys)
        expect_close(
            "the new key adds its value",
            after[4],
            before[4] + values[4],
            fed=fed,
            hint="The unit gives relu(key · key - threshold): how large is that, and by what must "
            "the value be multiplied?",
        )
        others = [0, 1, 2, 3, 5, 6]
        expect_close(
            "old facts and strangers get what they got before",
            after[others],
            before[others],
            fed=fed,
            hint="Copy all four tensors, the biases too, in the order of the units.",
        )
        expect_close(
            "a vector 60 degrees away does not set it off",
            more(near),
            near_before,
            fed=f"{fed}; then a vector whose dot product with the key is 0.5",
            hint="Without a negative bias, any key that points roughly the same way gets a share.",
        )
        for name, tensor in weights.items():
            expect_close(
                f"the old network is untouched: {name}",
                ffn.state_dict()[name],
                tensor,
                fed=fed,
                hint="Copy into the new one; do not write into the old.",
            )


@exercise("feed_forward.gradient_norms", minutes=15, level="medium")
def gradient_norms(learner: Any) -> None:
    """An instrument: how large is the gradient of each block?"""
    blocks = [
        Block(MultiHeadAttention(8, 2), FeedForward(8, 13), make_norm=partial(LayerNorm, 8))
        for _ in range(3)
    ]
    stack, x = Stack(blocks, LayerNorm(8)), torch.randn(2, 5, 8)
    fed = "a stack of 3 blocks, width 8, and the loss stack(x).square().sum(1).std()"

    def loss() -> Tensor:
        out: Tensor = stack(x)
        return out.square().sum(1).std()

    got = learner(stack, loss())
    want = [
        torch.cat([g.flatten() for g in torch.autograd.grad(loss(), list(b.parameters()))]).norm()
        for b in blocks
    ]
    expect(
        isinstance(got, list) and len(got) == 3,
        "there is one number for each block",
        fed=fed,
        expected="a list of 3 numbers",
        got=str(got),
        hint="Loop over stack.blocks; each has parameters().",
    )
    expect_close(
        "each is the length of all gradients of a block, taken as one vector",
        torch.tensor([float(number) for number in got]),
        torch.stack(want),
        fed=fed,
        hint="Lengths do not add up; their squares do: the root of the sum of all squares.",
    )
    again = learner(stack, loss())
    expect_close(
        "measuring twice gives the same",
        torch.tensor([float(number) for number in again]),
        torch.stack(want),
        fed=f"{fed}, measured a second time",
        hint="backward() adds to what .grad holds already.",
    )
    expect(
        all(p.grad is None for p in stack.parameters()),
        "the instrument leaves no trace",
        fed=fed,
        expected=".grad is None for every parameter, as before",
        got=".grad of some parameters is set, and the next optimizer step would use it",
        hint="torch.autograd.grad returns gradients and stores none.",
    )
    for p in stack.parameters():
        p.grad = torch.ones_like(p)
    learner(stack, loss())
    expect(
        all(p.grad is not None and bool((p.grad == 1).all()) for p in stack.parameters()),
        "gradients that were there stay",
        fed=f"{fed}, with ones in every .grad",
        expected=".grad full of ones, as before",
        got=".grad changed or cleared, and the training step would lose what it had gathered",
        hint="Zeroing afterwards is a trace too. torch.autograd.grad touches no .grad.",
    )
    used = loss()
    learner(stack, used)
    try:
        used.backward()
        alive = True
    except RuntimeError:
        alive = False
    expect(
        alive,
        "the loss can still be sent backward",
        fed=f"{fed}, measured once, then loss.backward()",
        expected="gradients, as in a training step",
        got="a RuntimeError: the graph is gone",
        hint="retain_graph=True, in every call.",
    )
