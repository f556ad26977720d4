"""Right answers pass; typical wrong ones are told which property they lack."""

import pytest
import torch
from glassformer import exercises
from torch import nn


def blocks(weight, block):
    parts = []
    for part in weight.split(block, dim=1):
        step = part.abs().amax(dim=1, keepdim=True) / 7
        step = step.masked_fill(step == 0, 1.0)
        parts.append((part / step).round() * step)
    return torch.cat(parts, dim=1)


def one_step_for_all(weight, block):
    step = weight.abs().max() / 7
    return (weight / step).round() * step


def one_step_for_a_row(weight, block):
    return blocks(weight, weight.shape[1])


def cuts_off(weight, block):
    step = weight.split(block, dim=1)[0].abs().amax(1, keepdim=True)
    del step
    parts = []
    for part in weight.split(block, dim=1):
        step = part.abs().amax(dim=1, keepdim=True) / 7
        parts.append((part / step).trunc() * step)
    return torch.cat(parts, dim=1)


def no_care_for_zeros(weight, block):
    parts = []
    for part in weight.split(block, dim=1):
        step = part.abs().amax(dim=1, keepdim=True) / 7
        parts.append((part / step).round() * step)
    return torch.cat(parts, dim=1)


def unpack(packed, n):
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)[:, :n]


class Bypass(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.scale = alpha / rank
        self.a = nn.Parameter(torch.randn(rank, linear.in_features))
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + self.scale * (x @ self.a.T @ self.b.T)

    def weight(self):
        return self.linear.weight + self.scale * self.b @ self.a

    def merged(self):
        plain = nn.Linear(self.linear.in_features, self.linear.out_features)
        with torch.no_grad():
            plain.weight.copy_(self.weight())
            plain.bias.copy_(self.linear.bias)
        return plain


class BothRandom(Bypass):
    def __init__(self, linear, rank, alpha):
        super().__init__(linear, rank, alpha)
        nn.init.normal_(self.b)


class BothZero(Bypass):
    def __init__(self, linear, rank, alpha):
        super().__init__(linear, rank, alpha)
        nn.init.zeros_(self.a)


class NotFrozen(Bypass):
    def __init__(self, linear, rank, alpha):
        super().__init__(linear, rank, alpha)
        linear.requires_grad_(True)


class NoScale(Bypass):
    def __init__(self, linear, rank, alpha):
        super().__init__(linear, rank, alpha)
        self.scale = 1.0


class MergesInPlace(Bypass):
    def merged(self):
        with torch.no_grad():
            self.linear.weight += self.scale * self.b @ self.a
        return self.linear


class ForgetsTheBias(Bypass):
    def merged(self):
        plain = super().merged()
        nn.init.zeros_(plain.bias)
        return plain


class OneRow(nn.Module):
    def __init__(self, table, row):
        super().__init__()
        self.at = row
        self.row = nn.Parameter(table[row : row + 1].clone())
        self.register_buffer("others", table)

    def forward(self, ids):
        table = torch.cat((self.others[: self.at], self.row, self.others[self.at + 1 :]))
        return table[ids]


class ByHook(nn.Module):
    def __init__(self, table, row):
        super().__init__()
        self.table = nn.Parameter(table)
        self.table.register_hook(lambda g: g * (torch.arange(len(g)) == row)[:, None])

    def forward(self, ids):
        return self.table[ids]


class AtTheEnd(OneRow):
    def forward(self, ids):
        return torch.cat((self.others[:-1], self.row))[ids]


class Copied(OneRow):
    def forward(self, ids):
        with torch.no_grad():
            return super().forward(ids)


def safe(old, new, texts):
    same_ids = new.pieces[: len(old.pieces)] == old.pieces
    return same_ids and all(new.encode(t) == old.encode(t) for t in texts)


def only_the_list(old, new, texts):
    return new.pieces[: len(old.pieces)] == old.pieces


def only_the_texts(old, new, texts):
    return all(new.encode(t) == old.encode(t) for t in texts)


def the_first_text(old, new, texts):
    return only_the_list(old, new, texts) and new.encode(texts[0]) == old.encode(texts[0])


def no_growth(old, new, texts):
    return new.pieces == old.pieces


def all_there(old, new, texts):
    return set(old.pieces) <= set(new.pieces)


RIGHT = {
    "adaptation.blocks": blocks,
    "adaptation.unpack": unpack,
    "adaptation.bypass": Bypass,
    "adaptation.one_row": OneRow,
    "adaptation.safe_growth": safe,
}
WRONG = [
    ("blocks", one_step_for_all, "a loud weight disturbs no other row"),
    ("blocks", one_step_for_a_row, "disturbs no other block of its row"),
    ("blocks", cuts_off, "the nearest whole number of steps"),
    ("blocks", no_care_for_zeros, "a block of zeros comes back as zeros"),
    ("unpack", lambda p, n: torch.stack((p & 15, p >> 4), -1).flatten(1), "as many codes"),
    ("unpack", lambda p, n: torch.stack((p & 15, p >> 4), -1).flatten(1)[:, :-1], "as many codes"),
    ("unpack", lambda p, n: torch.stack((p, p >> 4), -1).flatten(1)[:, :n], "four bits"),
    ("unpack", lambda p, n: torch.cat((p & 15, p >> 4), 1)[:, :n], "in their order"),
    ("unpack", lambda p, n: torch.stack((p >> 4, p & 15), -1).flatten(1)[:, :n], "in their order"),
    ("bypass", BothRandom, "starts as the layer itself"),
    ("bypass", BothZero, "the first step can learn"),
    ("bypass", NotFrozen, "the frozen layer gets no gradient"),
    ("bypass", NoScale, "the bypass counts alpha / rank"),
    ("bypass", MergesInPlace, "called a second time answers"),
    ("bypass", ForgetsTheBias, "called once answers"),
    ("one_row", ByHook, "no step moves another row"),
    ("one_row", AtTheEnd, "it looks up what the table holds"),
    ("one_row", Copied, "the row gets a gradient"),
    ("safe_growth", only_the_list, "inside words"),
    ("safe_growth", only_the_texts, "exchanged"),
    ("safe_growth", the_first_text, "inside words"),
    ("safe_growth", no_growth, "a harmless change is accepted"),
    ("safe_growth", all_there, "a piece in front"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    report = exercises.check(name, RIGHT[name])
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "broken"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, broken):
    report = exercises.check(f"adaptation.{name}", answer)
    assert not report.passed
    assert broken in report.property
    assert report.fed
    assert report.hint


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("adaptation"):
        assert sum(f"adaptation.{wrong[0]}" == name for wrong in WRONG) >= 3
