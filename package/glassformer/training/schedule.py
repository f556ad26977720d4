"""How the learning rate moves: pure functions from a step to a factor.

Steps are counted from 0. The factor multiplies the peak learning rate; it reaches 1 with step
``warmup - 1``, the last one of the warm-up, and ``warmup=0`` starts at once with 1. A function of
the step alone has no state to save, and no way to tick at the wrong moment.

Book: training
"""

import math

from glassformer.errors import ConfigError

__all__ = ["warmup_constant", "warmup_cosine", "warmup_inverse_sqrt"]


def warmup_cosine(step: int, *, warmup: int, total: int, floor: float = 0.1) -> float:
    """Up in a line, then down along half a cosine, to ``floor`` at step ``total`` and after it.

    Raises:
        ConfigError: a negative step or warm-up, ``total`` below 1, ``floor`` outside 0 to 1.

    Source: Loshchilov & Hutter 2017, equation 5, for the cosine. Book: training
    """
    _check(step, warmup)
    if total < 1 or not 0.0 <= floor <= 1.0:
        raise ConfigError(f"total={total} must be at least 1 and floor={floor} between 0 and 1")
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def warmup_inverse_sqrt(step: int, *, warmup: int) -> float:
    """Up in a line, then down with one over the root of the step.

    Vaswani's rule ``d_model^-0.5 * min(s^-0.5, s * warmup^-1.5)``, with s counted from 1, divided
    by its peak ``(d_model * warmup)^-0.5``.

    Raises:
        ConfigError: a negative step or warm-up.

    Source: Vaswani et al. 2017, equation 3. Book: training
    """
    _check(step, warmup)
    warmup = max(warmup, 1)
    return min((warmup / (step + 1)) ** 0.5, (step + 1) / warmup)


def warmup_constant(step: int, *, warmup: int) -> float:
    """Up in a line, then flat.

    Raises:
        ConfigError: a negative step or warm-up.

    Book: training
    """
    _check(step, warmup)
    return (step + 1) / warmup if step < warmup else 1.0


def _check(step: int, warmup: int) -> None:
    if step < 0 or warmup < 0:
        raise ConfigError(
            f"step={step} and warmup={warmup} are counts of steps; neither can be negative"
        )
