"""Right answers pass; typical wrong ones are told which property they lack."""

import math

import pytest
import torch
from glassformer import exercises
from glassformer.functional import keep_top_weights


def cut(w_q, w_k, w_v, w_o, n_heads, gone):
    width = len(w_q) // n_heads
    rows = [i for i in range(len(w_q)) if i // width not in gone]
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


def cut_by_blocks(w_q, w_k, w_v, w_o, n_heads, gone):
    keep = [head for head in range(n_heads) if head not in gone]
    rows = (w.unflatten(0, (n_heads, -1))[keep].flatten(0, 1) for w in (w_q, w_k, w_v))
    return (*rows, w_o.unflatten(1, (n_heads, -1))[:, keep].flatten(1))


def keeps_the_gone(w_q, w_k, w_v, w_o, n_heads, gone):
    keep = [head for head in range(n_heads) if head not in gone]
    return cut(w_q, w_k, w_v, w_o, n_heads, keep)


def cut_with_strides(w_q, w_k, w_v, w_o, n_heads, gone):
    rows = [i for i in range(len(w_q)) if i % n_heads not in gone]
    return w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]


def cut_rows_of_o(w_q, w_k, w_v, w_o, n_heads, gone):
    q, k, v, _ = cut(w_q, w_k, w_v, w_o, n_heads, gone)
    return q, k, v, cut(w_o, w_k, w_v, w_o, n_heads, gone)[0]


def cut_columns_of_o_from_the_left(w_q, w_k, w_v, w_o, n_heads, gone):
    q, k, v, o = cut(w_q, w_k, w_v, w_o, n_heads, gone)
    return q, k, v, w_o[:, : o.shape[1]]


def cut_one_after_the_other(w_q, w_k, w_v, w_o, n_heads, gone):
    width, shift = len(w_q) // n_heads, 0
    for head in gone:
        at = head * width - shift
        rows = [i for i in range(len(w_q)) if not at <= i < at + width]
        w_q, w_k, w_v, w_o = w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]
        shift += width
    return w_q, w_k, w_v, w_o


def cut_by_popping(w_q, w_k, w_v, w_o, n_heads, gone):
    width = len(w_q) // n_heads
    for head in gone:  # the second number counts among the heads that are left
        rows = [i for i in range(len(w_q)) if i // width != head]
        w_q, w_k, w_v, w_o = w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]
    return w_q, w_k, w_v, w_o


def cut_by_popping_columns(w_q, w_k, w_v, w_o, n_heads, gone):
    q, k, v, _ = cut(w_q, w_k, w_v, w_o, n_heads, gone)
    return q, k, v, cut_by_popping(w_q, w_k, w_v, w_o, n_heads, gone)[3]


def masked(w_q, w_k, w_v, w_o, n_heads, gone):
    width = len(w_q) // n_heads
    for head in gone:
        w_o[:, head * width : head * width + width] = 0.0
    return w_q, w_k, w_v, w_o


def renumber(place, gone):
    number = place
    for head in sorted(gone):
        number += head <= number
    return number


def renumber_by_counting(place, gone):
    return [head for head in range(place + len(gone) + 1) if head not in gone][place]


def renumber_unsorted(place, gone):
    number = place
    for head in gone:
        number += head <= number
    return number


def top_k(scores, mask, top_k):
    scores = scores.masked_fill(~mask, -math.inf)
    best, places = scores.topk(min(top_k, scores.shape[-1]), dim=-1)
    return torch.zeros_like(scores).scatter(-1, places, best.softmax(dim=-1))


def top_k_of_weights(scores, mask, top_k):
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return keep_top_weights(weights, top_k)


def listing(scores, mask, top_k, fill=0.0):
    scores = scores.masked_fill(~mask, -math.inf)
    lowest = scores.topk(top_k, dim=-1).values[..., -1:]
    return torch.where(scores >= lowest, scores, torch.full_like(scores, fill)).softmax(dim=-1)


def listing_safe(scores, mask, k):
    return listing(scores, mask, min(k, scores.shape[-1]), -math.inf)


def after_the_softmax(scores, mask, top_k):
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    best, places = weights.topk(top_k, dim=-1)
    return torch.zeros_like(weights).scatter(-1, places, best)


