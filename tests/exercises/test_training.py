"""The checkers of `training`: right answers pass, typical wrong ones are called by their name."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from glassformer import exercises
from torch import nn


def bits(nll: float, n_tokens: int, text: str) -> float:
    return nll * n_tokens / math.log(2) / len(text)


def loss(logits: torch.Tensor, targets: torch.Tensor, pad_id: int) -> torch.Tensor:
    real = targets != pad_id
    return F.cross_entropy(logits[real], targets[real], reduction="sum") / max(int(real.sum()), 1)


def factor(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, (total - step) / (total - warmup))


def accumulate(model: nn.Module, parts: Any, optimizer: torch.optim.Optimizer) -> None:
    n_tokens = sum(len(targets) for _, targets in parts)
    optimizer.zero_grad()
    for inputs, targets in parts:
        (F.cross_entropy(model(inputs), targets, reduction="sum") / n_tokens).backward()
    optimizer.step()


def score(surprise: Callable[..., list[float]], ids: list[int], window: int, stride: int) -> Any:
    scores: list[float] = []
    start = 0
    while len(scores) < len(ids) - 1:
        fresh = surprise(ids[start : start + window + 1])
        end = start + len(fresh)
        scores += fresh[len(fresh) - (end - len(scores)) :]
        start += stride
    return scores


def mixed(model: Any, x: Any, y: Any, optimizer: Any, scaler: Any, clip_norm: float) -> None:
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(model(x), y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    scaler.step(optimizer)
    scaler.update()


RIGHT = {
    "training.bits_per_character": bits,
    "training.padded_loss": loss,
    "training.lr_factor": factor,
    "training.accumulate": accumulate,
    "training.score_text": score,
    "training.mixed_step": mixed,
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name: str) -> None:
    report = exercises.check(name, RIGHT[name])
    assert report.passed, report


def test_every_exercise_has_a_right_answer_here() -> None:
    assert set(exercises.checking.exercises_of("training")) == set(RIGHT)


def _row_means(logits: Any, targets: Any, pad_id: int) -> Any:
    return torch.stack([loss(a, b, pad_id) for a, b in zip(logits, targets, strict=True)]).mean()


def _only_real_in_sum(logits: Any, targets: Any, pad_id: int) -> Any:
    real = targets != pad_id
    return F.cross_entropy(logits[real], targets[real], reduction="sum") / targets.numel()


def _ignore_index(logits: Any, targets: Any, pad_id: int) -> Any:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=pad_id)


def _new_zero(logits: Any, targets: Any, pad_id: int) -> Any:
    real = targets != pad_id
    return F.cross_entropy(logits[real], targets[real]) if real.any() else torch.zeros(())


def _mean_of_means(model: Any, parts: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    for inputs, targets in parts:
        (F.cross_entropy(model(inputs), targets) / len(parts)).backward()
    optimizer.step()


def _sum_of_means(model: Any, parts: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    for inputs, targets in parts:
        F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def _sum(model: Any, parts: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    for inputs, targets in parts:
        F.cross_entropy(model(inputs), targets, reduction="sum").backward()
    optimizer.step()


def _step_inside(model: Any, parts: Any, optimizer: Any) -> None:
    for inputs, targets in parts:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def _cleared_inside(model: Any, parts: Any, optimizer: Any) -> None:
    n_tokens = sum(len(targets) for _, targets in parts)
    for inputs, targets in parts:
        optimizer.zero_grad()
        (F.cross_entropy(model(inputs), targets, reduction="sum") / n_tokens).backward()
    optimizer.step()


def _carry_over(model: Any, parts: Any, optimizer: Any) -> None:
    n_tokens = sum(len(targets) for _, targets in parts)
    for inputs, targets in parts:
        (F.cross_entropy(model(inputs), targets, reduction="sum") / n_tokens).backward()
    optimizer.step()
    optimizer.zero_grad()


def _joined(model: Any, parts: Any, optimizer: Any) -> None:
    inputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def _a_window_for_each_token(surprise: Any, ids: Any, window: int, stride: int) -> Any:
    return [surprise(ids[max(0, i - window) : i + 1])[-1] for i in range(1, len(ids))]


def _cosine(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return (1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup)))) / 2


def _blocks(surprise: Any, ids: Any, window: int, stride: int) -> Any:
    return [s for i in range(0, len(ids), window) for s in surprise(ids[i : i + window])]


def _all_of_every_window(surprise: Any, ids: Any, window: int, stride: int) -> Any:
    starts = range(0, len(ids) - 1, stride)
    return [s for i in starts for s in surprise(ids[i : i + window + 1])]


def _no_tail(surprise: Any, ids: Any, window: int, stride: int) -> Any:
    scores = surprise(ids[: window + 1])
    for start in range(stride, len(ids) - window, stride):
        scores += surprise(ids[start : start + window + 1])[-stride:]
    return scores


def _blocks_with_one_more(surprise: Any, ids: Any, window: int, stride: int) -> Any:
    starts = range(0, len(ids) - 1, window)
    return [s for i in starts for s in surprise(ids[i : i + window + 1])]


def _everything_at_once(surprise: Any, ids: Any, window: int, stride: int) -> Any:
    return surprise(ids)


def _from_right_to_left(surprise: Any, ids: Any, window: int, stride: int) -> Any:
    return score(surprise, ids, window, stride)[::-1]


def _mixed_without(
    *left_out: str, clip_first: bool = False, limit: float | None = None, by_entry: bool = False
) -> Callable[..., None]:
    def step(model: Any, x: Any, y: Any, optimizer: Any, scaler: Any, clip_norm: float) -> None:
        def clip() -> None:
            cut = nn.utils.clip_grad_value_ if by_entry else nn.utils.clip_grad_norm_
            cut(model.parameters(), clip_norm if limit is None else limit)

        if "zero_grad" not in left_out:
            optimizer.zero_grad()
        value = F.mse_loss(model(x), y)
        (value if "scale" in left_out else scaler.scale(value)).backward()
        if clip_first:
            clip()
        if "unscale" not in left_out:
            scaler.unscale_(optimizer)
        if not clip_first and "clip" not in left_out:
            clip()
        if "scaler.step" in left_out:
            optimizer.step()
        else:
            scaler.step(optimizer)
        if "update" not in left_out:
            scaler.update()

    return step


WRONG: list[tuple[str, Callable[..., Any], str]] = [
    ("bits_per_character", lambda nll, n, text: nll / math.log(2), "shared out over characters"),
    ("bits_per_character", lambda nll, n, text: nll * n / len(text), "nats become bits"),
    ("bits_per_character", lambda nll, n, text: nll * n * math.log(2) / len(text), "nats become"),
    (
        "bits_per_character",
        lambda nll, n, text: nll * n / math.log(2) / len(text.encode()),
        "characters are counted, not bytes",
    ),
    ("bits_per_character", lambda nll, n, text: nll * n / math.log(2) / len(set(text)), "counted"),
    (
        "bits_per_character",
        lambda nll, n, text: nll * n / math.log(2) / len(text.replace(" ", "")),
        "characters are counted",
    ),
    ("bits_per_character", lambda nll, n, text: None, "the result is a number"),
    ("padded_loss", lambda z, t, p: F.cross_entropy(z.flatten(0, 1), t.flatten()), "not scored"),
    ("padded_loss", _only_real_in_sum, "the denominator counts real targets"),
    ("padded_loss", _row_means, "every token weighs the same"),
    ("padded_loss", _ignore_index, "a batch without targets gives 0"),
    ("padded_loss", _new_zero, "still has a graph"),
    ("padded_loss", lambda z, t, p: loss(z, t, 0), "padding is whatever pad_id says"),
    ("lr_factor", lambda s, w, n: s / w if s < w else (n - s) / (n - w), "the first step trains"),
    ("lr_factor", lambda s, w, n: (s + 1) / (w + 1) if s < w else 1.0, "the first step"),
    (
        "lr_factor",
        lambda s, w, n: (s + 1) / w if s < w else max(0.0, 1 - s / n),
        "half-way down",
    ),
    (
        "lr_factor",
        lambda s, w, n: (s + 1) / w if s < w else (n - s) / (n - w),
        "after the end",
    ),
    (
        "lr_factor",
        lambda s, w, n: min((s + 1) / w, max(0.0, (n - s) / (n - w))),
        "it runs without an error",
    ),
    ("lr_factor", _cosine, "straight all the way down"),
    (
        "lr_factor",
        lambda s, w, n: 0.1 ** (1 - s / (w - 1)) if s < w else factor(s, w, n),
        "half-way up",
    ),
    ("accumulate", _joined, "one micro-batch at a time"),
    ("accumulate", _mean_of_means, "every token weighs the same"),
    ("accumulate", _sum_of_means, "the sum is divided"),
    ("accumulate", _sum, "the gradient is that of a mean"),
    ("accumulate", _step_inside, "one optimiser step"),
    ("accumulate", _cleared_inside, "every micro-batch counts"),
    ("accumulate", _carry_over, "old gradients are not carried over"),
    ("score_text", _blocks, "every token but the first is scored"),
    ("score_text", _a_window_for_each_token, "one stride apart"),
    ("score_text", _no_tail, "every token but the first is scored"),
    ("score_text", _all_of_every_window, "no token is scored twice"),
    ("score_text", _blocks_with_one_more, "the overlap serves as context"),
    ("score_text", _everything_at_once, "no window is longer"),
    ("score_text", _from_right_to_left, "text order"),
    ("score_text", lambda surprise, ids, window, stride: 3.0, "a list of numbers"),
    ("mixed_step", _mixed_without(clip_first=True), "unscale before you clip"),
    ("mixed_step", _mixed_without("unscale", "clip", "scaler.step", "update"), "taken out again"),
    ("mixed_step", _mixed_without("unscale", "scaler.step", "update"), "taken out again"),
    ("mixed_step", _mixed_without("unscale", "scaler.step"), "the scaler makes the step"),
    ("mixed_step", _mixed_without("scale"), "the loss is scaled"),
    ("mixed_step", _mixed_without("update"), "the scaler hears"),
    ("mixed_step", _mixed_without("clip"), "clipped before the step"),
    ("mixed_step", _mixed_without(limit=1.0), "the limit is clip_norm"),
    ("mixed_step", _mixed_without(by_entry=True), "the length of the whole gradient"),
    ("mixed_step", _mixed_without("zero_grad"), "old gradients are not carried over"),
]


@pytest.mark.parametrize(("name", "answer", "named"), WRONG)
def test_wrong_answers_are_named(name: str, answer: Callable[..., Any], named: str) -> None:
    report = exercises.check(f"training.{name}", answer)
    assert not report.passed
    assert named in report.property, report


@pytest.mark.parametrize("name", [name.partition(".")[2] for name in RIGHT])
def test_at_least_three_wrong_answers_are_tried(name: str) -> None:
    assert sum(entry[0] == name for entry in WRONG) >= 3


@pytest.mark.parametrize("name", RIGHT)
def test_a_check_draws_no_random_numbers_of_the_caller(name: str) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    exercises.check(name, RIGHT[name])
    assert torch.equal(before, torch.get_rng_state())
