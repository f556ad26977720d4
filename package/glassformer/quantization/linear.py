"""A linear layer that keeps its weights as codes.

Book: adaptation
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.quantization.codes import Codes, Scheme, decode, encode

__all__ = ["QuantizedLinear"]


class QuantizedLinear(nn.Module):
    """``nn.Linear`` whose matrix is kept as codes and decoded whenever it is used.

    Decoding costs time and saves memory: this is the idea in the open, without a kernel of its
    own. The codes do not learn; gradients flow through to the input and to the bias.

    Args:
        linear: the layer to take the weights from; its bias stays as it is.
        scheme: the kind of code (:func:`glassformer.quantization.encode`).
        group_size: weights that share a scale; ``None`` means a whole row.

    Raises:
        ConfigError, ShapeError: as in :func:`glassformer.quantization.encode`.

    Source: Dettmers et al. 2023, equation 5. Book: adaptation
    """

    codes: Tensor
    scale: Tensor
    low: Tensor | None
    like: Tensor

    def __init__(self, linear: nn.Linear, scheme: Scheme, *, group_size: int | None = None) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.scheme: Scheme = scheme
        self.group_size = group_size
        kept = encode(linear.weight, scheme, group_size=group_size)
        self.register_buffer("codes", kept.codes)
        self.register_buffer("scale", kept.scale)
        self.register_buffer("low", kept.low)
        # holds nothing, and goes along with ``to()``: where and how precisely the layer computes
        self.register_buffer("like", linear.weight.detach().new_empty(0), persistent=False)
        bias = linear.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    @property
    def weight(self) -> Float[Tensor, "n_out n_in"]:
        """The matrix, decoded anew at each access."""
        return decode(Codes(self.codes, self.scale, self.low), self.scheme, self.in_features)

    def forward(self, x: Float[Tensor, "*lead n_in"]) -> Float[Tensor, "*lead n_out"]:
        """``x @ weight.T + bias`` in the dtype of ``x``."""
        return F.linear(x, self.weight.to(x.dtype), self.bias)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, scheme={self.scheme}, group_size={self.group_size}"
        )
