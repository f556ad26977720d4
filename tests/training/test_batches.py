"""Windows and pairs in shuffled batches."""

import pytest
import torch
from glassformer.data import PairExamples, windows
from glassformer.errors import DataError
from glassformer.training import Batch, PairBatches, TrainingData, WindowBatches
from support.runs import pair_data, reversals, token_ids, window_data


def test_every_window_once_an_epoch_in_a_new_order():
    data = window_data()
    orders = [data.epoch(e) for e in range(2)]
    for order in orders:
        assert sorted(i for batch in order for i in batch) == list(range(len(data.windows)))
        assert len(order) == len(data)
    assert orders[0] != orders[1]
    assert window_data().epoch(1) == orders[1]


def test_a_batch_is_its_windows():
    data = window_data()
    batch = data.load([2, 0, 5])
    assert torch.equal(batch.inputs[1], data.windows[0].inputs)
    assert torch.equal(batch.targets[2], data.windows[5].targets)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])


@pytest.mark.parametrize(
    "changes", [{"length": 12}, {"stride": 6}, {"batch_size": 4}, {"seed": 6}, {"n": 212}]
)
def test_the_fingerprint_tells_data_apart(changes):
    assert window_data().fingerprint == window_data().fingerprint
    assert window_data(**changes).fingerprint != window_data().fingerprint


def test_a_batch_moves_whole():
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    mask = torch.ones(2, 3, dtype=torch.bool)
    batch = Batch(tokens, tokens, mask, tokens, mask).to(torch.device("meta"))
    assert all(
        x.device.type == "meta"
        for x in (batch.inputs, batch.targets, batch.target_mask, batch.source, batch.source_mask)
    )
    assert Batch(tokens, tokens).to(torch.device("cpu")).source is None


def test_refuses_an_empty_batch():
    with pytest.raises(DataError, match="batch_size=0"):
        WindowBatches(windows(token_ids(), 11, 7), 0)


def test_every_pair_once_an_epoch_in_a_new_order_within_the_budget():
    data = pair_data()
    assert isinstance(data, TrainingData)
    orders = [data.epoch(e) for e in range(2)]
    for order in orders:
        assert sorted(i for batch in order for i in batch) == list(range(37))
        for indices in order:
            batch = data.load(indices)
            assert batch.source.numel() + batch.inputs.numel() <= 53
    assert orders[0] != orders[1]
    assert pair_data().epoch(1) == orders[1]


def test_a_batch_of_pairs_by_hand():
    examples = PairExamples([[7, 8, 3], [9, 3]], [[5, 3], [4, 6, 7, 3]])
    batch = PairBatches(examples, 99, pad_id=0, bos_id=2).load([1, 0])
    assert batch.source.tolist() == [[9, 3, 0], [7, 8, 3]]
    assert batch.inputs.tolist() == [[2, 4, 6, 7], [2, 5, 0, 0]]
    assert batch.targets.tolist() == [[4, 6, 7, 3], [5, 3, 0, 0]]
    assert batch.source_mask.sum(dim=1).tolist() == [2, 3]
    assert batch.target_mask.sum(dim=1).tolist() == [4, 2]


def test_the_fingerprint_tells_pairs_apart():
    one, other = reversals(), reversals()
    assert pair_data(examples=one).fingerprint == pair_data(examples=other).fingerprint
    other.targets[3][0] += 1
    moved = PairExamples(one.sources[::-1], one.targets[::-1])
    seen = {
        pair_data(**changes).fingerprint
        for changes in (
            {},
            {"seed": 6},
            {"max_tokens": 54},
            {"n": 36},
            {"examples": other},
            {"examples": moved},
        )
    }
    assert len(seen) == 6
