"""Codes: as near as promised, as small as promised, and nothing lost on the way."""

import pytest
import torch
from glassformer.errors import ConfigError, ShapeError
from glassformer.quantization import decode, encode, nf4_levels, pack_nibbles, unpack_nibbles
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

SCHEMES = ("int8", "int4", "int4_asymmetric", "nf4")


def decoded(weight, scheme, group_size=None):
    return decode(encode(weight, scheme, group_size=group_size), scheme, weight.shape[1])


def groups_of(weight, group_size):
    return weight.split(group_size or weight.shape[1], dim=1)


@given(
    st.sampled_from(SCHEMES),
    st.integers(1, 7),
    st.integers(1, 23),
    st.sampled_from((None, 1, 2, 5, 8)),
    st.sampled_from((1e-6, 1.0, 1e4)),
    st.integers(0, 99),
)
def test_no_weight_is_off_by_more_than_half_a_step(scheme, n_out, n_in, group_size, size, seed):
    torch.manual_seed(seed)
    weight = torch.randn(n_out, n_in) * size
    weight += torch.rand(n_out, 1) * size
    got = decoded(weight, scheme, group_size)
    assert got.shape == weight.shape
    for part, code in zip(groups_of(weight, group_size), groups_of(got, group_size), strict=True):
        largest = part.abs().amax(1, keepdim=True)
        bound = {
            "int8": largest / 127 / 2,
            "int4": largest / 7 / 2,
            "int4_asymmetric": (part.amax(1, keepdim=True) - part.amin(1, keepdim=True)) / 15 / 2,
            "nf4": largest * nf4_levels().diff().max() / 2,
        }[scheme]
        assert ((part - code).abs() <= bound + largest * 1e-6).all()


def test_int8_by_hand():
    weight = torch.tensor([[-2.54, 0.02, 1.0], [0.0, 127.0, -0.6]])
    kept = encode(weight, "int8")
    assert_close(kept.scale, torch.tensor([[0.02], [1.0]]))
    assert kept.codes.tolist() == [[0, 128, 177], [127, 254, 126]]
    assert_close(decode(kept, "int8", 3), torch.tensor([[-2.54, 0.02, 1.0], [0.0, 127.0, -1.0]]))


def test_four_bits_by_hand():
    weight = torch.tensor([[-7.0, 3.2, 0.0, 30.0, 12.0]])
    symmetric = encode(weight, "int4", group_size=3)
    assert symmetric.codes.shape == (1, 3)
    assert unpack_nibbles(symmetric.codes).tolist() == [[0, 10, 7, 14, 10, 10]]
    assert_close(symmetric.scale, torch.tensor([[1.0, 30 / 7]]))
    asymmetric = encode(weight, "int4_asymmetric", group_size=3)
    assert unpack_nibbles(asymmetric.codes).tolist() == [[0, 15, 10, 15, 0, 0]]
    assert asymmetric.low.tolist() == [[-7.0, 12.0]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_do_not_disturb_each_other(scheme):
    weight = torch.randn(3, 11)
    louder = weight.clone()
    louder[1] *= 1000
    assert torch.equal(decoded(weight, scheme)[[0, 2]], decoded(louder, scheme)[[0, 2]])
    assert not torch.equal(decoded(weight, scheme)[1], decoded(louder, scheme)[1])


def test_narrower_groups_are_closer():
    weight = torch.randn(7, 64) * torch.rand(64).mul(3).exp()
    for scheme in SCHEMES:
        errors = [(decoded(weight, scheme, g) - weight).square().mean() for g in (64, 16, 4)]
        assert errors[0] > errors[1] > errors[2]


def test_each_kind_of_weights_has_its_best_code():
    normal, lopsided = torch.randn(7, 640), torch.rand(7, 640) + 1
    error = {
        (scheme, name): (decoded(weight, scheme, 64) - weight).square().mean()
        for scheme in SCHEMES
        for name, weight in (("normal", normal), ("lopsided", lopsided))
    }
    assert error["nf4", "normal"] < error["int4", "normal"]
    assert error["int4_asymmetric", "lopsided"] < error["int4", "lopsided"] / 4
    assert error["int8", "normal"] < error["nf4", "normal"] / 20


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("value", [0.0, -3.0])
def test_equal_weights_come_back(scheme, value):
    weight = torch.full((2, 5), value)
    assert_close(decoded(weight, scheme, 3), weight)


@pytest.mark.parametrize("scheme", ["int8", "int4", "nf4"])
def test_zero_stays_zero(scheme):
    weight = torch.randn(3, 13)
    weight[:, ::3] = 0
    assert (decoded(weight, scheme, 5)[:, ::3] == 0).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_coding_twice_changes_nothing_more(scheme):
    once = decoded(torch.randn(3, 13), scheme, 5)
    assert_close(decoded(once, scheme, 5), once)


def test_levels_are_those_of_the_paper():
    printed = [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]  # Dettmers et al. 2023, appendix E
    assert_close(nf4_levels(), torch.tensor(printed), atol=1e-6, rtol=0)


def test_levels_are_nobodys_to_change():
    nf4_levels().zero_()
    assert nf4_levels().abs().sum() > 0


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_packing_is_undone(rows, n, seed):
    torch.manual_seed(seed)
    codes = torch.randint(0, 16, (rows, n), dtype=torch.uint8)
    packed = pack_nibbles(codes)
    assert packed.shape == (rows, (n + 1) // 2)
    assert torch.equal(unpack_nibbles(packed)[:, :n], codes)


def test_two_codes_in_a_byte():
    assert pack_nibbles(torch.tensor([[3, 10, 15]], dtype=torch.uint8)).tolist() == [[163, 15]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    weight = torch.randn(3, 8).to(dtype)
    assert_close(decoded(weight, "int8"), weight.float(), atol=0.02, rtol=0)


@pytest.mark.parametrize("weight", [torch.zeros(3, 0), torch.tensor([[1.0, float("nan")]])])
def test_weights_that_have_no_codes(weight):
    with pytest.raises(ShapeError, match="must have values, all of them finite"):
        encode(weight, "int8")


def test_unknown_choices(no_shape_checks):
    weight = torch.randn(2, 3)
    with pytest.raises(ConfigError, match="scheme='int3' is unknown; it may be int8, int4"):
        encode(weight, "int3")
    with pytest.raises(ConfigError, match="group_size=0 must be at least 1"):
        encode(weight, "nf4", group_size=0)
