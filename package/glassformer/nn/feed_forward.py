"""The position-wise feed-forward network.

Book: feed_forward
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.config import Activation
from glassformer.errors import ConfigError

__all__ = ["FeedForward"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": partial(F.gelu, approximate="tanh"),
}
GATED = ("swiglu", "geglu")


class FeedForward(nn.Module):
    """Widen, bend, narrow: ``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` where gated.

    Args:
        d_model: width of the input and output.
        d_ff: width in between.
        activation: ``relu``, ``gelu``, ``gelu_tanh``, ``silu``; gated: ``swiglu`` (SiLU) or
            ``geglu`` (tanh-GELU).
        bias: whether the linear layers have a bias.
        dropout: share of the hidden values dropped in training.

    Raises:
        ConfigError: an unknown ``activation``.

    Source: Vaswani et al. 2017, equation 2; Shazeer 2020, equation 6 for the gated ones.
    Book: feed_forward
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ConfigError(
                f"activation={activation!r} is unknown; it may be {', '.join(_ACTIVATIONS)}"
            )
        self.act = _ACTIVATIONS[activation]
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if activation in GATED else None
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Each position on its own, with the same weights."""
        if self.gate_proj is None:
            hidden = self.act(self.up_proj(x))
        else:
            hidden = self.act(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(self.dropout(hidden))
