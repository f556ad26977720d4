"""Checks for the exercises of the chapter ``motivation``."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.exercises import Failed, exercise, expect, expect_close

__all__: list[str] = []


@exercise("motivation.layers", minutes=10, level="easy")
def layers(learner: Any) -> None:
    """How many convolutions on top of each other reach a distance."""
    cases = (
        (
            "one layer reaches as far as its kernel",
            (2, 3, 1),
            "A kernel of width 3 covers the current position and two before it: distance 2.",
        ),
        (
            "a distance one beyond the kernel takes one more layer",
            (3, 3, 1),
            "A kernel of 3 reaches 2 places back, so the third needs a second layer. Count in "
            "steps of kernel - 1, and round up.",
        ),
        (
            "without gaps every layer adds as much as the first",
            (64, 3, 1),
            "A layer adds kernel - 1, not kernel: its window starts where the last one ended.",
        ),
        (
            "gaps that double reach twice as far with each layer",
            (64, 2, 2),
            "Layer number l, from 0, reaches (kernel - 1) * growth**l further. Add up until it is "
            "enough.",
        ),
        (
            "gaps that grow by three, with a kernel of five",
            (50, 5, 3),
            "Both matter: a kernel of 5 has four gaps, and each is growth**l wide.",
        ),
        ("no distance needs no layer", (0, 3, 1), "The current position is there already."),
    )
    for property_, (distance, kernel, growth), hint in cases:
        want, reach = 0, 0
        while reach < distance:
            reach += (kernel - 1) * growth**want
            want += 1
        got = learner(distance, kernel, growth)
        expect(
            isinstance(got, int | float) and got == want,
            property_,
            fed=f"distance {distance}, kernel {kernel}, growth {growth}",
            expected=want,
            got=got,
            hint=hint,
        )


@exercise("motivation.causal_window", minutes=10, level="easy")
def causal_window(learner: Any) -> None:
    """A convolution over time that does not see what comes later."""
    x, weight = torch.randn(2, 5, 11), torch.randn(7, 5, 3)
    fed = "x of shape (2, 5, 11), a kernel of width 3"
    got = learner(x.clone(), weight.clone(), 1)
    want = F.conv1d(F.pad(x, (2, 0)), weight)
    shape = tuple(got.shape) if isinstance(got, Tensor) else got
    expect(
        shape == (2, 7, 11),
        "there is one output for every position",
        fed=fed,
        expected=(2, 7, 11),
        got=shape,
        hint="A convolution without padding is kernel - 1 positions short.",
    )
    later = x.clone()
    later[..., 6:] += 1000.0
    changed = (learner(later, weight.clone(), 1) - got).abs().amax(dim=(0, 1)) > 1e-3
    expect(
        not changed[:6].any(),
        "no output changes when a later input does",
        fed=f"{fed}; positions 6 to 10 were changed",
        expected="outputs 0 to 5 as before",
        got=f"outputs {changed[:6].nonzero().flatten().tolist()} changed",
        hint="padding='same' puts half of the zeros on the right. All of them belong on the left.",
    )
    expect_close(
        "the last number of the kernel meets the current position",
        got,
        want,
        fed=fed,
        hint="Pad with exactly (kernel - 1) * dilation zeros on the left and none on the right.",
    )
    expect_close(
        "with gaps the padding grows, too",
        learner(x.clone(), weight.clone(), 3),
        F.conv1d(F.pad(x, (6, 0)), weight, dilation=3),
        fed=f"{fed}, dilation 3",
        hint="A window with gaps reaches (kernel - 1) * dilation positions back.",
    )


@exercise("motivation.gru", minutes=20, level="medium")
def gru(learner: Any) -> None:
    """One step of a gated recurrent unit."""
    cell = nn.GRUCell(5, 7)
    x, h = torch.randn(3, 5), torch.randn(3, 7)
    fed = "x of shape (3, 5), h of shape (3, 7), weights of nn.GRUCell(5, 7) in its order r, z, n"

    def answer(state: Tensor) -> Any:
        parts = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
        return learner(x.clone(), state.clone(), *(part.detach().clone() for part in parts))

    size = cell.hidden_size
    with torch.no_grad():
        bias = cell.bias_ih.clone()
        cell.bias_ih[size : 2 * size] = 1000.0
        expect_close(
            "an update gate at 1 keeps the state as it is",
            answer(h),
            h,
            fed=f"{fed}; the bias of z is 1000, so z = 1",
            hint="At z = 1 all of h stays and nothing of n comes in: what does z multiply in your "
            "last line? And is z the second block of rows, as in r, z, n?",
        )
        cell.bias_ih[size : 2 * size] = -1000.0
        new = answer(h)
        expect(
            isinstance(new, Tensor) and bool((new.abs() <= 1).all()),
            "an update gate at 0 leaves the candidate, which lies between -1 and 1",
            fed=f"{fed}; the bias of z is -1000, so z = 0",
            expected="numbers between -1 and 1",
            got=new,
            hint="The candidate n goes through tanh; the gates r and z go through a sigmoid.",
        )
        cell.bias_ih.copy_(bias)
        expect_close(
            "from an empty state it is nn.GRUCell's step",
            answer(torch.zeros(3, 7)),
            cell(x, torch.zeros(3, 7)),
            fed=f"{fed}; h is zero",
            hint="Two biases: that of h is added although h is zero, and r multiplies it in n.",
        )
        expect_close(
            "it is nn.GRUCell's step",
            answer(h),
            cell(x, h),
            fed=fed,
            hint="In PyTorch the reset gate multiplies the whole recurrent part of the candidate: "
            "n = tanh(x_n + r * h_n), with h_n = W_hn h + b_hn.",
        )


@exercise("motivation.open_gates", minutes=15, level="medium")
def open_gates(learner: Any) -> None:
    """A forget gate that keeps a chosen share over a chosen number of steps."""
    torch.manual_seed(7)
    for steps, keep in ((100, 0.5), (20, 0.9)):
        lstm = nn.LSTM(5, 7, batch_first=True)
        before = {name: value.detach().clone() for name, value in lstm.named_parameters()}
        learner(lstm, steps, keep)
        after = dict(lstm.named_parameters())
        fed = f"nn.LSTM(5, 7), steps {steps}, keep {keep}"
        others = all(
            torch.equal(after[name][part], before[name][part])
            for name in ("bias_ih_l0", "bias_hh_l0")
            for part in (slice(0, 7), slice(14, 28))
        )
        expect(
            others,
            "the other three gates stay as they are",
            fed=fed,
            expected="a change in rows 7 to 13 of the biases only",
            got="rows of other gates changed",
            hint="PyTorch keeps the gates in the order input, forget, cell, output: of 4 * 7 rows "
            "the forget gate has the second 7.",
        )
        expect(
            all(torch.equal(after[name], before[name]) for name in before if "weight" in name),
            "the weights stay as they are",
            fed=fed,
            expected="a change in the biases only",
            got="a weight matrix changed",
            hint="A bias alone decides where the gate starts.",
        )
        bias = (after["bias_ih_l0"] + after["bias_hh_l0"])[7:14].detach()
        survived = bias.sigmoid() ** steps
        expect_close(
            "the share that survives is the one asked for",
            survived,
            torch.full((7,), keep),
            fed=f"{fed}; the sum of both biases, through the sigmoid, to the power of {steps}",
            hint="Per step the gate must keep keep ** (1 / steps). The bias is what the sigmoid "
            "turns into that, and PyTorch adds two biases: bias_ih and bias_hh.",
            atol=1e-3,
        )


@exercise("motivation.pieces", minutes=15, level="medium")
def pieces(learner: Any) -> None:
    """A long text read in pieces: the state is carried on, the gradient is not."""
    lstm = nn.LSTM(5, 7, batch_first=True)
    x = torch.randn(2, 11, 5, requires_grad=True)
    fed = "an nn.LSTM(5, 7), x of shape (2, 11, 5), pieces of 4"
    got = learner(lstm, x, 4)
    want = lstm(x)[0]
    shape = tuple(got.shape) if isinstance(got, Tensor) else got
    expect(
        shape == (2, 11, 7),
        "every position has its output",
        fed=fed,
        expected=(2, 11, 7),
        got=shape,
        hint="The last piece has 3 positions. Join the outputs along time, axis 1.",
    )
    expect_close(
        "the first piece is read as before",
        got[:, :4],
        want[:, :4],
        fed=fed,
        hint="No state given means zeros: right for the first piece, and for it alone.",
    )
    expect_close(
        "later pieces go on from the state that the last one left",
        got,
        want,
        fed=fed,
        hint="lstm(piece, state) returns the outputs and the new (h, c). Give it to the next call.",
    )
    expect(
        got.requires_grad,
        "a gradient flows within a piece",
        fed=fed,
        expected="outputs that require a gradient",
        got="outputs without one",
        hint="Detach the state, not the outputs.",
    )
    for last in (3, 7, 10):  # of each piece
        (grad,) = torch.autograd.grad(got[:, last].sum(), x, retain_graph=True, allow_unused=True)
        if grad is None or not grad[:, last - last % 4 : last + 1].any():
            raise Failed(
                "a gradient flows within a piece",
                fed=fed,
                expected=f"output {last} depends on the inputs of its piece",
                got="no gradient",
                hint="Detach the state, not the outputs or the inputs.",
            )
    expect(
        not grad[:, :8].any(),
        "no gradient flows back into an earlier piece",
        fed=f"{fed}; the gradient of the last output",
        expected="zeros at positions 0 to 7",
        got=f"positions {grad[:, :8].abs().amax((0, 2)).nonzero().flatten().tolist()} have some",
        hint="h and c both carry the graph of everything before: (h.detach(), c.detach()).",
    )


@exercise("motivation.additive", minutes=15, level="medium")
def additive(learner: Any) -> None:
    """Shares of the source for one state of the decoder, scored by a small network."""
    state, memory = torch.randn(2, 5), torch.randn(2, 7, 3)
    w_state, w_memory, v = torch.randn(5, 4), torch.randn(3, 4), torch.randn(4)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    fed = "state (2, 5), memory (2, 7, 3), w_state (5, 4), w_memory (3, 4), v (4,); 3 of the "
    fed += "second source's positions are padding"
    got = learner(*(t.clone() for t in (state, memory, w_state, w_memory, v, mask)))
    scores = ((state @ w_state)[:, None] + memory @ w_memory).tanh() @ v
    want = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    shape = tuple(got.shape) if isinstance(got, Tensor) else got
    expect(
        shape == (2, 7),
        "there is one share for each source position",
        fed=fed,
        expected=(2, 7),
        got=shape,
        hint="The state needs an axis for the source before it is added: state[:, None].",
    )
    expect(
        not got[~mask].abs().gt(1e-6).any(),
        "padding gets no share",
        fed=fed,
        expected="zeros where the mask is False",
        got=got[~mask],
        hint="Fill the scores of padding with -inf before the softmax. True means real.",
    )
    expect_close(
        "the shares of one sentence sum to one",
        got.sum(-1),
        torch.ones(2),
        fed=fed,
        hint="Hide padding before the softmax, and take it over the source, the last axis.",
    )
    expect_close(
        "the score is v · tanh(state + memory), each projected",
        got,
        want,
        fed=fed,
        hint="Project both to the same width, add, tanh, then the dot product with v.",
    )
