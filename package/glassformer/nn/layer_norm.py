"""Layer normalisation and its leaner cousin RMSNorm.

Both compute their statistics in float32 whatever the dtype of the input.

Book: layer_norm
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["LayerNorm", "RMSNorm"]


class LayerNorm(nn.Module):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last axis, var with divisor D.

    Args:
        d_model: width of the last axis.
        eps: added to the variance inside the root.
        bias: whether there is an added bias.

    Source: Ba et al. 2016, equation 4. Book: layer_norm
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Each position normalised on its own, in the dtype of ``x``."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"{self.weight.shape[0]}, eps={self.eps}, bias={self.bias is not None}"


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis: no centring, no bias.

    Args:
        d_model: width of the last axis.
        eps: added to the mean square inside the root.

    Source: Zhang & Sennrich 2019, equation 4. Book: layer_norm
    """

    def __init__(self, d_model: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Each position scaled on its own, in the dtype of ``x``."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
