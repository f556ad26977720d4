"""Masks: True = may attend, one comparison each, and no test that a flipped mask would pass."""

import pytest
import torch
from glassformer.errors import MaskError
from glassformer.functional import (
    causal_mask,
    combine_masks,
    padding_mask,
    sliding_window_mask,
    token_mask_from_lengths,
)
from support.core import as_mask

# mask function, arguments, the pattern with 1 = may attend
PATTERNS = [
    pytest.param(causal_mask, (4,), {}, ["1...", "11..", "111.", "1111"], id="square"),
    pytest.param(causal_mask, (2, 4), {}, ["111.", "1111"], id="two cached keys"),
    pytest.param(causal_mask, (1, 5), {}, ["11111"], id="one query"),
    pytest.param(causal_mask, (5, 2), {}, ["..", "..", "..", "1.", "11"], id="more queries"),
    pytest.param(causal_mask, (2, 5), {"offset": 1}, ["11...", "111.."], id="offset"),
    pytest.param(
        causal_mask, (2, 5), {"offset": torch.tensor(2)}, ["111..", "1111."], id="tensor offset"
    ),
    pytest.param(sliding_window_mask, (4, 2), {}, ["1...", "11..", ".11.", "..11"], id="window"),
    pytest.param(sliding_window_mask, (3, 1), {}, ["1..", ".1.", "..1"], id="window of one"),
    pytest.param(sliding_window_mask, (1, 4, 7), {}, ["...1111"], id="window and cache"),
    pytest.param(
        sliding_window_mask, (2, 3, 7), {"offset": 3}, [".111...", "..111.."], id="window, offset"
    ),
    pytest.param(
        token_mask_from_lengths, (torch.tensor([3, 1, 0]),), {}, ["111", "1..", "..."], id="lengths"
    ),
    pytest.param(
        token_mask_from_lengths, (torch.tensor([2, 1]), 5), {}, ["11...", "1...."], id="max_len"
    ),
]


@pytest.mark.parametrize(("function", "args", "options", "pattern"), PATTERNS)
def test_pattern(function, args, options, pattern):
    mask = function(*args, **options)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, as_mask(*pattern))
    assert not torch.equal(~mask, as_mask(*pattern))


def test_M13_the_strict_upper_triangle_is_hidden():
    """Also after a cast to numbers and back, which once came out transposed."""
    mask = causal_mask(4)
    future = torch.ones(4, 4).triu(1).bool()
    for seen in (mask, mask.float().bool(), mask.to(torch.uint8).bool()):
        assert torch.equal(~seen, future)
    assert mask[0].tolist() == [True, False, False, False]


def test_G20_window_of_a_lone_query():
    """Ten keys, window 4: the shortcut for single tokens is bounded as well."""
    assert sliding_window_mask(1, 4, 10).tolist() == [[False] * 6 + [True] * 4]


def test_a_window_of_all_keys_is_causal():
    assert torch.equal(sliding_window_mask(5, 7, 7), causal_mask(5, 7))


def test_padding_mask_hides_keys_from_everyone():
    token_mask = as_mask("11.", "1..")
    mask = padding_mask(token_mask)
    assert mask.shape == (2, 1, 1, 3)
    everyone = mask.expand(2, 5, 7, 3)
    assert everyone[0, :, :, :2].all()
    assert not everyone[0, :, :, 2].any()
    assert not everyone[1, :, :, 1:].any()


def test_combine_masks_allows_what_all_allow():
    causal, padding = causal_mask(3), padding_mask(as_mask("11.", ".11"))
    both = combine_masks(None, causal, None, padding)
    assert torch.equal(both[0, 0], as_mask("1..", "11.", "11."))
    assert torch.equal(both[1, 0], as_mask("...", ".1.", ".11"))
    assert combine_masks(None, None) is None
    assert combine_masks() is None
    assert combine_masks(None, causal) is causal


def test_masks_are_made_where_asked():
    for mask in (causal_mask(3, 5, device="meta"), sliding_window_mask(3, 2, device="meta")):
        assert mask.device.type == "meta"


@pytest.mark.parametrize("window", [0, -2])
def test_window_that_hides_the_token_itself(window):
    with pytest.raises(MaskError, match=f"window={window} hides even the token itself.*at least 1"):
        sliding_window_mask(3, window)
