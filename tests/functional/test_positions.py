"""Positions: values worked out by hand, exact phases in every dtype."""

import math

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.functional import (
    alibi_bias,
    alibi_slopes,
    apply_rotary,
    rotary_angles,
    sinusoidal_positions,
)
from torch.testing import assert_close


class TestSinusoids:
    def test_E02_one_pair_shares_a_frequency(self):
        table = sinusoidal_positions(torch.tensor([1]), 4)
        want = torch.tensor([[0.84147098, 0.54030231, 0.00999983, 0.99995]])
        assert_close(table, want, atol=1e-7, rtol=0)

    def test_formula(self):
        table = sinusoidal_positions(torch.arange(7), 6)
        for p in range(7):
            for i in range(3):
                angle = p / 10_000 ** (2 * i / 6)
                assert table[p, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
                assert table[p, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)

    def test_positions_of_each_row(self):
        positions = torch.tensor([[0, 1, 2], [4, 0, 1]])
        table = sinusoidal_positions(positions, 8)
        assert table.shape == (2, 3, 8)
        assert torch.equal(table[1, 0], sinusoidal_positions(torch.tensor(4), 8))
        assert torch.equal(table[1, 1:], table[0, :2])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_P04_default_dtype_does_not_touch_the_phase(self, dtype):
        """Computed in half precision the error would be about 1."""
        want = sinusoidal_positions(torch.arange(2048), 64)
        torch.set_default_dtype(dtype)
        try:
            got = sinusoidal_positions(torch.arange(2048), 64)
        finally:
            torch.set_default_dtype(torch.float32)
        assert got.dtype == torch.float32
        assert torch.equal(got, want)
        bound = {torch.float16: 5e-3, torch.bfloat16: 1e-2}[dtype]
        assert (got.to(dtype).float() - want).abs().max() < bound  # cast last

    def test_odd_width(self):
        with pytest.raises(ShapeError, match="a width of 5 cannot be split into pairs"):
            sinusoidal_positions(torch.arange(3), 5)


class TestRotary:
    def test_E11_values_of_the_half_split_layout(self):
        x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
        cos, sin = rotary_angles(torch.tensor([1]), 4)
        want = torch.tensor([-1.98411, 1.95990, 2.46238, 4.01980])
        assert_close(apply_rotary(x, cos, sin)[0, 0, 0], want, atol=1e-5, rtol=0)

    def test_E11_interleaved_layout_needs_a_permutation(self):
        """Once query and key dimensions are permuted, both layouts score alike."""
        q, k = torch.randn(2, 1, 1, 5, 8).double()
        cos, sin = rotary_angles(torch.arange(5), 8)

        def interleaved(x, cos=cos, sin=sin):
            even, odd = x[..., 0::2], x[..., 1::2]
            pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
            return pairs.flatten(-2)

        by_hand = torch.tensor([[-1.14264, 1.92208, 2.95985, 4.02980]])
        got = interleaved(
            torch.tensor([[1.0, 2.0, 3.0, 4.0]]), *rotary_angles(torch.tensor([1]), 4)
        )
        assert_close(got, by_hand, atol=1e-5, rtol=0)
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        want = interleaved(q) @ interleaved(k).mT
        turned = apply_rotary(q[..., order], cos, sin) @ apply_rotary(k[..., order], cos, sin).mT
        assert_close(turned, want)
        unpermuted = apply_rotary(q, cos, sin) @ apply_rotary(k, cos, sin).mT
        assert not torch.allclose(unpermuted, want)

    def test_scores_depend_on_differences_only(self):
        q, k = torch.randn(2, 1, 3, 5, 10).double()
        scores = []
        for start in (0, 13):
            cos, sin = rotary_angles(torch.arange(start, start + 5), 10)
            scores.append(apply_rotary(q, cos, sin) @ apply_rotary(k, cos, sin).mT)
        assert_close(*scores, atol=1e-5, rtol=0)
        assert not torch.allclose(scores[0], q @ k.mT, atol=1e-2)

    def test_lengths_stay_and_position_zero_stays(self):
        x = torch.randn(2, 3, 5, 10)
        turned = apply_rotary(x, *rotary_angles(torch.arange(5), 10))
        assert_close(turned.norm(dim=-1), x.norm(dim=-1))
        assert torch.equal(turned[:, :, 0], x[:, :, 0])
        assert not torch.allclose(turned[:, :, 1], x[:, :, 1])

    def test_rows_with_positions_of_their_own(self):
        x = torch.randn(2, 3, 5, 10)
        positions = torch.stack((torch.arange(5), torch.arange(7, 12)))
        got = apply_rotary(x, *rotary_angles(positions, 10))
        for row in range(2):
            alone = apply_rotary(x[row : row + 1], *rotary_angles(positions[row], 10))
            assert_close(got[row], alone[0])

    def test_base(self):
        cos, sin = rotary_angles(torch.tensor([3]), 4, base=100.0)
        want = torch.tensor([[3.0, 0.3]])
        assert_close(cos, want.cos())
        assert_close(sin, want.sin())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_P05_default_dtype_does_not_touch_the_phase(self, dtype):
        want = rotary_angles(torch.arange(2048), 32)
        torch.set_default_dtype(dtype)
        try:
            got = rotary_angles(torch.arange(2048), 32)
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_turned_in_at_least_float32(self, dtype):
        x = torch.randn(1, 2, 5, 10, dtype=torch.float64).to(dtype)
        cos, sin = rotary_angles(torch.arange(1000, 1005), 10)
        got = apply_rotary(x, cos, sin)
        want = apply_rotary(x.double(), cos, sin)
        assert got.dtype == dtype
        assert_close(got, want.to(dtype), atol=torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps)

    def test_odd_width(self):
        with pytest.raises(ShapeError, match="a width of 7 cannot be split into pairs"):
            rotary_angles(torch.arange(3), 7)


class TestAlibi:
    def test_slopes_of_eight_heads(self):
        """Press et al. 2022: 1/2, 1/4, ... 1/256."""
        assert torch.equal(alibi_slopes(8), 2.0 ** -torch.arange(1.0, 9.0))

    def test_slopes_between_powers_of_two(self):
        """Six heads: the four of 4 heads, then the first and third of 8 heads."""
        want = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])
        assert torch.equal(alibi_slopes(6), want)

    def test_bias_by_hand(self):
        bias = alibi_bias(2, 2, 3)  # slopes 1/16 and 1/256; the last query stands on the last key
        distance = torch.tensor([[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
        assert_close(bias, -torch.stack((distance / 16, distance / 256))[None])

    def test_square_by_default(self):
        assert torch.equal(alibi_bias(3, 5), alibi_bias(3, 5, 5))
        assert alibi_bias(3, 5, device="meta").device.type == "meta"
