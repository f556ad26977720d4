"""Comparing what a learner's code gave with what was expected, and naming the difference."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Failed", "describe", "expect", "expect_answer", "expect_close"]

_SHOWN_VALUES = 12


class Failed(Exception):
    """A property that the learner's object does not have. Checkers raise it."""

    def __init__(
        self, property: str, *, fed: str = "", expected: Any = "", got: Any = "", hint: str = ""
    ) -> None:
        super().__init__(property)
        self.property = property
        self.fed = fed
        self.expected = expected if isinstance(expected, str) else describe(expected)
        self.got = got if isinstance(got, str) else describe(got)
        self.hint = hint


def describe(value: Any) -> str:
    """Say what a value is in one short line, the same on every run."""
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if isinstance(value, bool | int | str | None):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple) and len(value) <= _SHOWN_VALUES:
        inside = ", ".join(describe(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, list | tuple | dict | set):
        return f"a {type(value).__name__} of {len(value)}"
    if value is Ellipsis:
        return "..."
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{type(value).__name__} {value.__name__}"
    return f"a {type(value).__name__}"


def _describe_tensor(value: torch.Tensor) -> str:
    dtype = str(value.dtype).removeprefix("torch.")
    if value.numel() > _SHOWN_VALUES or value.is_complex():
        return f"tensor of shape {tuple(value.shape)}, {dtype}"
    plain = value.detach().cpu()
    return f"{_rounded(plain.tolist())} (shape {tuple(value.shape)}, {dtype})"


def _rounded(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(_rounded(item) for item in values)}]"
    return f"{round(values, 3) + 0.0:.3f}" if isinstance(values, float) else str(values)


def expect(
    condition: Any,
    property: str,
    *,
    fed: str = "",
    expected: Any = "",
    got: Any = "",
    hint: str = "",
) -> None:
    """Raise :class:`Failed` unless the condition is true."""
    if not bool(condition):
        raise Failed(property, fed=fed, expected=expected, got=got, hint=hint)


def expect_answer(
    property: str, got: Any, right: bool, *, fed: str, meaning: str, hint: str
) -> None:
    """Raise :class:`Failed` unless a test that the learner wrote gave the right one of two answers.

    Args:
        meaning: when the answer should be True.
        hint: a clause without its full stop.
    """
    expect(
        isinstance(got, bool) or (isinstance(got, torch.Tensor) and got.numel() == 1),
        "the answer is True or False",
        fed=fed,
        expected="a bool",
        got=got,
        hint=f"Return bool(...): True if {meaning}.",
    )
    expect(
        bool(got) == right,
        property,
        fed=fed,
        expected=right,
        got=bool(got),
        hint=f"{hint[0].upper()}{hint[1:]}.",
    )


def expect_close(
    property: str,
    got: Any,
    expected: torch.Tensor | float,
    *,
    fed: str = "",
    hint: str = "",
    atol: float = 1e-5,
    rtol: float = 1e-5,
) -> None:
    """Compare a number or tensor, and name what differs: kind, shape, dtype, NaN, or value."""
    fail = functools.partial(Failed, fed=fed, hint=hint)
    if not isinstance(expected, torch.Tensor):
        _expect_number(fail, property, got, float(expected), atol, rtol)
        return
    if not isinstance(got, torch.Tensor):
        raise fail(f"{property}: the result is a tensor", expected=expected, got=describe(got))
    if got.shape != expected.shape:
        raise fail(
            f"{property}: the shape",
            expected=str(tuple(expected.shape)),
            got=str(tuple(got.shape)),
        )
    if got.dtype != expected.dtype:
        raise fail(f"{property}: the dtype", expected=str(expected.dtype), got=str(got.dtype))
    got = got.detach().to(expected.device)
    broken = int((~got.isfinite() & expected.isfinite()).sum())
    if broken:
        raise fail(
            f"{property}: every number is finite",
            expected=expected,
            got=f"{broken} of {got.numel()} are NaN or infinite: {describe(got)}",
        )
    with contextlib.suppress(AssertionError):
        torch.testing.assert_close(got, expected, atol=atol, rtol=rtol, equal_nan=True)
        return
    raise fail(property, expected=_first_difference(expected, got, atol, rtol), got=describe(got))


def _expect_number(
    fail: Callable[..., Failed], property: str, got: Any, expected: float, atol: float, rtol: float
) -> None:
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    if isinstance(got, bool) or not isinstance(got, int | float):
        raise fail(f"{property}: the result is a number", expected=expected, got=describe(got))
    if not abs(got - expected) <= atol + rtol * abs(expected):  # false for NaN too
        raise fail(property, expected=f"{expected:.6g}", got=f"{got:.6g}")


def _first_difference(expected: torch.Tensor, got: torch.Tensor, atol: float, rtol: float) -> str:
    """The expected tensor, or for a large one the place where the two part first."""
    if expected.numel() <= _SHOWN_VALUES:
        return describe(expected)
    apart = ~torch.isclose(got.double(), expected.double(), atol=atol, rtol=rtol, equal_nan=True)
    place = tuple(apart.nonzero()[0].tolist())
    return (
        f"{expected[place].item():.4g} at index {place}, where yours has {got[place].item():.4g} "
        f"({int(apart.sum())} of {expected.numel()} differ)"
    )
