"""Errors of the package.

Every message says what was given, the rule it breaks and the remedy. All of them are
:class:`GlassformerError`, which is a :class:`ValueError`, so one ``except`` catches the family.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = [
    "CacheError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "GenerationError",
    "GlassformerError",
    "MaskError",
    "ShapeError",
    "TokenizerError",
]


class GlassformerError(ValueError):
    """Base of all errors that the package raises on bad input."""


class ConfigError(GlassformerError):
    """A size or choice of a model that cannot work."""


class ShapeError(GlassformerError):
    """A tensor whose shape or dtype does not fit where it was given."""


class MaskError(GlassformerError):
    """A mask that is not boolean or does not broadcast to (batch, heads, time, source)."""


class CacheError(GlassformerError):
    """A key-value cache that is full, or used with a model or batch it was not made for."""


class DataError(GlassformerError):
    """A corpus that is missing, damaged or not what it should be."""


class TokenizerError(GlassformerError):
    """A tokenizer that cannot be trained, loaded or trusted."""


class CheckpointError(GlassformerError):
    """A checkpoint that is missing, damaged or of another model."""


class GenerationError(GlassformerError):
    """A request for text that cannot be fulfilled."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest known ones, or else all of them."""
    known = list(known)
    near = difflib.get_close_matches(given, known, n=2)
    return f"did you mean {' or '.join(near)}?" if near else f"it may be {', '.join(known)}"


@contextmanager
def optional(
    need: str, install: str, error: type[GlassformerError] = ConfigError
) -> Iterator[None]:
    """Around the imports of a package that not everybody installs.

    Args:
        need: what needs which package.
        install: what pip installs then.
        error: raised if it is not there.
    """
    try:
        yield
    except ImportError as missing:
        raise error(f"{need}; get it with: pip install {install}") from missing
