"""Right answers pass; typical wrong ones are told which property they lack."""

import pytest
import torch
import torch.nn.functional as F
from glassformer import exercises


def below(weights):
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1)


def token_before(weights, real):
    counts = real[:, 1:].to(weights.dtype)
    return (below(weights) * counts[:, None]).sum(dim=(0, 2)) / counts.sum()


def by_all_rows(weights, real):
    return below(weights).sum(dim=(0, 2)) / (weights.shape[0] * weights.shape[-1])


def with_padding(weights, real):
    return below(weights).mean(dim=(0, 2))


def divided_by_all_tokens(weights, real):
    counts = real[:, 1:].to(weights.dtype)
    return (below(weights) * counts[:, None]).sum(dim=(0, 2)) / real.sum()


def real_of_the_wrong_token(weights, real):
    counts = real[:, :-1].to(weights.dtype)
    return (below(weights) * counts[:, None]).sum(dim=(0, 2)) / counts.sum()


def mean_of_means(weights, real):
    counts = real[:, 1:].to(weights.dtype)
    by_sample = (below(weights) * counts[:, None]).sum(dim=2) / counts.sum(dim=1)[:, None]
    return by_sample.mean(dim=0)


def token_after(weights, real):
    return token_before(weights.mT, real)


def all_heads_in_one(weights, real):
    return token_before(weights, real).mean()


def induction(weights, p):
    return weights.diagonal(offset=1 - p, dim1=-2, dim2=-1)[..., 1:].mean(dim=(0, 2))


def same_token(weights, p):
    return weights.diagonal(offset=-p, dim1=-2, dim2=-1).mean(dim=(0, 2))


def before_it(weights, p):
    return weights.diagonal(offset=-1 - p, dim1=-2, dim2=-1).mean(dim=(0, 2))


def a_row_too_many(weights, p):
    return weights.diagonal(offset=1 - p, dim1=-2, dim2=-1).mean(dim=(0, 2))


def over_heads_too(weights, p):
    return induction(weights, p).mean()


def on_its_side(weights):
    def shares_out(dim):
        sums = weights.sum(dim=dim)
        return (((sums - 1).abs() < 0.03) | (sums == 0)).all()

    return bool(shares_out(-2) and not shares_out(-1))


def any_columns(weights):
    sums = weights.sum(dim=-2)
    return bool((((sums - 1).abs() < 0.03) | (sums == 0)).all())


def exact(weights):
    rows = weights.sum(dim=-1)
    return not bool(torch.isclose(rows, torch.ones_like(rows)).all())


def blind_is_wrong(weights):
    return bool(((weights.sum(dim=-1) - 1).abs() > 0.03).any())


def by_shape(weights):
    return weights.shape[-1] < weights.shape[-2]


def needs_four_axes(weights):
    return bool(((weights.sum(dim=2) - 1).abs() < 0.03).all())


def patches(weights, patch):
    row = weights[:, :, 0, 1:]
    n = round(row.shape[-1] ** 0.5)
    grid = row.unflatten(-1, (n, n)).repeat_interleave(patch, dim=-1)
    return grid.repeat_interleave(patch, dim=-2)


def of_mean_heads(weights, patch):
    return patches(weights.mean(dim=1, keepdim=True), patch)


def received(weights, patch):
    return patches(weights.mean(dim=-2, keepdim=True), patch)


def column_of_cls(weights, patch):
    return patches(weights.mT, patch)


def column_by_column(weights, patch):
    return patches(weights, patch).mT


def smooth(weights, patch):
    row = weights[:, :, 0, 1:].unflatten(-1, (5, 5))
    return F.interpolate(row, scale_factor=patch, mode="bilinear")


def cls_as_a_patch(weights, patch):
    return patches(weights.roll(1, dims=-1), patch)


def shares_of_patches(weights, patch):
    return patches(weights / weights[..., 1:].sum(dim=-1, keepdim=True), patch)


def arrives(weights, values, o_weight):
    of_head = o_weight.mT.unflatten(0, (values.shape[1], -1))
    return weights * (values @ of_head).norm(dim=-1)[:, :, None, :]


def values_alone(weights, values, o_weight):
    return weights * values.norm(dim=-1)[:, :, None, :]


def dealt_like_cards(weights, values, o_weight):
    of_head = o_weight.mT.unflatten(0, (-1, values.shape[1])).transpose(0, 1)
    return weights * (values @ of_head).norm(dim=-1)[:, :, None, :]


def not_transposed(weights, values, o_weight):
    if o_weight.shape[0] != o_weight.shape[1]:
        return arrives(weights, values, o_weight)
    return arrives(weights, values, o_weight.mT)


def squared(weights, values, o_weight):
    return weights * arrives(torch.ones_like(weights), values, o_weight) ** 2


RIGHT = {
    "token_before": [token_before],
    "induction": [induction],
    "on_its_side": [on_its_side],
    "patches": [patches],
    "arrives": [arrives],
}
WRONG = [
    ("token_before", by_all_rows, "scores 1"),
    ("token_before", all_heads_in_one, "scores 1"),
    ("token_before", with_padding, "rows of padding do not count"),
    ("token_before", real_of_the_wrong_token, "rows of padding do not count"),
    ("token_before", divided_by_all_tokens, "scores 1"),
    ("token_before", mean_of_means, "every token counts alike"),
    ("token_before", token_after, "scores 1"),
    ("induction", same_token, "looks at the same token"),
    ("induction", before_it, "looks at the token before its first time"),
    ("induction", a_row_too_many, "only tokens that have been there before"),
    ("induction", over_heads_too, "one number for each head"),
    ("on_its_side", any_columns, "each token looks at itself"),
    ("on_its_side", exact, "row that may see nothing"),
    ("on_its_side", blind_is_wrong, "row that may see nothing"),
    ("on_its_side", by_shape, "square weights, transposed"),
    ("on_its_side", lambda w: None, "True or False"),
    ("patches", lambda w, p: w.repeat_interleave(p, dim=-1), "20 by 20"),
    ("patches", of_mean_heads, "20 by 20"),
    ("patches", received, "it is [CLS] that asks"),
    ("patches", column_by_column, "line by line"),
    ("patches", smooth, "same value"),
    ("patches", column_of_cls, "every pixel has the share"),
    ("patches", cls_as_a_patch, "every pixel has the share"),
    ("patches", shares_of_patches, "every pixel has the share"),
    ("arrives", values_alone, "through the output matrix"),
    ("arrives", dealt_like_cards, "head h meets columns"),
    ("arrives", not_transposed, "multiplies by the transpose"),
    ("arrives", squared, "transpose of its weight"),
]


@pytest.mark.parametrize(
    ("name", "answer"), [(name, answer) for name, answers in RIGHT.items() for answer in answers]
)
def test_right_answers_pass(name, answer):
    report = exercises.check(f"visualization.{name}", answer)
    assert report.passed, str(report)


@pytest.mark.parametrize(("name", "answer", "told"), WRONG)
def test_wrong_answers_are_told_why(name, answer, told):
    report = exercises.check(f"visualization.{name}", answer)
    assert not report.passed
    assert told in str(report)
    assert "hint" in str(report)


def test_a_test_for_maps_must_take_any_number_of_axes():
    report = exercises.check("visualization.on_its_side", needs_four_axes)
    assert not report.passed


def test_every_exercise_is_tried_here():
    assert {f"visualization.{name}" for name in RIGHT} == set(
        exercises.exercises_of("visualization")
    )


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("visualization"):
        assert sum(f"visualization.{wrong[0]}" == name for wrong in WRONG) >= 3
