"""Relative positions: buckets by hand, distances only, one table for all layers, caches."""

import pytest
import torch
from glassformer.errors import ConfigError
from glassformer.functional import relative_position_buckets
from glassformer.nn import RelativePositionBias
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config


def buckets(distances, **options):
    return relative_position_buckets(torch.tensor(distances), **options).tolist()


def test_near_distances_have_a_bucket_each():
    looking_back = buckets([0, -1, -2, -3, 5], n_buckets=8, max_distance=32, bidirectional=False)
    assert looking_back == [0, 1, 2, 3, 0]  # what lies ahead counts as distance 0


def test_far_distances_share_buckets_by_their_logarithm():
    # 4 exact buckets, then 4 for distances 4 to 64: a factor of two each
    far = buckets([-4, -7, -8, -15, -16, -32, -64, -999], n_buckets=8, max_distance=64,
                  bidirectional=False)  # fmt: skip
    assert far == [4, 4, 5, 5, 6, 7, 7, 7]


def test_both_directions_have_half_of_the_buckets():
    assert buckets([-2, -1, 0, 1, 2, 99], n_buckets=8, max_distance=16) == [2, 1, 0, 5, 6, 7]


def test_all_buckets_are_used_and_no_other():
    for bidirectional in (True, False):
        used = relative_position_buckets(
            torch.arange(-200, 201), n_buckets=32, max_distance=128, bidirectional=bidirectional
        )
        # bucket 16 would be "ahead by 0", which there is none of
        expected = set(range(32)) - ({16} if bidirectional else set())
        assert set(used.tolist()) == expected


@pytest.mark.parametrize(
    ("n_buckets", "max_distance", "bidirectional"),
    [(2, 128, True), (1, 128, False), (8, 4, False), (8, 2, True), (8, 1, False)],
)
def test_buckets_that_do_not_reach_are_refused(n_buckets, max_distance, bidirectional):
    """With 8 buckets and max_distance 4, -5 would get the bucket log(1.25) / log(1) of them."""
    with pytest.raises(ConfigError, match="at least 2, and max_distance above half of them"):
        buckets([-5, 0], n_buckets=n_buckets, max_distance=max_distance,
                bidirectional=bidirectional)  # fmt: skip


def test_the_bias_depends_on_the_distance_alone():
    relative = RelativePositionBias(3, n_buckets=8, max_distance=11)
    torch.nn.init.normal_(relative.weight)
    bias = relative(5, 7)
    assert bias.shape == (1, 3, 5, 7)
    assert torch.equal(bias[..., :-1, :-1], bias[..., 1:, 1:])
    assert torch.equal(relative(2, 7, offset=3), bias[..., 3:, :])
    assert torch.equal(relative(2, 7, offset=torch.tensor(3)), bias[..., 3:, :])


def test_one_table_serves_all_layers_and_no_cross_attention():
    names = {
        name for name, _ in scrambled(translator_config(positions="relative")).named_parameters()
    }
    assert {name for name in names if "relative" in name} == {
        "encoder.relative.weight",
        "decoder.relative.weight",
    }


@pytest.mark.parametrize("static", [False, True])
def test_a_cache_changes_nothing(static):
    model = scrambled(decoder_config(positions="relative", relative_buckets=6))
    tokens = ids(2, 13)
    cache = model.new_cache(static=static, batch_size=2, max_len=17)
    steps = [model(part, cache=cache) for part in tokens.split([5, 1, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(tokens))


def test_padding_on_either_side_changes_nothing():
    model = scrambled(encoder_config(positions="relative", relative_buckets=6))
    tokens = ids(1, 7)
    alone = model(tokens)
    padding, real = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 7, dtype=torch.bool)
    for left in (True, False):
        order = (padding, tokens) if left else (tokens, padding)
        marks = (padding.bool(), real) if left else (real, padding.bool())
        padded = model(torch.cat(order, dim=1), token_mask=torch.cat(marks, dim=1))
        torch.testing.assert_close(padded[:, 4:] if left else padded[:, :7], alone)
