"""A model with small weights, and what that did to it.

Book: adaptation
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from glassformer.errors import ConfigError, optional
from glassformer.evaluation.mode import evaluating
from glassformer.quantization.codes import Scheme
from glassformer.quantization.linear import QuantizedLinear

__all__ = ["Backend", "QuantizationReport", "model_bytes", "quantization_report", "quantize"]

Backend = Literal["own", "torchao"]
M = TypeVar("M", bound=nn.Module)


def quantize(
    model: M,
    scheme: Scheme | Literal["int8_dynamic"] = "int8",
    *,
    group_size: int | None = None,
    skip: Sequence[str] = ("lm_head", "router"),
    backend: Backend = "own",
) -> M:
    """A copy of ``model`` whose linear layers keep their weights as codes.

    Norms and embeddings stay as they are, and with them a tied output head, which is the embedding
    matrix itself. An output head of its own is left out by default: it is where an error of a
    weight goes straight into a logit. So is the router of a mixture of experts, which is small and
    where an error sends a token to another expert. Linear layers without any weight, as pruning
    all heads of a layer leaves behind, are always left out.

    Args:
        model: left untouched.
        scheme: ``int8``, ``int4``, ``int4_asymmetric`` or ``nf4``: how weights are kept
            (:func:`encode`). ``int8_dynamic``, from torchao only, also rounds what comes into a
            layer, row by row, and multiplies whole numbers: of 8 bits, on a CPU of 7.
        group_size: weights of a row that share a scale; ``None`` means the whole row for int8 and
            64 for four bits.
        skip: layers to leave out, by full name, by the name of a part that holds them, or by the
            last part of their name.
        backend: ``own`` is :class:`QuantizedLinear`, which decodes and then multiplies. ``torchao``
            is PyTorch's library with kernels of its own for the two int8 schemes.

    Raises:
        ConfigError: a scheme that the backend does not have, no layer left to quantise, or torchao
            is not installed.
        ShapeError: weights that are not finite.

    Source: Dettmers et al. 2022; Dettmers et al. 2023. Book: adaptation
    """
    chosen = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module.weight.numel()
        and not _is_quantized(module)
        and not any(_matches(name, entry) for entry in skip)
    }
    if not chosen:
        raise ConfigError(
            f"{type(model).__name__} has no linear layer to quantise outside of "
            f"skip={tuple(skip)}; the copy would be the model itself"
        )
    if backend == "torchao":
        return _by_torchao(model, scheme, group_size, set(chosen))
    if scheme == "int8_dynamic":
        raise ConfigError("scheme='int8_dynamic' needs backend='torchao'; 'int8' needs none")
    if group_size is None and scheme != "int8":
        group_size = 64
    # deepcopy takes what stands in its memo for copies already made
    memo: dict[int, Any] = {
        id(module): QuantizedLinear(module, scheme, group_size=group_size)
        for module in chosen.values()
    }
    return copy.deepcopy(model, memo)


def model_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, as they are stored; what is tied counts once.

    Book: adaptation
    """
    tensors = {id(t): t for t in itertools.chain(model.parameters(), model.buffers())}
    return sum(_tensor_bytes(t) for t in tensors.values())


@dataclass(frozen=True)
class QuantizationReport:
    """What :func:`quantize` did to a model.

    Book: adaptation
    """

    quantized: tuple[str, ...]
    """Names of the linear layers that are now codes."""
    kept: tuple[str, ...]
    """Names of the linear layers that are not."""
    bytes_before: int
    """Bytes of the model, embeddings and norms included."""
    bytes_after: int
    """The same, quantised."""
    max_logit_change: float
    """Largest change of an output on the given input."""


def quantization_report(
    model: nn.Module, quantized: nn.Module, *inputs: Tensor, **keywords: Any
) -> QuantizationReport:
    """Run both models in evaluation mode, without gradients, and compare.

    Args:
        model: the original.
        quantized: what :func:`quantize` made of it.
        inputs, keywords: given to both models as they are.

    Book: adaptation
    """
    with evaluating(model), evaluating(quantized):
        change = (model(*inputs, **keywords) - quantized(*inputs, **keywords)).abs().max()
    linear = {
        name: _is_quantized(module)
        for name, module in quantized.named_modules()
        if isinstance(module, nn.Linear | QuantizedLinear)
    }
    return QuantizationReport(
        quantized=tuple(name for name, done in linear.items() if done),
        kept=tuple(name for name, done in linear.items() if not done),
        bytes_before=model_bytes(model),
        bytes_after=model_bytes(quantized),
        max_logit_change=float(change),
    )


def _by_torchao(model: M, scheme: str, group_size: int | None, names: set[str]) -> M:
    configs = {
        "int8": "Int8WeightOnlyConfig",
        "int8_dynamic": "Int8DynamicActivationInt8WeightConfig",
    }
    if scheme not in configs or group_size is not None:
        raise ConfigError(
            f"scheme={scheme!r} with group_size={group_size} is not offered with "
            f"backend='torchao'; it does {' and '.join(configs)} by rows, backend='own' the others"
        )
    with optional("backend='torchao' needs torchao", '"glassformer[quantization]"'):
        from torchao import quantization  # type: ignore[import-untyped]

    # torch.compile's settings are the caller's
    settings: dict[str, Any] = {"set_inductor_config": False}
    if scheme == "int8_dynamic":
        # a CPU without VNNI adds two products in 16 bits: with 7 bits each they fit
        on_cpu = next(model.parameters()).device.type == "cpu"
        settings["reduce_range"] = on_cpu
    make: Callable[..., Any] = getattr(quantization, configs[scheme])
    quantized = copy.deepcopy(model)
    quantization.quantize_(
        quantized, make(**settings), filter_fn=lambda module, name: name in names
    )
    return quantized


def _is_quantized(module: nn.Module) -> bool:
    return isinstance(module, QuantizedLinear) or hasattr(module.weight, "__tensor_flatten__")


def _matches(name: str, entry: str) -> bool:
    return f".{name}".endswith(f".{entry}") or f"{name}.".startswith(f"{entry}.")


def _tensor_bytes(tensor: Tensor) -> int:
    """A tensor subclass such as torchao's is made of others, which are what is stored."""
    if hasattr(tensor, "__tensor_flatten__"):
        inner, _ = tensor.__tensor_flatten__()
        return sum(_tensor_bytes(getattr(tensor, name)) for name in inner)
    return tensor.numel() * tensor.element_size()
