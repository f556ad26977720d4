"""Tables read in both directions: every step undoes itself, every part finds its place."""

import pytest
import torch
from glassformer.functional import apply_rotary, rotary_angles
from glassformer.interop._tables import (
    TRANSPOSED,
    Link,
    alternate_halves,
    both,
    flattened,
    fused,
    half_split,
    layers,
    names_and_shapes,
    scaled,
    skip_rows,
    to_ours,
    to_theirs,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

EXACT = {
    "transposed": (TRANSPOSED, (7, 11)),
    "scaled": (scaled(0.25), (7, 11)),
    "flattened": (flattened(1, 7), (1, 7)),
    "half_split": (half_split(3), (30, 7)),
    "half_split of a bias": (half_split(3), (30,)),
    "alternate rows": (alternate_halves(0), (14, 11)),
    "alternate columns": (alternate_halves(1), (11, 14)),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_step_and_its_inverse_give_the_tensor_back(name):
    step, shape = EXACT[name]
    theirs = torch.randn(shape)
    ours = step.to_ours(theirs)
    assert torch.equal(step.to_theirs(ours), theirs)
    assert ours.shape != theirs.shape or not torch.equal(ours, theirs)


def test_a_scale_that_is_no_power_of_two_comes_back_to_one_rounding():
    step, theirs = scaled(7**0.5), torch.randn(1009)
    assert_close(step.to_theirs(step.to_ours(theirs)), theirs, atol=0, rtol=2**-23)


def test_rows_that_no_token_reads_come_back_as_zeros():
    step, theirs = skip_rows(2), torch.randn(7, 3)
    assert torch.equal(step.to_ours(theirs), theirs[2:])
    back = step.to_theirs(step.to_ours(theirs))
    assert torch.equal(back[2:], theirs[2:])
    assert not back[:2].any()


def test_alternate_halves_puts_sines_and_cosines_in_turn():
    assert alternate_halves(0).to_ours(torch.arange(6)).tolist() == [0, 3, 1, 4, 2, 5]


def interleaved_rotary(x, position, base=10_000.0):
    """Neighbouring pairs as complex numbers, turned: a second way to do it."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    n = pairs.shape[-1]
    angles = position * base ** (-torch.arange(n) / n)
    turned = pairs * torch.polar(torch.ones(n), angles)
    return torch.view_as_real(turned).flatten(-2)


def half_split_rotary(x, position):
    cos, sin = rotary_angles(torch.tensor([position]), x.shape[-1])
    return apply_rotary(x.view(1, 1, 1, -1), cos, sin).flatten()


def test_E11_the_two_rotary_layouts_have_the_values_of_their_definitions():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    neighbours = torch.tensor([-1.14264, 1.92208, 2.95985, 4.02980])
    halves = torch.tensor([-1.98411, 1.95990, 2.46238, 4.01980])
    assert_close(interleaved_rotary(x, 1), neighbours, atol=1e-5, rtol=0)
    assert_close(half_split_rotary(x, 1), halves, atol=1e-5, rtol=0)
    # the step takes vectors of the one layout to the other, before and after the turn
    step = half_split(1)
    assert_close(step.to_ours(neighbours), half_split_rotary(step.to_ours(x), 1))
    assert_close(step.to_theirs(halves), interleaved_rotary(step.to_theirs(x), 1))


def test_E11_scores_agree_once_queries_and_keys_are_permuted_in_either_direction():
    """Weights of the neighbouring layout (Meta's files) for two query heads, and back again."""
    n_heads, d_head, d_model = 2, 6, 5
    w_q, w_k = torch.randn(2, n_heads * d_head, d_model)
    x, y = torch.randn(2, d_model)
    step = half_split(n_heads)

    def scores(rotate, q_weight, k_weight):
        q, k = (q_weight @ x).view(n_heads, -1), (k_weight @ y).view(n_heads, -1)
        return torch.stack([rotate(a, 5) @ rotate(b, 3) for a, b in zip(q, k, strict=True)])

    want = scores(interleaved_rotary, w_q, w_k)
    assert_close(scores(half_split_rotary, step.to_ours(w_q), step.to_ours(w_k)), want)
    mixed = scores(half_split_rotary, w_q, w_k)
    assert (mixed - want).abs().max() > 0.1
    # and from our layout to theirs
    want = scores(half_split_rotary, w_q, w_k)
    assert_close(scores(interleaved_rotary, step.to_theirs(w_q), step.to_theirs(w_k)), want)


def test_parts_of_one_tensor_go_apart_and_together_again():
    """Grouped heads: the parts need not be of one size, and may stand side by side in columns."""
    theirs = {"qkv": torch.arange(50.0).view(10, 5), "side": torch.arange(12.0).view(2, 6)}
    table = [
        *fused("qkv", {"q": 6, "k": 2, "v": 2}),
        *fused("side", {"gate": 4, "up": 2}, TRANSPOSED, dim=1),
    ]
    ours = to_ours(theirs, table)
    assert ours["k"].tolist() == theirs["qkv"][6:8].tolist()
    assert ours["up"].tolist() == theirs["side"][:, 4:].T.tolist()
    back = to_theirs(ours, table)
    assert all(torch.equal(back[name], theirs[name]) for name in theirs)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 1))
def test_any_cut_comes_back(sizes, dim):
    shape = [7, 7]
    shape[dim] = sum(sizes)
    theirs = {"whole": torch.randn(shape)}
    table = fused("whole", {str(i): size for i, size in enumerate(sizes)}, TRANSPOSED, dim=dim)
    assert torch.equal(to_theirs(to_ours(theirs, table), table)["whole"], theirs["whole"])


def test_a_layer_is_written_out_for_every_number():
    table = layers("blocks.{i}", "h.{i}.mlp", 2, both("up", "fc", bias=False))
    assert table == [
        Link("blocks.0.up.weight", "h.0.mlp.fc.weight"),
        Link("blocks.1.up.weight", "h.1.mlp.fc.weight"),
    ]


def test_shapes_are_known_without_numbers():
    ours = {"q": torch.empty(6, 5, device="meta"), "k": torch.empty(2, 5, device="meta")}
    table = fused("qk", {"q": 6, "k": 2}, half_split(1))
    assert names_and_shapes(ours, table) == {"qk": (8, 5)}
