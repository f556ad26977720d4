"""Right answers pass; typical wrong ones are told which property they lack."""

import pytest
import torch
import torch.nn.functional as F
from glassformer import exercises
from glassformer.interop._tables import half_split
from glassformer.nn import load_balancing_loss


def memory(model, bits):
    numbers = sum(p.numel() for p in model.parameters())
    return (numbers * bits + 7) // 8


def of_state_dict(model, bits):
    return sum(t.numel() for t in model.state_dict().values()) * bits // 8


def with_buffers(model, bits):
    numbers = sum(t.numel() for t in [*model.parameters(), *model.buffers()])
    return (numbers * bits + 7) // 8


def as_it_lies(model, bits):
    return sum(p.numel() * p.element_size() for p in model.parameters())


def keys_fetched(n, rows, columns):
    total = 0
    for top in range(0, n, rows):
        seen = min(top + rows, n)
        for left in range(0, seen, columns):
            total += min(columns, n - left)
    return total


def all_fetched(n, rows, columns):
    return -(-n // rows) * n


def tiles_fetched(n, rows, columns):
    return sum(-(-min(top + rows, n) // columns) for top in range(0, n, rows))


def cut_at_the_diagonal(n, rows, columns):
    return sum(min(top + rows, n) for top in range(0, n, rows))


def whole_last_tile(n, rows, columns):
    return columns * tiles_fetched(n, rows, columns)


def merged(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    share = (lse_a - lse).exp()[:, None]
    return share * out_a + (1 - share) * out_b, lse


def merged_by_sums(out_a, lse_a, out_b, lse_b):
    a, b = lse_a.exp()[:, None], lse_b.exp()[:, None]
    return (a * out_a + b * out_b) / (a + b), (a + b).log()[:, 0]


def merged_by_maximum(out_a, lse_a, out_b, lse_b):
    top = torch.maximum(lse_a, lse_b)
    a, b = (lse_a - top).exp()[:, None], (lse_b - top).exp()[:, None]
    return (a * out_a + b * out_b) / (a + b), top + (a + b).log()[:, 0]


def without_logsumexp(out_a, lse_a, out_b, lse_b):
    return merged(out_a, lse_a, out_b, lse_b)[0]


def averaged(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)


def largest_instead(out_a, lse_a, out_b, lse_b):
    return merged(out_a, lse_a, out_b, lse_b)[0], torch.maximum(lse_a, lse_b)


def with_zero_times(out_a, lse_a, out_b, lse_b):
    out, lse = merged(out_a, lse_a, out_b, lse_b)
    return out + 0 * lse_b[:, None], lse


def seen_from_the_left(out_a, lse_a, out_b, lse_b):
    share = (lse_a - lse_b).sigmoid()[:, None]
    return share * out_a + (1 - share) * out_b, lse_a + (lse_b - lse_a).exp().log1p()


def shares_of(chosen, n_experts):
    return F.one_hot(chosen, n_experts).float().mean(dim=(0, 1))


def balance(probs, chosen):
    x = probs.shape[1]
    return x * (shares_of(chosen, x) * probs.mean(dim=0)).sum()


def halves(weight, n_heads):
    return weight.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


RIGHT = [
    ("memory", memory),
    ("tiles", keys_fetched),
    ("merge", merged),
    ("merge", merged_by_maximum),
    ("balance", balance),
    ("balance", load_balancing_loss),
    ("halves", halves),
    ("halves", lambda weight, n_heads: half_split(n_heads).to_ours(weight)),
]
WRONG = [
    ("memory", of_state_dict, "counted once"),
    ("memory", with_buffers, "buffers are not weights"),
    ("memory", as_it_lies, "16 bits takes 2 bytes"),
    ("memory", lambda model, bits: memory(model, bits) / 2**20, "32 bits takes 4 bytes"),
    ("memory", lambda model, bits: memory(model, bits) // 1 * bits, "32 bits takes 4 bytes"),
    (
        "memory",
        lambda model, bits: sum(p.numel() for p in model.parameters()) * bits // 8,
        "do not fill a byte",
    ),
    ("memory", lambda model, bits: "66", "a number"),
    ("tiles", all_fetched, "wholly in the future"),
    ("tiles", tiles_fetched, "every key once"),
    ("tiles", cut_at_the_diagonal, "on the diagonal is fetched whole"),
    ("tiles", whole_last_tile, "the last tile holds"),
    ("merge", averaged, "two halves give"),
    ("merge", without_logsumexp, "come back"),
    ("merge", largest_instead, "the logsumexp is that of all keys"),
    ("merge", merged_by_sums, "do not overflow"),
    ("merge", with_zero_times, "a half that sees nothing"),
    ("merge", seen_from_the_left, "do not overflow|the half that sees"),
    ("balance", lambda p, c: balance(p, c) / p.shape[1], "equal shares cost 1"),
    (
        "balance",
        lambda p, c: p.shape[1] * shares_of(c, p.shape[1]).square().sum(),
        "shares are counted|carry a gradient",
    ),
    ("balance", lambda p, c: p.shape[1] * p.mean(0).square().sum(), "counted from the visits"),
    ("balance", lambda p, c: balance(p.detach(), c), "carry a gradient"),
    ("balance", lambda p, c: balance(p, c) * c.shape[1], "counted from the visits"),
    (
        "balance",
        lambda p, c: balance(p, c) + p.square().sum() - p.square().sum().detach(),
        "through the probabilities alone",
    ),
    (
        "halves",
        lambda w, h: w.unflatten(0, (h, 2, -1)).transpose(1, 2).flatten(0, 2),
        "first of each pair",
    ),
    ("halves", lambda w, h: w, "first of each pair"),
    ("halves", lambda w, h: torch.cat((w[0::2], w[1::2])), "its own rows"),
    (
        "halves",
        lambda w, h: w.reshape(h, -1, 2, w.shape[-1]).transpose(1, 2).reshape(w.shape),
        "runs without",
    ),
]


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_right_answers_pass(name, answer):
    report = exercises.check(f"evolution.{name}", answer)
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, said):
    report = exercises.check(f"evolution.{name}", answer)
    assert not report.passed
    assert any(part in report.property for part in said.split("|")), report
    assert report.fed
    assert report.hint


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("evolution"):
        assert sum(f"evolution.{wrong[0]}" == name for wrong in WRONG) >= 3
