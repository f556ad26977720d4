"""Measuring what code costs: operations, memory kept for the backward pass, peak memory, time.

The first three count instead of sampling, so they give the same number on every run and their
output can be compared strictly. Times are noise: compare them as paired ratios.
"""

import gc
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from glassformer.errors import GlassformerError

__all__ = ["Timings", "flops", "interleaved", "peak_bytes", "release", "saved_bytes"]


def flops(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Floating-point operations of the matrix products in ``fn(*args)``: two per multiply-add.

    PyTorch's counter does not know the fused attention kernel of the CPU and would count it as
    nothing, so attention runs here as its explicit products.
    """
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        fn(*args, **kwargs)
    return int(counter.get_total_flops())


def saved_bytes(
    fn: Callable[..., Any],
    *args: Any,
    exclude: torch.nn.Module | Iterable[torch.Tensor] | None = None,
    **kwargs: Any,
) -> int:
    """Bytes that autograd keeps for the backward pass of ``fn(*args)``.

    A storage that several operations keep counts once, and a view keeps its whole storage.

    Args:
        fn: what to run, with gradients enabled.
        *args: its arguments.
        exclude: a module whose parameters and buffers are not counted, or such tensors. They are
            there anyway; what remains are the activations.
        **kwargs: its keyword arguments.
    """
    spared = {_address(tensor) for tensor in _tensors_of(exclude)}
    kept: dict[int, torch.UntypedStorage] = {}  # holding a storage keeps its address from reuse

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if (address := _address(tensor)) not in spared:
            kept[address] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = fn(*args, **kwargs)
    total = sum(storage.nbytes() for storage in kept.values())
    del result
    return total


def _tensors_of(exclude: torch.nn.Module | Iterable[torch.Tensor] | None) -> list[torch.Tensor]:
    if exclude is None:
        return []
    if isinstance(exclude, torch.nn.Module):
        return [*exclude.parameters(), *exclude.buffers()]
    return list(exclude)


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


class _LiveBytes(TorchDispatchMode):
    """Follows every storage that operations create until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):  # what was there before is not fn's own
                self._follow(leaf.untyped_storage(), own=False)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._follow(leaf.untyped_storage(), own=True)
        self.peak = max(self.peak, self.live)
        return result

    def _follow(self, storage: torch.UntypedStorage, *, own: bool) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if own else 0
        self.live += size
        self._known[key] = weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.live -= size
        self._known.pop(key, None)

    def stop(self) -> None:
        for finalizer in self._known.values():
            finalizer.detach()


def peak_bytes(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """The most bytes that tensors made inside ``fn(*args)`` hold at one time.

    Tensors that existed before do not count, nor does scratch space inside a kernel. The number
    is counted from the sizes of tensors, so it is the same on every run and on every machine
    that takes the same kernels.
    """
    gc.collect()
    tracker = _LiveBytes()
    try:
        with tracker:
            result = fn(*args, **kwargs)
        del result
    finally:
        tracker.stop()
    return tracker.peak


@dataclass(frozen=True)
class Timings:
    """Seconds of several functions, measured in turn, round by round."""

    seconds: Mapping[str, list[float]] = field(repr=False)

    def median(self, name: str) -> float:
        """Median seconds of one function."""
        return statistics.median(self._of(name))

    def ratio(self, slow: str, fast: str) -> float:
        """Median over the rounds of ``slow``'s time divided by ``fast``'s in the same round."""
        pairs = zip(self._of(slow), self._of(fast), strict=True)
        return statistics.median(a / b for a, b in pairs)

    def _of(self, name: str) -> list[float]:
        if name not in self.seconds:
            raise GlassformerError(
                f"{name!r} was not timed; timed were {', '.join(map(repr, self.seconds))}"
            )
        return self.seconds[name]


def interleaved(
    fns: Mapping[str, Callable[[], Any]], rounds: int = 9, *, warmup: int = 1
) -> Timings:
    """Time functions in turn, so that a busy moment of the machine hits all of them alike.

    Args:
        fns: name -> function without arguments.
        rounds: how often each is timed.
        warmup: untimed rounds before.

    Raises:
        GlassformerError: no function, or no round.
    """
    if not fns or rounds < 1:
        raise GlassformerError(
            f"rounds={rounds} of {len(fns)} functions: give at least one of each"
        )
    seconds: dict[str, list[float]] = {name: [] for name in fns}
    for turn in range(-warmup, rounds):
        for name, fn in fns.items():
            _synchronise()
            start = time.perf_counter()
            fn()
            _synchronise()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return Timings(seconds)


def _synchronise() -> None:
    """Wait for a GPU: its kernels are queued, not finished, when a call returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def release() -> None:
    """Forget the last exception, so that the tensors its traceback holds are freed.

    After an out-of-memory error a notebook keeps the traceback, the traceback keeps every local
    variable, and the next attempt has even less memory.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None:
            shell.InteractiveTB.tb = shell.InteractiveTB.etype = shell.InteractiveTB.evalue = None
            if shell.last_execution_result is not None:  # that of the cell before this one
                shell.last_execution_result.error_in_exec = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
