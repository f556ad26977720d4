"""Sliding windows: every target is in a window, and counted as new exactly once."""

import math

import pytest
import torch
from glassformer.data import count_windows, windows
from glassformer.errors import DataError
from hypothesis import given
from hypothesis import strategies as st


def test_targets_are_the_inputs_one_step_on():
    views = windows(range(100, 123), length=7, stride=5)
    assert views.starts == [0, 5, 10, 15]
    assert views[1].inputs.tolist() == [105, 106, 107, 108, 109, 110, 111]
    assert views[1].targets.tolist() == [106, 107, 108, 109, 110, 111, 112]
    assert [view.n_new for view in views] == [7, 5, 5, 5]


def test_the_last_window_ends_with_the_text():
    """Nothing is lost: the last window moves back, and only its new targets count."""
    views = windows(range(24), length=7, stride=5)
    assert views.starts == [0, 5, 10, 15, 16]
    assert views[4].targets.tolist() == [17, 18, 19, 20, 21, 22, 23]
    assert [view.n_new for view in views] == [7, 5, 5, 5, 1]
    assert views[-1].n_new == 1


def test_a_text_shorter_than_a_window_gives_one_shorter_window():
    views = windows([5, 6, 7], length=11, stride=4)
    assert len(views) == 1
    assert views[0].inputs.tolist() == [5, 6]
    assert views[0].targets.tolist() == [6, 7]
    assert views[0].n_new == 2


sizes = st.tuples(st.integers(2, 97), st.integers(1, 23), st.integers(1, 23)).filter(
    lambda sizes: sizes[2] <= sizes[1]
)


@given(sizes)
def test_every_target_is_new_exactly_once_for_any_stride(sizes):
    n_ids, length, stride = sizes
    views = windows(torch.arange(n_ids), length, stride)
    new = [t for view in views for t in view.targets[-view.n_new :].tolist()]
    assert new == list(range(1, n_ids))
    assert all(len(view.inputs) == min(length, n_ids - 1) for view in views)
    assert all(view.n_new >= 1 for view in views)


@given(sizes)
def test_the_formula_counts_the_windows(sizes):
    n_ids, length, stride = sizes
    views = windows(range(n_ids), length, stride)
    assert len(views) == len(list(views)) == count_windows(n_ids, length, stride)
    assert len(views) == max(1, 1 + math.ceil((n_ids - 1 - length) / stride))


def test_batch_stacks_windows():
    views = windows(range(53), length=7, stride=3)
    inputs, targets = views.batch([4, 0, -1])
    assert inputs.dtype == targets.dtype == torch.int64
    for row, index in enumerate([4, 0, -1]):
        assert torch.equal(inputs[row], views[index].inputs)
        assert torch.equal(targets[row], views[index].targets)
    with pytest.raises(IndexError):
        views[len(views)]


@pytest.mark.parametrize("stride", [0, -1, 8])
def test_a_stride_that_stands_still_or_skips_is_refused(stride):
    with pytest.raises(DataError, match=f"stride={stride} must be between 1 and length=7"):
        windows(range(53), length=7, stride=stride)


@pytest.mark.parametrize("ids", [[], [5]])
def test_too_few_ids_are_refused(ids):
    with pytest.raises(DataError, match=f"{len(ids)} token ids; .* at least 2"):
        windows(ids, length=7, stride=7)


def test_other_bad_input_is_refused():
    with pytest.raises(DataError, match="length=0 must be at least 1"):
        windows(range(5), length=0, stride=1)
    for ids in (torch.zeros(3, 5, dtype=torch.int64), torch.zeros(11), torch.ones(5).bool()):
        with pytest.raises(DataError, match="one flat list of whole numbers"):
            windows(ids, length=2, stride=1)
