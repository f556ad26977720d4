"""Gates on heads: a number between each head and the matrix that mixes them.

At one the head is as always, at zero it is gone. The gates stand at the input of ``o_proj``, where
the outputs of all heads lie side by side, on every path of the attention.

Book: pruning
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import ConfigError
from glassformer.introspect._parts import on_heads, parts_of
from glassformer.nn import MultiHeadAttention

__all__ = ["HardConcreteGates", "gated_heads"]

Gate = Callable[[Float[Tensor, "*lead n_heads d_head"]], Tensor]


@contextmanager
def gated_heads(model: nn.Module, gates: Mapping[str, Gate]) -> Iterator[None]:
    """Multiply the outputs of heads by gates while the ``with`` block runs.

    When the block ends, also by an exception, the model is as before.

    Args:
        model: neither compiled nor prepared.
        gates: name of an attention -> a function that is given the outputs of its heads, of shape
            (..., H, E), at each forward pass, and returns the gates, which broadcast to (..., H).

    Raises:
        ConfigError: a name that is no attention of the model.
        GlassformerError: the model is compiled or prepared, or has no attention.

    Source: Michel et al. 2019, section 2.3. Book: pruning
    """
    attentions = parts_of(model, MultiHeadAttention)
    unknown = [name for name in gates if name not in attentions]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is no attention of this model; they are {', '.join(attentions)}"
        )
    with ExitStack() as hooks:
        for name, gate in gates.items():
            attention = attentions[name]
            if attention.heads:  # otherwise nothing comes in
                hooks.callback(on_heads(attention, _multiplier(gate)).remove)
        yield


class HardConcreteGates(nn.Module):
    """One trainable gate for each head, which learning can close altogether.

    In training a gate is drawn anew at each forward pass: a stretched, clipped sigmoid that is
    exactly 0 or exactly 1 with some probability and has a gradient in between. In evaluation mode
    it is what it would be without noise. ``with gates.attached(model):`` puts the gates to work::

        loss = batch_loss(model, batch)
        (loss.total / loss.n_tokens + 0.01 * gates.penalty()).backward()

    The model's own weights may learn along, or be frozen. Afterwards ``prune_heads(model,
    gates.closed())`` makes it true.

    Args:
        model: whose heads get gates; it is not kept.
        start: first value of each gate's parameter; at 2 a gate is nearly open.

    Raises:
        GlassformerError: the model is compiled or prepared, or has no attention.

    Source: Louizos et al. 2018, section 2.2; Voita et al. 2019, section 5.1. Book: pruning
    """

    temperature = 2 / 3
    stretch = (-0.1, 1.1)

    def __init__(self, model: nn.Module, *, start: float = 2.0) -> None:
        super().__init__()
        attentions = parts_of(model, MultiHeadAttention)
        self.heads = {name: a.heads for name, a in attentions.items() if a.heads}
        device = next(model.parameters()).device
        self.log_alpha = nn.ParameterList(
            torch.full((len(heads),), float(start), device=device) for heads in self.heads.values()
        )

    def forward(self) -> dict[str, Tensor]:
        """The gates of each attention: drawn in training, without noise in evaluation mode."""
        return {
            name: self._gate(log_alpha)
            for name, log_alpha in zip(self.heads, self.log_alpha, strict=True)
        }

    def penalty(self) -> Float[Tensor, ""]:
        """How many gates are expected not to be zero: add it to the loss with a small weight.

        Source: Louizos et al. 2018, equation 12; Voita et al. 2019, section 5.1.
        """
        low, high = self.stretch
        shift = self.temperature * math.log(-low / high)
        open_ = [(log_alpha - shift).sigmoid().sum() for log_alpha in self.log_alpha]
        return torch.stack(open_).sum()

    def closed(self) -> dict[str, list[int]]:
        """The heads whose gate is zero without noise, as :func:`prune_heads` takes them."""
        return self._where(lambda gate: gate == 0)

    def kept(self) -> dict[str, list[int]]:
        """The heads whose gate is not zero without noise."""
        return self._where(lambda gate: gate > 0)

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Let every forward pass of ``model`` go through the gates while the ``with`` block runs.

        Args:
            model: the one that the gates were made for.

        Raises:
            ConfigError: a model without some of the attentions.
        """

        def gate(log_alpha: Tensor) -> Gate:
            return lambda heads: self._gate(log_alpha).to(heads.dtype)

        gates = dict(zip(self.heads, map(gate, self.log_alpha), strict=True))
        with gated_heads(model, gates):
            yield

    def _gate(self, log_alpha: Tensor) -> Tensor:
        low, high = self.stretch
        if self.training:
            noise = torch.rand_like(log_alpha).clamp(1e-6, 1 - 1e-6).logit()
            soft = ((noise + log_alpha) / self.temperature).sigmoid()
        else:
            soft = log_alpha.sigmoid()
        return (soft * (high - low) + low).clamp(0.0, 1.0)

    def _where(self, test: Callable[[Tensor], Tensor]) -> dict[str, list[int]]:
        was_training = self.training
        try:
            with torch.no_grad():
                gates = self.eval()()
        finally:
            self.train(was_training)
        return {
            name: [heads[i] for i in test(gates[name]).nonzero()[:, 0].tolist()]
            for name, heads in self.heads.items()
        }


def _multiplier(gate: Gate) -> Callable[[Tensor], Tensor]:
    def multiply(heads: Tensor) -> Tensor:
        return heads * gate(heads)[..., None]

    return multiply
