"""The query to turn: right shares, safe labels, the same bytes, no other host."""

import re

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.visualization import query_compass

KEYS = {"river": 10.0, "money": 130.0, "the": 270.0}


def shown_shares(explorer):
    found = re.findall(r'class="share"[^>]*>([\d.]+)<', explorer._repr_html_())
    return [float(share) for share in found]


def test_first_shares_are_attention():
    explorer = query_compass(KEYS, angle=20, length=4)
    turned = torch.deg2rad(torch.tensor(list(KEYS.values())))
    keys = torch.stack([turned.cos(), turned.sin()], dim=-1)
    query = 4 * torch.stack([torch.deg2rad(torch.tensor(20.0)).cos(), torch.tensor(0.34202)])
    expected = (keys @ query / 2**0.5).softmax(dim=0)
    torch.testing.assert_close(torch.tensor(shown_shares(explorer)), expected, atol=6e-3, rtol=0)
    assert repr(explorer).startswith("query at 20°, length 4: river 0.9")


def test_a_query_of_length_zero_is_undecided():
    assert shown_shares(query_compass(KEYS, length=0)) == [0.33, 0.33, 0.33]


def test_equal_arguments_give_equal_bytes_and_others_another_id():
    one, two = query_compass(KEYS), query_compass(KEYS)
    assert one._repr_html_() == two._repr_html_()
    ids = {
        re.search(r'id="(compass-\w+)"', e._repr_html_())[1]
        for e in (one, query_compass(KEYS, angle=31))
    }
    assert len(ids) == 2


def test_labels_are_text_and_nothing_is_loaded():
    markup = query_compass({"<b>&": 0.0}, name="<i>")._repr_html_()
    assert "<b>" not in markup
    assert "<i>" not in markup
    assert "&lt;b&gt;&amp;" in markup
    assert "http" not in markup
    assert "src=" not in markup


def test_bad_arguments():
    with pytest.raises(ShapeError, match="at least one key"):
        query_compass({})
    with pytest.raises(ShapeError, match="length=41"):
        query_compass(KEYS, length=41)
