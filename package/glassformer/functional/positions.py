"""Positions as numbers: sinusoids, rotary angles, ALiBi, buckets of distances.

All tables are computed in float32 from the positions at hand and cast last, so a model in half
precision keeps exact phases and no table is stored in a checkpoint.

Book: embeddings
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import ConfigError, ShapeError

__all__ = [
    "alibi_bias",
    "alibi_slopes",
    "apply_rotary",
    "relative_position_buckets",
    "rotary_angles",
    "sinusoidal_positions",
]


def sinusoidal_positions(
    positions: Int[Tensor, "*lead"], d_model: int
) -> Float[Tensor, "*lead {d_model}"]:
    """Clock hands of ``d_model / 2`` speeds: sin on even dimensions, cos on odd ones.

    Dimension ``2i`` holds ``sin(p / 10000^(2i/d_model))`` and ``2i + 1`` the cosine of the same
    angle. Float32.

    Raises:
        ShapeError: ``d_model`` is odd.

    Source: Vaswani et al. 2017, section 3.5. Book: embeddings
    """
    angles = _angles(positions, d_model, 10_000.0)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def rotary_angles(
    positions: Int[Tensor, "*lead"], d_head: int, base: float = 10_000.0
) -> tuple[Float[Tensor, "*lead half"], Float[Tensor, "*lead half"]]:
    """Cosines and sines of the angle of each of the ``d_head / 2`` pairs. Float32.

    Raises:
        ShapeError: ``d_head`` is odd.

    Source: Su et al. 2021, equation 15. Book: embeddings
    """
    angles = _angles(positions, d_head, base)
    return angles.cos(), angles.sin()


def apply_rotary(
    x: Float[Tensor, "batch n_heads time d_head"],
    cos: Float[Tensor, "*lead time half"],
    sin: Float[Tensor, "*lead time half"],
) -> Float[Tensor, "batch n_heads time d_head"]:
    """Turn each pair ``(x[i], x[i + d_head/2])`` by its angle.

    The two halves of a head form the pairs, as in LLaMA's weights on Hugging Face; layouts with
    neighbouring pairs, such as Meta's own files, need their query and key weights permuted first.

    Args:
        x: queries or keys.
        cos, sin: of shape (T, E/2), or (B, T, E/2) when rows have positions of their own.

    Source: Su et al. 2021, equation 34. Book: embeddings
    """
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]
    first, second = x.chunk(2, dim=-1)  # the angles are float32, and so are the products
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def alibi_slopes(n_heads: int) -> Float[Tensor, " {n_heads}"]:
    """One slope per head: a geometric sequence that starts at ``2^(-8/n_heads)``.

    For a number of heads that is no power of two, the sequence of the next lower power is filled up
    with every other slope of the next higher one.

    Source: Press et al. 2022, section 3. Book: embeddings
    """
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    extra = [2.0 ** (-8.0 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return torch.tensor(slopes + extra[: n_heads - power])


def alibi_bias(
    n_heads: int, q_len: int, k_len: int | None = None, *, device: torch.device | str | None = None
) -> Float[Tensor, "1 {n_heads} {q_len} k_len"]:
    """The further back a key lies, the more is taken off its score, with a slope per head.

    The last query stands on the last key.

    Source: Press et al. 2022, section 3. Book: embeddings
    """
    k_len = q_len if k_len is None else k_len
    query = torch.arange(k_len - q_len, k_len, device=device)[:, None]
    distance = (query - torch.arange(k_len, device=device)[None, :]).abs()
    return -alibi_slopes(n_heads).to(device)[None, :, None, None] * distance


def relative_position_buckets(
    distances: Int[Tensor, "*lead"],
    *,
    n_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Int[Tensor, "*lead"]:
    """The bucket of each distance: near ones have one each, far ones share them logarithmically.

    Args:
        distances: position of the key minus position of the query.
        n_buckets: number of buckets; those of keys behind the query come first.
        max_distance: all distances from here on share the last bucket.
        bidirectional: half of the buckets are for keys ahead of the query. Otherwise a key ahead
            counts as one at distance 0: a causal mask hides it anyway.

    Raises:
        ConfigError: fewer than 2 buckets for a direction, or a ``max_distance`` that is not above
            the half of them that hold one distance each.

    Source: Raffel et al. 2020, section 2.1. Book: embeddings
    """
    ahead = torch.zeros_like(distances)
    if bidirectional:
        n_buckets //= 2
        ahead = (distances > 0) * n_buckets
        distances = distances.abs()
    else:
        distances = (-distances).clamp(min=0)
    exact = n_buckets // 2
    if not 0 < exact < max_distance:
        raise ConfigError(
            f"{n_buckets} buckets for a direction and max_distance={max_distance}: there must be "
            "at least 2, and max_distance above half of them; try n_buckets=32, max_distance=128"
        )
    growth = (distances.float().clamp(min=exact) / exact).log() / math.log(max_distance / exact)
    far = (exact + (growth * (n_buckets - exact)).long()).clamp(max=n_buckets - 1)
    return ahead + torch.where(distances < exact, distances, far)


def _angles(positions: Tensor, width: int, base: float) -> Tensor:
    """(..., width / 2) angles in radians: position times the frequency of each pair."""
    if width % 2:
        raise ShapeError(f"a width of {width} cannot be split into pairs; give an even one")
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    frequencies = base ** (-pairs / width)
    return positions[..., None].float() * frequencies
