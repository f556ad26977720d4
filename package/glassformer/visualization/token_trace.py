"""A text while it is written: each token with the probability it had, and what it was chosen over.

Book: visualization
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassformer.errors import ShapeError
from glassformer.visualization.styling import PALETTE, WIDTH, new_figure, safe_label, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["token_trace"]

Likely = tuple[str, int | float]

_ROW, _BAR, _MOST = 0.58, 0.42, 40  # inches a token takes; share of it that is the bar; rows


def token_trace(
    tokens: Sequence[tuple[str, int | float, Sequence[Likely]]],
    *,
    title: str,
    n_alternatives: int = 3,
) -> "Figure":
    """One row for each token: its probability as a bar, its rivals as pale parts and in words.

    Args:
        tokens: (token, probability, alternatives with their probabilities); the token itself may
            be among the alternatives and is left out there.
        title: what the figure shows, as a sentence.
        n_alternatives: how many rivals a row shows, the most likely first.

    Raises:
        ShapeError: no token or more than 40, or a probability outside 0 to 1.

    Book: visualization
    """
    if not 1 <= len(tokens) <= _MOST:
        raise ShapeError(f"{len(tokens)} tokens cannot be drawn; give 1 to {_MOST}")
    with new_figure(WIDTH, 0.75 + _ROW * len(tokens)) as figure:
        axes = figure.subplots()
        axes.axis("off")
        axes.set_xlim(-0.36, 1.12)
        axes.set_ylim(len(tokens) - 0.3, -0.5)
        for row, (token, probability, alternatives) in enumerate(tokens):
            rivals = [pair for pair in alternatives if pair[0] != token]
            rivals = sorted(rivals, key=lambda pair: -pair[1])[:n_alternatives]
            for value in (probability, *(share for _, share in rivals)):
                if not 0 <= value <= 1:
                    raise ShapeError(f"{value} is no probability; give numbers from 0 to 1")
            _draw_bars(axes, row, probability, [share for _, share in rivals])
            _write(axes, (-0.03, row), _visible(token), 13, PALETTE["query"], "right", bold=True)
            _write(axes, (1.03, row), f"{probability:.2f}", 12, PALETTE["query"], "left")
            words = "   ".join(f"{_visible(name)} {share:.2f}" for name, share in rivals)
            _write(axes, (0.0, row + 0.44), words, 11, PALETTE["neutral"], "left")
        set_title(figure, title)
    return figure


def _visible(token: str) -> str:
    """A token without the spaces around it, or, where it is nothing else, with open boxes."""
    return token.strip(" ") or "␣" * len(token)


def _draw_bars(axes: "Axes", row: int, probability: int | float, rivals: list[int | float]) -> None:
    """The token's own share of all probability, then those of its rivals, then an empty rest."""
    axes.barh(row, 1.0, _BAR, color="none", edgecolor=PALETTE["quiet"], linewidth=0.8)
    axes.barh(row, round(probability, 2), _BAR, color=PALETTE["query"])
    left: int | float = round(probability, 2)  # as printed, and the same on every machine
    for share in rivals:
        axes.barh(
            row,
            round(share, 2),
            _BAR,
            left=round(left, 2),
            color="#e3b994",
            edgecolor="white",
            linewidth=1.0,
        )
        left += round(share, 2)


def _write(
    axes: "Axes",
    place: tuple[int | float, int | float],
    words: str,
    size: int,
    colour: str,
    side: str,
    *,
    bold: bool = False,
) -> None:
    shown, families = safe_label(words)
    axes.text(
        *place,
        shown,
        ha=side,
        va="center",
        fontsize=size,
        color=colour,
        family=families,
        fontweight="bold" if bold else "normal",
    )
