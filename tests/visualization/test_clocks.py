"""Clocks to wind: right hands, what stays while they turn, the same bytes, no other host."""

import re

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.functional import sinusoidal_positions
from glassformer.visualization import position_clocks


def hands(explorer, name):
    """(clocks, 2): how far right and how far up each hand of a kind points, of length one."""
    found = re.findall(rf'class="{name}" x1="50" y1="50" x2="([\d.]+)" y2="([\d.]+)"', explorer)
    points = torch.tensor([[float(x) - 50, 50 - float(y)] for x, y in found])
    return points / points.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(("position", "shift"), [(0, 0), (3, 1), (250, 24)])
def test_hands_are_the_sinusoids(position, shift):
    explorer = position_clocks(8, position=position, shift=shift)
    codes = sinusoidal_positions(torch.tensor([position, position + shift]), 8)
    for name, code in zip(("here", "there"), codes, strict=True):
        shown = hands(explorer._repr_html_(), name)
        torch.testing.assert_close(shown, code.unflatten(0, (4, 2)), atol=5e-3, rtol=0)
    assert repr(explorer).endswith(f"dot product of the two codes {float(codes[0] @ codes[1]):.3f}")


def test_angles_between_and_product_depend_on_the_shift_alone():
    near, far = (position_clocks(position=p, shift=5)._repr_html_() for p in (2, 700))
    for pattern in (r'class="between">([\d.]+)', r'class="product">([\d.-]+)'):
        assert re.findall(pattern, near) == re.findall(pattern, far) != []
    assert re.findall(r'class="angle">(\d+)', near) != re.findall(r'class="angle">(\d+)', far)


def test_equal_arguments_give_equal_bytes_and_others_another_id():
    one, two, other = position_clocks(), position_clocks(), position_clocks(shift=2)
    assert one._repr_html_() == two._repr_html_()
    ids = {re.search(r'id="(clocks-\w+)"', e._repr_html_())[1] for e in (one, other)}
    assert len(ids) == 2


def test_nothing_is_loaded_and_every_part_has_a_name():
    markup = position_clocks(12)._repr_html_()
    assert "http" not in markup
    assert "src=" not in markup
    assert markup.count('role="img" aria-label=') == 6
    assert len(re.findall(r'<input type="range"[^>]*aria-label="\w', markup)) == 2


def test_bad_arguments():
    for width in (7, 0, 14):
        with pytest.raises(ShapeError, match=f"d_model={width}"):
            position_clocks(width)
    with pytest.raises(ShapeError, match="position=1000"):
        position_clocks(position=1000)
    with pytest.raises(ShapeError, match="shift=-1"):
        position_clocks(shift=-1)
