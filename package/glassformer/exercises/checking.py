"""Registering checkers and running them on what a learner wrote."""

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from glassformer.errors import GlassformerError
from glassformer.exercises.comparing import Failed, describe
from glassformer.exercises.report import Report

__all__ = [
    "Exercise",
    "check",
    "exercise",
    "exercises_of",
]

Checker = Callable[[Any], None]
_MACHINERY = {"checking", "clinic", "comparing", "report"}


class _LearnerRaised(Exception):
    """The learner's function itself raised; carries what it had been given."""

    def __init__(self, fed: str) -> None:
        super().__init__(fed)
        self.fed = fed


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A registered exercise."""

    id: str
    minutes: int
    level: Literal["easy", "medium", "hard"]
    checker: Checker

    @property
    def chapter(self) -> str:
        """The chapter's slug: what stands before the dot."""
        return self.id.partition(".")[0]


_registered: dict[str, Exercise] = {}


def exercise(
    exercise_id: str, *, minutes: int, level: Literal["easy", "medium", "hard"]
) -> Callable[[Checker], Checker]:
    """Register a checker under ``"<chapter>.<name>"``.

    The checker takes what the learner wrote and returns None, or raises :class:`Failed`.
    """
    chapter, dot, name = exercise_id.partition(".")
    if not (dot and chapter.isidentifier() and name.isidentifier()):
        raise GlassformerError(
            f"{exercise_id!r} must read '<chapter>.<name>', as 'attention.scale'"
        )
    if minutes < 1:
        raise GlassformerError(f"minutes={minutes} of {exercise_id} must be at least 1")

    def register(checker: Checker) -> Checker:
        known = _registered.get(exercise_id)
        if known is not None and known.checker.__module__ != checker.__module__:
            raise GlassformerError(f"{exercise_id} is registered twice; give one another name")
        _registered[exercise_id] = Exercise(
            id=exercise_id, minutes=minutes, level=level, checker=checker
        )
        return checker

    return register


@functools.cache
def _load_chapter(chapter: str) -> None:
    here = str(Path(__file__).parent)
    if chapter in {module.name for module in pkgutil.iter_modules([here])} - _MACHINERY:
        importlib.import_module(f"glassformer.exercises.{chapter}")


def exercises_of(chapter: str) -> dict[str, Exercise]:
    """The exercises of a chapter, by id, in the order they stand in its module."""
    _load_chapter(chapter)
    return {key: entry for key, entry in _registered.items() if entry.chapter == chapter}


def check(exercise_id: str, learner: Any) -> Report:
    """Check what a learner wrote.

    Random numbers drawn during a check come from a fixed seed, and the generator is put back
    afterwards, so that checking changes nothing.

    Raises:
        GlassformerError: if there is no exercise of this name.
    """
    chapter = exercise_id.partition(".")[0]
    known = exercises_of(chapter)
    if exercise_id not in known:
        near = difflib.get_close_matches(exercise_id, known, n=3)
        options = near or list(known) or ["none: this chapter has no exercises"]
        raise GlassformerError(f"{exercise_id!r} is no exercise; there are {', '.join(options)}")
    if learner is None or learner is Ellipsis:
        return _report(
            exercise_id,
            Failed("there is an answer", expected="what the exercise asks for", got=learner),
        )
    watched = _Watched(learner) if _is_plain_function(learner) else learner
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the one that is put back, and no GPU's
        return _run(known[exercise_id], watched)


def _is_plain_function(learner: Any) -> bool:
    return inspect.isroutine(learner) or isinstance(learner, functools.partial)


class _Watched:
    """Calls the learner's function and remembers what it was given and what it gave back."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.returned: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [describe(value) for value in args]
        given += [f"{name}={describe(value)}" for name, value in kwargs.items()]
        try:
            self.returned = self._function(*args, **kwargs)
        except Exception as error:
            raise _LearnerRaised("; ".join(given)) from error
        return self.returned


def _run(entry: Exercise, learner: Any) -> Report:
    try:
        entry.checker(learner)
    except Failed as failure:
        return _report(entry.id, failure)
    except _LearnerRaised as wrapped:
        return _report(entry.id, _raised(wrapped.__cause__, wrapped.fed))
    except Exception as error:
        if isinstance(learner, _Watched):  # the checker tripped over what the function returned
            unusable = Failed(
                "the result can be used as the exercise says",
                expected="a result of the kind the exercise asks for",
                got=f"{describe(learner.returned)}, on which {_what(error)}",
                hint="Does every path of your function return a value, and of which type?",
            )
            return _report(entry.id, unusable)
        return _report(entry.id, _raised(error, ""))
    return Report(exercise=entry.id, passed=True)


def _raised(error: BaseException | None, fed: str) -> Failed:
    hint = "Read the last line of the message first: it names the operation that failed."
    if isinstance(error, NotImplementedError):
        hint = "The starter is still in place; write your own lines instead."
    elif isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        hint = (
            "Is it a typing error? If not, the name comes from an earlier cell, most likely the "
            "imports at the top: run the cells above first."
        )
    elif isinstance(error, TypeError) and "argument" in str(error):
        hint = "Keep the names and the order of the arguments that the starter has."
    return Failed(
        "it runs without an error", fed=fed, expected="a result", got=_what(error), hint=hint
    )


def _what(error: BaseException | None) -> str:
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0]}" if message else type(error).__name__


def _report(exercise_id: str, failure: Failed) -> Report:
    return Report(
        exercise=exercise_id,
        passed=False,
        property=failure.property,
        fed=failure.fed,
        expected=failure.expected,
        got=failure.got,
        hint=failure.hint,
    )
