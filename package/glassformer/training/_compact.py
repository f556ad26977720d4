"""Weights in a quarter of the bytes, for files that travel.

Book: training
"""

from torch import Tensor

__all__ = ["compact", "expand"]

CODES, SCALE = ".codes", ".scale"


def compact(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 codes with one float16 scale a row; other floating-point tensors as float16.

    :func:`expand` is the way back, to within half a step of the codes: 1/254 of the largest weight
    of a row, and the rounding of the scale. Norms and biases are few, and keep 11 bits. Scales and
    vectors that float16 cannot hold to 11 bits, as they are too small or too large, stay float32.

    Source: Dettmers et al. 2022, section 2.1, for one scale a row. Book: training
    """
    from glassformer.quantization.codes import encode  # it imports this package

    small: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.ndim >= 2 and tensor.numel():
            kept = encode(tensor.flatten(0, -2), "int8")
            small[name + CODES] = kept.codes.view(tensor.shape)
            small[name + SCALE] = _halved(kept.scale)
        else:
            small[name] = _halved(tensor) if tensor.is_floating_point() else tensor
    return small


def _halved(values: Tensor) -> Tensor:
    """As float16 if every value keeps its 11 bits there, else as float32."""
    whole, half = values.float(), values.half()
    return half if bool(((half.float() - whole).abs() <= whole.abs() * 2**-11).all()) else whole


def expand(small: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that :func:`compact` packed, in float32.

    Book: training
    """
    from glassformer.quantization.codes import Codes, decode

    tensors: dict[str, Tensor] = {}
    for name, tensor in small.items():
        if name.endswith(CODES):
            plain = name.removesuffix(CODES)
            rows = Codes(tensor.flatten(0, -2), small[plain + SCALE].float(), None)
            tensors[plain] = decode(rows, "int8", tensor.shape[-1]).view(tensor.shape)
        elif not name.endswith(SCALE):
            tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors
