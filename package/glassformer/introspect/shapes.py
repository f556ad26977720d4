"""What shape everything has on its way through a model.

Book: visualization
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from glassformer.evaluation.mode import evaluating
from glassformer.introspect._parts import refuse_compiled, refuse_prepared

__all__ = ["ShapeTrace", "Step", "trace_shapes"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One module that ran. Book: visualization"""

    name: str
    """As in ``model.named_modules()``; empty for the model itself."""
    kind: str
    """Class of the module."""
    shapes_in: tuple[Shape, ...]
    """Shapes of the tensors that it was given by position."""
    shapes_out: tuple[Shape, ...]
    """Shapes of the tensors that it gave back."""
    dtype: torch.dtype | None
    """Of the first tensor that it gave back."""
    bytes: int
    """Of all tensors that it gave back."""


class ShapeTrace(tuple[Step, ...]):
    """The steps in the order in which they began; ``print`` shows a table. Book: visualization"""

    __slots__ = ()

    def __str__(self) -> str:
        head = ("step", "module", "in", "out", "dtype", "bytes")
        rows = [head, *(_row(step) for step in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            cells[-1] = row[-1].rjust(widths[-1])
            lines.append("  ".join(cells))
        return "\n".join(lines)

    __repr__ = __str__


def trace_shapes(model: nn.Module, *args: Any, **kwargs: Any) -> ShapeTrace:
    """Run ``model(*args, **kwargs)`` once and note every module that takes part.

    It runs in evaluation mode and without gradients, and afterwards everything is as before. Only
    a cache that is given is filled. On the meta device a model of any size is traced without
    computing anything. Inside :func:`capture_attention` the attention weights have a row too, that
    of ``weights_tap``.

    Args:
        model: the model, neither compiled nor prepared.
        args, kwargs: what it is called with.

    Raises:
        GlassformerError: the model is compiled or prepared.

    Book: visualization
    """
    refuse_compiled(model)
    refuse_prepared(model)
    began: list[tuple[str, nn.Module, tuple[Shape, ...]]] = []
    ended: dict[int, Any] = {}
    running: list[int] = []

    def begin(name: str) -> Callable[[nn.Module, Any], None]:
        def note(module: nn.Module, inputs: Any) -> None:
            running.append(len(began))
            began.append((name, module, _shapes(inputs)))

        return note

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        ended[running.pop()] = output

    with evaluating(model), ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(begin(name)).remove)
            hooks.callback(module.register_forward_hook(end).remove)
        model(*args, **kwargs)
    return ShapeTrace(_step(*start, ended[i]) for i, start in enumerate(began))


def _step(name: str, module: nn.Module, shapes_in: tuple[Shape, ...], output: Any) -> Step:
    tensors = _tensors(output)
    return Step(
        name=name,
        kind=type(module).__name__,
        shapes_in=shapes_in,
        shapes_out=_shapes(output),
        dtype=tensors[0].dtype if tensors else None,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    )


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _shapes(values: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in _tensors(values))


def _row(step: Step) -> tuple[str, ...]:
    return (
        step.name or "(model)",
        step.kind,
        " ".join(map(_written, step.shapes_in)),
        " ".join(map(_written, step.shapes_out)),
        "" if step.dtype is None else str(step.dtype).removeprefix("torch."),
        f"{step.bytes:,}",
    )


def _written(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"
