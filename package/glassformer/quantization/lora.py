"""Low-rank adapters: a frozen model learns through a few narrow matrices beside its own.

Book: adaptation
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import ConfigError
from glassformer.quantization.linear import QuantizedLinear

__all__ = ["LoRALinear", "adapters", "add_lora", "lora_state_dict", "merge_lora"]

M = TypeVar("M", bound=nn.Module)


class LoRALinear(nn.Module):
    """``base(x) + alpha / rank * B A x``: a frozen layer and a bypass of rank ``rank``.

    A starts random and B at zero, so that the model starts as it was.

    Args:
        base: the layer, plain or quantised.
        rank: width of the bypass, r.
        alpha: the bypass counts ``alpha / rank``, so that another rank needs no other learning
            rate.
        dropout: share of the inputs of the bypass dropped in training.

    Raises:
        ConfigError: a rank below 1 or a dropout outside of [0, 1).

    Source: Hu et al. 2022, section 4.1. Book: adaptation
    """

    def __init__(
        self,
        base: nn.Linear | QuantizedLinear,
        *,
        rank: int,
        alpha: float,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if isinstance(rank, bool) or rank < 1:
            raise ConfigError(f"rank={rank} must be at least 1, such as 8")
        if not 0.0 <= dropout < 1.0:
            raise ConfigError(f"dropout={dropout} is a share of values; give 0 <= dropout < 1")
        self.base = base
        self.rank = rank
        self.alpha = alpha
        self.in_features = base.in_features
        self.out_features = base.out_features
        self.dropout = nn.Dropout(dropout)
        like: dict[str, Any] = {"device": _values(base).device, "dtype": _values(base).dtype}
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, **like))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    @property
    def bias(self) -> Tensor | None:
        """The bias of the layer below, which the adapter leaves alone."""
        return self.base.bias

    @property
    def weight(self) -> Float[Tensor, "n_out n_in"]:
        """The matrix that the layer and its bypass amount to."""
        base = self.base.weight
        if type(base).dequantize is not Tensor.dequantize:  # torchao's
            base = base.dequantize()
        return base.to(self.lora_a.dtype) + self.alpha / self.rank * (self.lora_b @ self.lora_a)

    def forward(self, x: Float[Tensor, "*lead n_in"]) -> Float[Tensor, "*lead n_out"]:
        """The frozen answer and the learnt correction."""
        bypass = F.linear(F.linear(self.dropout(x), self.lora_a), self.lora_b)
        out: Tensor = self.base(x) + self.alpha / self.rank * bypass
        return out

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"rank={self.rank}, alpha={self.alpha}"


def add_lora(
    model: M,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = ("q_proj", "v_proj"),
    dropout: float = 0.0,
) -> M:
    """A model that shares the weights of ``model``, frozen, and learns through adapters alone.

    Nothing is copied: beside a large model the adapters cost next to nothing. ``model`` itself is
    as before and may be thrown away; but if it goes on learning, the ground moves under the
    adapters.

    Args:
        model: plain, or with quantised weights; ``int8_dynamic`` lets no gradient through.
        rank, alpha, dropout: of each :class:`LoRALinear`.
        targets: linear layers that get an adapter, by the last parts of their names.

    Raises:
        ConfigError: a target that fits no linear layer, a model that has adapters already, or
            numbers that :class:`LoRALinear` refuses.

    Source: Hu et al. 2022; Dettmers et al. 2023 for quantised weights. Book: adaptation
    """
    _refuse_adapted(model)
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer
    for module in _targets(model, targets):
        # the same memo: what the copies share, such as a tied weight, stays shared
        base = copy.deepcopy(module, memo)
        adapted = LoRALinear(base, rank=rank, alpha=alpha, dropout=dropout)
        memo[id(module)] = adapted.train(module.training)
    return copy.deepcopy(model, memo)


def merge_lora(model: M) -> M:
    """A copy of ``model`` without adapters, whose weights have learnt what the adapters knew.

    Merged layers are plain ones, also where the layer below was quantised; quantise the result
    again if it should be small. All parameters of the copy that hold any numbers may learn.

    Raises:
        ConfigError: the model has no adapters.

    Source: Hu et al. 2022, section 4.1: no cost at inference. Book: adaptation
    """
    memo: dict[int, Any] = {id(layer): _merged(layer) for layer in adapters(model).values()}
    merged = copy.deepcopy(model, memo)
    for parameter in merged.parameters():
        parameter.requires_grad_(parameter.numel() > 0)
    return merged


def lora_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The adapters alone, by their names in the model: a few numbers that can be kept apart.

    Raises:
        ConfigError: the model has no adapters.

    Book: adaptation
    """
    return {
        f"{name}.{part}": getattr(layer, part).detach()
        for name, layer in adapters(model).items()
        for part in ("lora_a", "lora_b")
    }


def adapters(model: nn.Module) -> dict[str, LoRALinear]:
    """All adapted layers by name.

    Raises:
        ConfigError: there is none.

    Book: adaptation
    """
    found = {n: module for n, module in model.named_modules() if isinstance(module, LoRALinear)}
    if not found:
        raise ConfigError(f"{type(model).__name__} has no adapters; give it some with add_lora")
    return found


def _targets(model: nn.Module, targets: Sequence[str]) -> list[nn.Linear | QuantizedLinear]:
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | QuantizedLinear)
        and module.in_features
        and module.out_features
    }
    chosen: dict[str, nn.Linear | QuantizedLinear] = {}
    for target in targets:
        fitting = {n: m for n, m in linear.items() if f".{n}".endswith(f".{target}")}
        if not fitting:
            known = sorted({name.rsplit(".", 1)[-1] for name in linear})
            raise ConfigError(
                f"target {target!r} fits no linear layer; their names end in {', '.join(known)}"
            )
        chosen |= fitting
    if not chosen:
        raise ConfigError("targets is empty; name the layers to adapt, such as 'q_proj'")
    return list(chosen.values())


def _refuse_adapted(model: nn.Module) -> None:
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise ConfigError("this model has adapters already; merge them first with merge_lora")


def _merged(layer: LoRALinear) -> nn.Linear:
    weight, bias = layer.weight.detach(), layer.bias
    with torch.device("meta"):
        linear = nn.Linear(layer.in_features, layer.out_features, bias=bias is not None)
    linear.weight = nn.Parameter(weight)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear


def _values(base: nn.Linear | QuantizedLinear) -> Tensor:
    """A tensor that says where and how precisely the layer computes."""
    return base.like if isinstance(base, QuantizedLinear) else base.weight
