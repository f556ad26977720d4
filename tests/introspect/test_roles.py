"""Roles counted by hand on maps that have one."""

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.introspect import capture_attention, head_roles
from glassformer.nn import MultiHeadAttention


def pointing(places):
    """Maps (2, 1, T, T) of a head that gives all to one place, the same in both samples."""
    rows = torch.nn.functional.one_hot(torch.tensor(places), len(places)).float()
    return rows.expand(2, 1, -1, -1)


def test_each_role_has_its_head():
    heads = {
        "previous token": pointing([0, 0, 1, 2, 3, 4]),
        "next token": pointing([1, 2, 3, 4, 5, 5]),
        "itself": pointing([0, 1, 2, 3, 4, 5]),
        "first token": pointing([3, 0, 0, 0, 0, 0]),
        "separator": pointing([5, 5, 5, 5, 5, 5]),
        "induction": pointing([0, 0, 0, 1, 2, 3]),  # tokens 0 to 2 come again at 3 to 5
    }
    every = torch.cat(list(heads.values()), dim=1)
    separators = torch.zeros(2, 6, dtype=torch.bool)
    separators[:, 5] = True
    roles = head_roles({"a": every, "b": every.flip(1)}, separators=separators, period=3)
    assert list(roles) == list(heads)
    for place, (role, shares) in enumerate(roles.items()):
        assert shares.shape == (2, 6)
        assert shares[0, place] == 1, role
        assert shares[1, 5 - place] == 1, role
        others = [i for i in range(6) if i != place]
        assert shares[0, others].max() < 1, role


def test_shares_are_means_over_rows_and_batch():
    torch.manual_seed(0)
    maps = torch.randn(3, 5, 7, 7).softmax(dim=-1)
    separators = torch.rand(3, 7) < 0.4
    roles = head_roles({"only": maps}, separators=separators, period=4)
    previous = sum(maps[:, :, t, t - 1] for t in range(1, 7)) / 6
    torch.testing.assert_close(roles["previous token"][0], previous.mean(dim=0))
    induction = sum(maps[:, :, t, t - 3] for t in range(4, 7)) / 3
    torch.testing.assert_close(roles["induction"][0], induction.mean(dim=0))
    marked = sum(maps[b, :, :, separators[b]].sum(dim=-1).mean(dim=-1) for b in range(3)) / 3
    torch.testing.assert_close(roles["separator"][0], marked)


def test_what_capture_attention_gives_can_be_counted():
    layer = MultiHeadAttention(10, 5)
    with capture_attention(layer) as maps:
        layer(torch.randn(2, 3, 10))
    roles = head_roles(maps)
    assert set(roles) == {"previous token", "next token", "itself", "first token"}
    assert roles["itself"].shape == (1, 5)


def test_bad_arguments():
    maps = torch.rand(2, 3, 4, 4)
    with pytest.raises(ShapeError, match="at least one layer"):
        head_roles({})
    with pytest.raises(ShapeError, match="one shape"):
        head_roles({"a": maps, "b": maps[:, :2]})
    with pytest.raises(ShapeError, match="self-attention"):
        head_roles({"a": torch.rand(2, 3, 1, 1)})
    for period in (0, 4):
        with pytest.raises(ShapeError, match=f"period={period}"):
            head_roles({"a": maps}, period=period)
