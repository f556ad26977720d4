"""Numbers as small codes: int8, four bits in groups, and NF4.

A weight matrix is cut into groups of neighbours in a row, and every group gets a scale (and a
lowest value, where its range need not be symmetric). What is kept is one small code per weight.
Wide groups cost fewer scales; narrow ones follow the weights more closely.

Book: adaptation
"""

from statistics import NormalDist
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from glassformer.errors import ConfigError, ShapeError

__all__ = [
    "Codes",
    "Scheme",
    "decode",
    "encode",
    "nf4_levels",
    "pack_nibbles",
    "unpack_nibbles",
]

Scheme = Literal["int8", "int4", "int4_asymmetric", "nf4"]


class Codes(NamedTuple):
    """A matrix as codes: one byte per code of int8, one byte per two codes of four bits.

    Book: adaptation
    """

    codes: UInt8[Tensor, "n_out n_bytes"]
    """The codes, row by row; padded to whole groups."""
    scale: Float[Tensor, "n_out n_groups"]
    """What a step of the code is worth in each group."""
    low: Float[Tensor, "n_out n_groups"] | None
    """The value of code 0 in each group; ``None`` where zero is in the middle."""


def encode(
    weight: Float[Tensor, "n_out n_in"], scheme: Scheme, *, group_size: int | None = None
) -> Codes:
    """The nearest code for each weight.

    - ``int8``: whole numbers from -127 to 127 times ``max |w| / 127``.
    - ``int4``: whole numbers from -7 to 7 times ``max |w| / 7``; zero stays exactly zero.
    - ``int4_asymmetric``: 0 to 15 steps of ``(max - min) / 15`` above the lowest value.
    - ``nf4``: one of 16 levels (:func:`nf4_levels`) times ``max |w|``.

    The error of a weight is at most half a step: ``scale / 2``, for ``nf4`` half of the widest gap
    between two levels.

    Args:
        weight: the matrix of a linear layer.
        scheme: the kind of code.
        group_size: neighbours in a row that share a scale; ``None`` means the whole row.

    Raises:
        ConfigError: an unknown scheme, or a group size below 1.
        ShapeError: a matrix without values, or with values that are not finite.

    Source: Dettmers et al. 2022 for int8 by rows; Dettmers et al. 2023, section 3, for NF4 and
    groups. Book: adaptation
    """
    if scheme not in get_args(Scheme):
        raise ConfigError(f"scheme={scheme!r} is unknown; it may be {', '.join(get_args(Scheme))}")
    if not weight.numel() or not weight.isfinite().all():
        raise ShapeError(
            f"a matrix of shape {tuple(weight.shape)} to be quantised must have values, all of "
            "them finite; leave this layer out with skip"
        )
    groups = _groups(weight.detach().float(), group_size)
    low = None
    if scheme == "int4_asymmetric":
        low = groups.amin(-1)
        scale = _positive((groups.amax(-1) - low) / 15)
        codes = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15)
    elif scheme == "nf4":
        scale = _positive(groups.abs().amax(-1))
        levels = nf4_levels(device=weight.device)
        middles = (levels[1:] + levels[:-1]) / 2
        codes = torch.bucketize(groups / scale[..., None], middles, out_int32=True)
    else:
        largest = _largest(scheme)
        scale = _positive(groups.abs().amax(-1) / largest)
        codes = (groups / scale[..., None]).round().clamp(-largest, largest) + largest
    rows = codes.to(torch.uint8).flatten(1)
    return Codes(rows if scheme == "int8" else pack_nibbles(rows), scale, low)


def decode(kept: Codes, scheme: Scheme, n_in: int) -> Float[Tensor, "n_out n_in"]:
    """The weights that the codes stand for, in the dtype of the scale.

    Args:
        kept: what :func:`encode` gave.
        scheme: the same as then.
        n_in: width of a row without its padding.

    Book: adaptation
    """
    if scheme == "nf4":  # a byte is looked up whole, as the two levels it stands for
        levels = nf4_levels(device=kept.codes.device)
        pairs = torch.stack((levels.repeat(16), levels.repeat_interleave(16)), dim=1)
        codes = F.embedding(kept.codes.int(), pairs).flatten(1)
    else:
        codes = kept.codes if scheme == "int8" else unpack_nibbles(kept.codes)
    codes = codes[:, : codes.shape[1] // kept.scale.shape[1] * kept.scale.shape[1]]
    groups = codes.unflatten(1, (kept.scale.shape[1], -1))
    scale = kept.scale[..., None]
    if kept.low is not None:
        values = groups * scale + kept.low[..., None]
    elif scheme == "nf4":
        values = groups.to(scale.dtype) * scale
    else:
        values = (groups.to(scale.dtype) - _largest(scheme)) * scale
    return values.flatten(1)[:, :n_in]


def nf4_levels(*, device: torch.device | str | None = None) -> Float[Tensor, "16"]:
    """The 16 levels of NormalFloat4: equally likely for normal weights, with an exact zero.

    Eight quantiles of the standard normal above zero, seven below, and zero, divided by the
    largest. The outermost quantile stands half-way between the two that halves of eight and of
    seven steps would give, ``1 - (1/32 + 1/30) / 2``, so that it is finite.

    Source: Dettmers et al. 2023, section 3 and appendix E. Book: adaptation
    """
    return torch.tensor(_NF4, device=device)


def pack_nibbles(codes: UInt8[Tensor, "rows n"]) -> UInt8[Tensor, "rows n_bytes"]:
    """Two codes from 0 to 15 in each byte, the first one in its lower half.

    A row of odd length is filled up with a zero. Book: adaptation
    """
    pairs = F.pad(codes, (0, codes.shape[1] % 2)).unflatten(1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def unpack_nibbles(packed: UInt8[Tensor, "rows n_bytes"]) -> UInt8[Tensor, "rows n"]:
    """The codes that :func:`pack_nibbles` packed, and the zero it may have added.

    Book: adaptation
    """
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def _groups(weight: Tensor, group_size: int | None) -> Tensor:
    """(n_out, n_groups, group_size); the last group of a row repeats the row's last weight."""
    n_in = weight.shape[1]
    if group_size is None:
        return weight[:, None]
    if isinstance(group_size, bool) or group_size < 1:
        raise ConfigError(f"group_size={group_size} must be at least 1, such as 64, or None")
    missing = -n_in % group_size
    padded = F.pad(weight[None], (0, missing), mode="replicate")[0] if missing else weight
    return padded.unflatten(1, (-1, group_size))


def _largest(scheme: Scheme) -> int:
    return 127 if scheme == "int8" else 7


def _positive(scale: Tensor) -> Tensor:
    """A group of equal weights has no range: any step serves it."""
    return scale.masked_fill(scale == 0, 1.0)


def _normal_levels() -> tuple[float, ...]:
    outermost = 1 - (1 / 32 + 1 / 30) / 2
    above, below = (
        [NormalDist().inv_cdf(outermost + (0.5 - outermost) * i / n) for i in range(n)]
        for n in (8, 7)
    )
    levels = [-q for q in below] + [0.0] + above[::-1]
    return tuple(level / above[0] for level in levels)


_NF4 = _normal_levels()
