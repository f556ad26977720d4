"""Checkers for the exercises of the chapter `training`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.exercises import Failed, exercise, expect, expect_close
from glassformer.training import token_loss

__all__: list[str] = []


@exercise("training.bits_per_character", minutes=8, level="easy")
def bits_per_character(learner: Callable[..., Any]) -> None:
    """The total surprise, in bits, over the characters of the text."""
    text = "abcdefgh"
    fed = f"2.0 nats per token, 4 tokens, the text {text!r} of {len(text)} characters"
    got = learner(2.0, 4, text)
    want = 2.0 * 4 / math.log(2) / len(text)
    if isinstance(got, int | float):
        slips = {
            2.0 / math.log(2): (
                "the total is shared out over characters",
                "This is bits per token. How many nats is the whole text, and how many characters?",
            ),
            want * math.log(2): ("nats become bits", "How many nats is one bit: 2 outcomes?"),
            want * math.log(2) ** 2: ("nats become bits", "One nat is more than one bit: divide."),
        }
        for slip, (rule, hint) in slips.items():
            expect(abs(got - slip) > 1e-6, rule, fed=fed, expected=want, got=got, hint=hint)
    expect_close("bits per character", got, want, fed=fed, hint="Total nats / ln 2 / characters.")
    words = "la naïveté"
    expect_close(
        "characters are counted, not bytes",
        learner(1.0, 3, words),
        3 / math.log(2) / 10,
        fed=f"1.0 nats per token, 3 tokens, the text {words!r}: 10 characters, 12 bytes in UTF-8",
        hint="len of a str counts characters, a space too; len of its encoding counts bytes.",
    )


@exercise("training.padded_loss", minutes=10, level="medium")
def padded_loss(learner: Callable[..., Any]) -> None:
    """Nats per real target: padding changes nothing, and no target at all is no catastrophe."""
    pad_id = 0
    logits = torch.randn(2, 5, 7)
    targets = torch.tensor([[3, 1, 6, 2, 5], [4, pad_id, pad_id, pad_id, pad_id]])
    logits[targets == pad_id, pad_id] += 4.0  # padding is easy to predict
    want = token_loss(logits, targets, pad_id=pad_id).mean
    fed = "logits (2, 5, 7); five real targets in row 0, one in row 1, the rest padding"
    got = learner(logits, targets, pad_id)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(2, 5)
    real = nll.masked_fill(targets == pad_id, 0.0)
    rows = (real.sum(dim=1) / torch.tensor([5.0, 1.0])).mean()
    _not_that(
        got, nll.mean(), "padding is not scored", fed, want, "Which targets should be left out?"
    )
    _not_that(
        got,
        real.sum() / targets.numel(),
        "the denominator counts real targets",
        fed,
        want,
        "Padding left the sum. Did it leave the number you divide by?",
    )
    _not_that(
        got,
        rows,
        "every token weighs the same",
        fed,
        want,
        "This is a mean of row means: the only token of row 1 weighs as much as five.",
    )
    expect_close("nats per real target", got, want, fed=fed, hint="Sum of real NLLs / their count.")
    longer = F.pad(targets, (0, 45), value=pad_id)
    expect_close(
        "more padding changes nothing",
        learner(torch.cat([logits, torch.randn(2, 45, 7)], dim=1), longer, pad_id),
        want,
        fed="the same two rows, padded to 50",
        hint="Nothing about the padded positions may reach the result.",
    )
    last = targets.masked_fill(targets == pad_id, 6)  # the token 6 of row 0 is padding then, too
    expect_close(
        "padding is whatever pad_id says",
        learner(logits, last, 6),
        token_loss(logits, last, pad_id=6).mean,
        fed="the same logits, with pad_id=6",
        hint="Compare with pad_id, and with != : the padding may have any number.",
    )
    _no_target_at_all(learner, pad_id)


def _no_target_at_all(learner: Callable[..., Any], pad_id: int) -> None:
    logits = torch.randn(1, 3, 7, requires_grad=True)
    fed = "one row in which every target is padding"
    hint = "0/0 is NaN: divide by the count or by 1, whichever is larger."
    loss = learner(logits, torch.full((1, 3), pad_id), pad_id)
    expect_close("a batch without targets gives 0", loss, torch.zeros(()), fed=fed, hint=hint)
    expect(
        loss.requires_grad,
        "a batch without targets still has a graph",
        fed=fed,
        expected="a loss on which backward() works",
        got="a constant",
        hint="Return a sum over the selected losses, not a new zero.",
    )
    loss.backward()
    grad = logits.grad
    expect(
        grad is not None and bool(grad.isfinite().all()),
        "its gradient is finite",
        fed=fed,
        expected="zeros",
        got=grad,
        hint=hint,
    )


def _not_that(got: Any, slip: Tensor, rule: str, fed: str, want: Tensor, hint: str) -> None:
    same = isinstance(got, Tensor) and got.numel() == 1 and abs(float(got) - float(slip)) < 1e-6
    expect(not same, rule, fed=fed, expected=want, got=got, hint=hint)


@exercise("training.lr_factor", minutes=10, level="medium")
def lr_factor(learner: Callable[..., Any]) -> None:
    """Up in a line over ``warmup`` steps, down in a line to 0 at step ``total``, then 0."""

    def at(step: int, warmup: int, total: int) -> tuple[Any, str]:
        return learner(step, warmup, total), f"step={step}, warmup={warmup}, total={total}"

    got, fed = at(0, 10, 100)
    expect(
        got != 0,
        "the first step trains",
        fed=fed,
        expected=0.1,
        got=got,
        hint="With a rate of 0 the first batch is wasted: the first of 10 steps takes a tenth.",
    )
    expect_close("the first step", got, 0.1, fed=fed, hint="Step 0 is the first of `warmup`.")
    got, fed = at(9, 10, 100)
    expect_close("the peak", got, 1.0, fed=fed, hint="The last warm-up step is step warmup - 1.")
    got, fed = at(4, 10, 100)
    expect_close("half-way up", got, 0.5, fed=fed, hint="In a line: every step adds 1 / warmup.")
    got, fed = at(55, 10, 100)
    expect_close(
        "half-way down",
        got,
        0.5,
        fed=fed,
        hint="The way down leads from 1 at step `warmup` to 0 at step `total`. Its middle?",
    )
    for step, share in ((10, 1.0), (28, 0.8), (82, 0.2)):
        got, fed = at(step, 10, 100)
        hint = "In a line: every step takes off the same. A cosine has its middle there too."
        expect_close("straight all the way down", got, share, fed=fed, hint=hint)
    got, fed = at(100, 10, 100)
    expect_close("the end", got, 0.0, fed=fed, hint="At step `total` nothing is left.")
    got, fed = at(120, 10, 100)
    expect_close(
        "after the end",
        got,
        0.0,
        fed=fed,
        hint="A negative learning rate climbs the loss. What should happen when a run goes on?",
    )
    got, fed = at(0, 0, 100)
    expect_close("no warm-up", got, 1.0, fed=fed, hint="warmup=0 starts at once with the peak.")


class _Counting(torch.optim.SGD):
    """Plain gradient descent that counts its steps."""

    n_steps = 0

    def step(self, closure: Any = None) -> Any:
        self.n_steps += 1
        return super().step(closure)


@exercise("training.accumulate", minutes=15, level="medium")
def accumulate(learner: Callable[..., Any]) -> None:
    """One update from several micro-batches, as if they were one big batch."""
    sizes = (1, 9, 2)
    parts = [(torch.randn(n, 3), torch.randint(0, 4, (n,))) for n in sizes]
    start = torch.randn(4, 3)
    want = _one_big_step(start, parts)
    fed = f"micro-batches of {', '.join(map(str, sizes))} tokens, SGD with lr 1"

    got, optimizer, longest = _accumulated(learner, start, parts, stale=0.0)
    expect(
        optimizer.n_steps == 1,
        "one optimiser step for all micro-batches",
        fed=fed,
        expected="1 step",
        got=f"{optimizer.n_steps} steps",
        hint="Which lines belong into the loop, and which after it?",
    )
    tokens = sum(sizes)
    slips: dict[str, tuple[Callable[..., Tensor], int, str]] = {
        "every token weighs the same": (
            F.cross_entropy,
            len(sizes),
            "This is the mean of the means: the batch of 1 weighs as much as the batch of 9.",
        ),
        "the gradient is that of a mean": (
            _summed,
            1,
            f"This is the gradient of the sum over {tokens} tokens. Divide once, by all of them.",
        ),
        "the sum is divided": (
            F.cross_entropy,
            1,
            "Means were added up, so that more micro-batches make larger steps.",
        ),
    }
    for rule, (loss_of, divisor, hint) in slips.items():
        slip = _one_step(start, parts, loss_of, divisor)
        expect(
            not torch.allclose(got, slip, atol=1e-6),
            rule,
            fed=fed,
            expected="the weights after one step on all 12 tokens together",
            got="other weights",
            hint=hint,
        )
    last = _one_step(start, parts[-1:], F.cross_entropy, 1)
    along = F.cosine_similarity((start - got).flatten(), (start - last).flatten(), dim=0)
    expect(
        float(along) < 1 - 1e-5,
        "every micro-batch counts",
        fed=fed,
        expected="a step along the gradient of all 12 tokens",
        got="a step along the gradient of the last micro-batch alone",
        hint="What does zero_grad clear when it stands inside the loop?",
    )
    expect_close(
        "the update equals that of one big batch", got, want, fed=fed, hint="Sum, then divide once."
    )
    expect(
        longest <= max(sizes),
        "one micro-batch at a time goes through the model",
        fed=fed,
        expected=f"at most {max(sizes)} tokens in a call of the model",
        got=f"{longest} tokens in one call",
        hint="The batch was split because the whole of it does not fit into memory.",
    )
    got, _, _ = _accumulated(learner, start, parts, stale=5.0)
    expect_close(
        "old gradients are not carried over",
        got,
        want,
        fed=fed + ", with gradients of 5 left over from a step before",
        hint="backward() adds to what is there. Who clears it, and when?",
    )


def _accumulated(
    learner: Callable[..., Any], start: Tensor, parts: Any, *, stale: float
) -> tuple[Tensor, _Counting, int]:
    """The weights afterwards, the optimizer, and the most tokens in one call of the model."""
    model = _linear(start)
    model.weight.grad = torch.full_like(start, stale)
    optimizer = _Counting(model.parameters(), lr=1.0)
    lengths = [0]
    model.register_forward_pre_hook(lambda _, inputs: lengths.append(len(inputs[0])))
    learner(model, parts, optimizer)
    return model.weight.detach(), optimizer, max(lengths)


def _one_big_step(start: Tensor, parts: Any) -> Tensor:
    inputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
    return _one_step(start, [(inputs, targets)], F.cross_entropy, 1)


def _one_step(start: Tensor, parts: Any, loss_of: Callable[..., Tensor], divisor: int) -> Tensor:
    model = _linear(start)
    losses = [loss_of(model(inputs), targets) for inputs, targets in parts]
    (grad,) = torch.autograd.grad(sum(losses[1:], losses[0]) / divisor, [model.weight])
    return start - grad


def _summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="sum")


def _linear(weight: Tensor) -> nn.Linear:
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    return model


@exercise("training.score_text", minutes=15, level="hard")
def score_text(learner: Callable[..., Any]) -> None:
    """Every token but the first is scored once, with all the context that the stride gives."""
    for n, window, stride in ((21, 10, 10), (23, 8, 3), (20, 10, 5), (6, 10, 5)):
        _score_one(learner, n, window, stride)


def _score_one(learner: Callable[..., Any], n: int, window: int, stride: int) -> None:
    fed = f"ids 0 to {n - 1}, window={window}, stride={stride}"
    longest = calls = 0

    def surprise(chunk: Sequence[int]) -> list[float]:
        """Surprise at chunk[1:]. What it returns says which token it was, and after how many."""
        nonlocal longest, calls
        calls += 1
        longest = max(longest, len(chunk) - 1)
        return [token + context / 100 for context, token in enumerate(chunk[1:], start=1)]

    got = learner(surprise, list(range(n)), window, stride)
    if not isinstance(got, list | tuple) or not all(isinstance(x, int | float) for x in got):
        raise Failed("the result is a list of numbers", fed=fed, expected="a list", got=got)
    tokens = [int(value) for value in got]
    missing = sorted(set(range(1, n)) - set(tokens))
    expect(
        not missing,
        "every token but the first is scored",
        fed=fed,
        expected=f"{n - 1} scores",
        got=f"no score for token {', '.join(map(str, missing))}",
        hint="A window of w inputs predicts w tokens, so it needs w + 1 ids; "
        "and the last window must reach the end.",
    )
    twice = [token for token in range(n) if tokens.count(token) > 1]
    expect(
        not twice,
        "no token is scored twice",
        fed=fed,
        expected=f"{n - 1} scores",
        got=f"{len(tokens)} scores, more than one of token {', '.join(map(str, twice))}",
        hint="Windows overlap. How many of a window's targets are new?",
    )
    expect(
        tokens == list(range(1, n)),
        "scores are in text order",
        fed=fed,
        expected="the score of token 1, then of 2, 3, …",
        got=f"the order {', '.join(map(str, tokens))}",
        hint="Append the scores of one window after those of the window before.",
    )
    expect(
        longest <= window,
        "no window is longer than the model allows",
        fed=fed,
        expected=f"at most {window} inputs",
        got=f"{longest} inputs",
        hint="A chunk may hold window + 1 ids: window inputs, and one last target.",
    )
    contexts = [round((value - int(value)) * 100) for value in got]
    least = min(contexts[window:], default=window)
    expect(
        least > window - stride,
        "the overlap serves as context",
        fed=fed,
        expected=f"at least {window - stride + 1} tokens before each one after the first window",
        got=f"{least} tokens before token {window + 1 + contexts[window:].index(least)}"
        if contexts[window:]
        else "",
        hint="Of each later window score the last, new targets only: the earlier ones are context.",
    )
    most = math.ceil(n / stride) + 1
    expect(
        calls <= most,
        "the windows are one stride apart",
        fed=fed,
        expected=f"at most {most} windows",
        got=f"{calls} windows",
        hint="A window for each token is a stride of 1: more context than asked for, and a pass "
        "of the model for every token.",
    )


@exercise("training.mixed_step", minutes=15, level="hard")
def mixed_step(learner: Callable[..., Any]) -> None:
    """zero_grad, scale, backward, unscale, clip, step, update: in this order."""
    fed = "a true gradient of 0.5, a loss scale of 1024, clip_norm=1"
    moved, scaler = _scaled_step(learner, target=-0.25)
    slips = {
        1 / 1024: ("unscale before you clip", "The clip saw 512, cut it to 1, and 1/1024 is left."),
        512.0: ("the scale is taken out again", "The weight moved by the scaled gradient."),
        1.0: ("the scale is taken out again", "A scaled gradient was clipped and never unscaled."),
    }
    for slip, (rule, hint) in slips.items():
        expect(abs(moved - slip) > 1e-6, rule, fed=fed, expected=0.5, got=moved, hint=hint)
    expect_close("the weight moves by the true gradient", moved, 0.5, fed=fed)
    expect(
        scaler.get_scale() == 2048.0,
        "the scaler hears how the step went",
        fed="a scaler that doubles its scale after every good step",
        expected="a scale of 2048",
        got=f"a scale of {scaler.get_scale():g}",
        hint="After scaler.step comes scaler.update, or the scale never adapts.",
    )
    moved, _ = _scaled_step(learner, target=-5.0)
    expect_close(
        "a long gradient is clipped before the step",
        moved,
        1.0,
        fed="a true gradient of 10, clip_norm=1",
        hint="Between unscale_ and step: clip_grad_norm_ changes gradients, not weights.",
    )
    moved, _ = _scaled_step(learner, target=-5.0, clip_norm=2.0)
    expect_close(
        "the limit is clip_norm",
        moved,
        2.0,
        fed="a true gradient of 10, clip_norm=2",
        hint="Which limit did the caller ask for?",
    )
    moved, _ = _scaled_step(learner, target=-5.0, width=4)
    expect_close(
        "the length of the whole gradient is clipped",
        moved,
        1.0,
        fed="a true gradient of (10, 10, 10, 10), clip_norm=1; how far all four weights moved",
        hint="The norm is that of all entries together, not of each by itself.",
    )
    moved, _ = _scaled_step(learner, target=-0.25, stale=0.25 * 1024)
    expect_close(
        "old gradients are not carried over",
        moved,
        0.5,
        fed=fed + ", with a gradient left over from a step before",
        hint="backward() adds to what is there. The article's listing forgets the same line.",
    )


def _scaled_step(
    learner: Callable[..., Any],
    *,
    target: float,
    stale: float = 0.0,
    clip_norm: float = 1.0,
    width: int = 1,
) -> tuple[float, torch.amp.GradScaler]:
    """How far one step of SGD moves the weights; the gradient of each is ``-2 * target``."""
    model = _linear(torch.zeros(1, width))
    model.weight.grad = torch.full((1, width), stale)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    inputs, targets = torch.ones(1, width), torch.full((1, 1), target)
    try:
        learner(model, inputs, targets, optimizer, scaler, clip_norm=clip_norm)
    except Exception as error:
        _explain_scaler(str(error.__cause__ or error))
        raise
    return float(model.weight.detach().norm()), scaler


def _explain_scaler(message: str) -> None:
    """The scaler notices two slips itself, but in its own words."""
    fed = "a GradScaler that is enabled"
    if "_scale is None" in message:
        raise Failed(
            "the loss is scaled",
            fed=fed,
            expected="scaler.scale(loss).backward()",
            got=f"the scaler says: {message}",
            hint="unscale_ divides by a scale that the loss was never multiplied with.",
        )
    if "No inf checks" in message:
        raise Failed(
            "the scaler makes the step",
            fed=fed,
            expected="scaler.step(optimizer)",
            got=f"the scaler says: {message}",
            hint="optimizer.step() alone hides the step from the scaler, and keeps its scale.",
        )