def choose_then_hide(scores, mask, top_k):
    best, places = scores.topk(top_k, dim=-1)
    kept = torch.full_like(scores, -math.inf).scatter(-1, places, best)
    return kept.masked_fill(~mask, -math.inf).softmax(dim=-1)


def without_the_mask(scores, mask, k):
    return top_k(scores, torch.ones_like(mask), k)


def equal_shares(scores, mask, k):
    return (top_k(scores, mask, k) > 0).float() / k


def whole_speed(share, times):
    return 1.0 / (1.0 - share + share / times)


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def smaller(whole, pruned):
    return size(pruned) < size(whole)


def fewer_nonzero(whole, pruned):
    counts = [sum(int((p != 0).sum()) for p in model.parameters()) for model in (whole, pruned)]
    return counts[1] < counts[0]


def fewer_trainable(whole, pruned):
    counts = [
        sum(p.numel() for p in model.parameters() if p.requires_grad) for model in (whole, pruned)
    ]
    return counts[1] < counts[0]


def fewer_modules(whole, pruned):
    return len(list(pruned.modules())) < len(list(whole.modules()))


def fewer_saved(whole, pruned):
    counts = [sum(t.numel() for t in model.state_dict().values()) for model in (whole, pruned)]
    return counts[1] < counts[0]


def says_something_else(whole, pruned):
    x = torch.randn(1, 5, 21)
    return not torch.equal(whole(x), pruned(x))


RIGHT = [
    ("cut", cut),
    ("cut", cut_by_blocks),
    ("renumber", renumber),
    ("renumber", renumber_by_counting),
    ("top_k", top_k),
    ("top_k", top_k_of_weights),
    ("whole_speed", whole_speed),
    ("really_smaller", smaller),
]

WRONG = [
    ("cut", keeps_the_gone, "three heads of width 5"),
    ("cut", cut_with_strides, "w_q keeps the rows"),
    ("cut", cut_rows_of_o, "three heads of width 5|runs without"),
    ("cut", cut_columns_of_o_from_the_left, "w_o keeps the columns"),
    ("cut", cut_one_after_the_other, "several heads go at once"),
    ("cut", cut_by_popping, "several heads go at once"),
    ("cut", cut_by_popping_columns, "several heads go at once"),
    ("cut", masked, "three heads of width 5"),
    ("cut", lambda *a: cut(*a)[0], "four matrices"),
    ("renumber", lambda place, gone: place, "move up by one"),
    ("renumber", lambda place, gone: place + len(gone), "move up by one"),
    ("renumber", lambda place, gone: place + sum(h <= place for h in gone), "several gaps"),
    ("renumber", renumber_unsorted, "any order"),
    ("top_k", listing, "two keys of each row"),
    ("top_k", after_the_softmax, "sums to one"),
    ("top_k", choose_then_hide, "among the keys that may be seen"),
    ("top_k", without_the_mask, "among the keys that may be seen"),
    ("top_k", equal_shares, "softmax of the two best"),
    ("top_k", lambda s, m, k: listing(s, m, k, -math.inf), "one key is enough|runs without"),
    ("top_k", listing_safe, "of equal scores"),
    ("whole_speed", lambda share, times: 1.0 + share, "changes nothing"),
    ("whole_speed", lambda share, times: 1.0 / (1.0 - share), "changes nothing"),
    ("whole_speed", lambda share, times: 1.0 - share + share * times, "takes no time"),
    ("whole_speed", lambda share, times: 1.0 + share - share / times, "takes no time"),
    ("really_smaller", fewer_nonzero, "half of its weights zero"),
    ("really_smaller", fewer_trainable, "frozen"),
    ("really_smaller", fewer_modules, "a head cut out"),
    ("really_smaller", fewer_saved, "a mask elsewhere"),
    ("really_smaller", says_something_else, "half of its weights zero"),
    ("really_smaller", lambda whole, pruned: "smaller", "True or False"),
]


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_right_answers_pass(name, answer):
    report = exercises.check(f"pruning.{name}", answer)
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, said):
    report = exercises.check(f"pruning.{name}", answer)
    assert not report.passed
    assert any(part in report.property for part in said.split("|")), report
    assert report.fed
    assert report.hint


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("pruning"):
        assert sum(f"pruning.{wrong[0]}" == name for wrong in WRONG) >= 3
