"""What came when, on both sides of an axis that runs downwards, so that a phone can show it.

Book: evolution
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from glassformer.errors import ConfigError
from glassformer.visualization.styling import (
    PALETTE,
    WIDTH,
    new_figure,
    set_label,
    set_title,
    spread_out,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["timeline"]

_LINE = 0.42  # years that one line of text takes
_INCHES = 0.52  # of paper for a year


def timeline(
    left: Mapping[str, float],
    right: Mapping[str, float],
    *,
    title: str,
    names: tuple[str, str],
    marked: Collection[str] = (),
) -> "Figure":
    """Two kinds of events beside one axis of years, the earliest on top.

    Args:
        left, right: label -> when, in years (2017.5 is the middle of 2017).
        title: what to see.
        names: what stands on the left and on the right.
        marked: labels with a full dot and bold letters; the others have an open dot.

    Raises:
        ConfigError: a side without events, or a marked label that stands on neither.

    Book: evolution
    """
    if not left or not right:
        raise ConfigError("a side of the timeline has no event; give each at least one")
    strangers = sorted(set(marked) - {*left, *right})
    if strangers:
        raise ConfigError(f"marked {', '.join(strangers)} is on neither side of the timeline")
    years = [*left.values(), *right.values()]
    first, last = int(min(years)), int(max(years)) + 1
    with new_figure(WIDTH, 1.0 + _INCHES * (last - first + 1.4)) as figure:
        axes = figure.subplots()
        axes.axis("off")
        axes.set_xlim(-1, 1)
        axes.set_ylim(last + 0.3, first - 1.1)
        axes.plot([0, 0], [first, last], color=PALETTE["quiet"], linewidth=2, zorder=1)
        for year in range(first, last + 1):
            axes.text(
                0,
                year,
                f"{year}",
                ha="center",
                va="center",
                fontsize=11,
                color=PALETTE["neutral"],
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
                zorder=2,
            )
        for side, events in ((-1, left), (1, right)):
            _heading(axes, names[side > 0], side, first - 0.75)
            _side(axes, events, side, marked)
        set_title(figure, title)
    return figure


def _heading(axes: "Axes", name: str, side: int, y: float) -> None:
    text = axes.text(
        side * 0.3, y, "", ha="left" if side > 0 else "right", fontsize=13, fontstyle="italic"
    )
    set_label(text, name)


def _side(axes: "Axes", events: Mapping[str, float], side: int, marked: Collection[str]) -> None:
    colour = PALETTE["neutral"]
    ordered = sorted(events.items(), key=lambda event: event[1])
    for (label, when), place in zip(
        ordered, spread_out([w for _, w in ordered], _LINE), strict=True
    ):
        strong = label in marked
        axes.plot(
            [side * 0.13, side * 0.2, side * 0.28],
            [when, when, place],
            color=PALETTE["quiet"],
            linewidth=1.2,
            zorder=1,
        )
        axes.plot(
            side * 0.13,
            when,
            marker="o",
            markersize=7,
            color=colour if strong else "white",
            markeredgecolor=colour,
            zorder=3,
        )
        text = axes.text(
            side * 0.3,
            place,
            "",
            ha="left" if side > 0 else "right",
            va="center",
            color=colour,
            fontsize=12,
            fontweight="bold" if strong else "normal",
        )
        set_label(text, label)
