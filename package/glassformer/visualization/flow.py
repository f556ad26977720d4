"""Scaled dot-product attention as a drawing: five steps, and the shape on every arrow.

Book: attention
"""

from typing import TYPE_CHECKING, Any

from glassformer.visualization.styling import PALETTE, WIDTH, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["attention_flow"]

_STEPS = (
    ("compare", "q @ kᵀ", "does the key answer?"),
    ("scale", "÷ √d_k", "keep scores near size one"),
    ("hide", "where mask is False", "no permission, no weight"),
    ("softmax", "over the keys", "shares that sum to one"),
    ("average", "@ v", "mix what is passed on"),
)
_LEFT, _BOX, _HIGH, _GAP = 0.55, 2.3, 0.62, 0.55


def attention_flow(title: str = "Compare, scale, hide, share out, average") -> "Figure":
    """From queries, keys and values to the output, top to bottom.

    Book: attention
    """
    with new_figure(WIDTH, 6.4) as figure:
        axes = figure.subplots()
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(-0.55, 6.75)
        axes.axis("off")
        middle = _LEFT + _BOX / 2
        bottoms = []
        for place, (name, formula, words) in enumerate(_STEPS):
            bottom = 5.2 - place * (_HIGH + _GAP)
            bottoms.append(bottom)
            _box(axes, bottom, name, formula)
            axes.text(_LEFT + _BOX + 0.25, bottom + _HIGH / 2, words, va="center", fontsize=11)
            if place:
                _arrow(axes, (middle, bottom + _HIGH + _GAP), (middle, bottom + _HIGH))
                axes.text(
                    middle + 0.1, bottom + _HIGH + _GAP / 2, "(T, S)", va="center", fontsize=11
                )
        start = 6.45
        for x, letter, role, shape in (
            (_LEFT + 0.5, "q", "query", "(T, d_k)"),
            (_LEFT + _BOX - 0.5, "k", "key", "(S, d_k)"),
        ):
            _ball(axes, x, start, letter, role)
            _arrow(axes, (x, start - 0.2), (x, bottoms[0] + _HIGH), PALETTE[role])
            axes.text(x + 0.1, start - 0.4, shape, va="center", fontsize=11, color=PALETTE[role])
        side = WIDTH - 0.25
        _ball(axes, side, start, "v", "value")
        axes.text(
            side - 0.12,
            start - 0.4,
            "(S, d_v)",
            fontsize=11,
            color=PALETTE["value"],
            ha="right",
            va="center",
        )
        level = bottoms[-1] + 0.12
        axes.plot([side, side], [start - 0.2, level], color=PALETTE["value"], linewidth=1.8)
        _arrow(axes, (side, level), (_LEFT + _BOX, level), PALETTE["value"])
        _arrow(axes, (middle, bottoms[-1]), (middle, -0.2))
        axes.text(middle + 0.1, 0.12, "(T, d_v)", va="center", fontsize=11)
        axes.text(middle, -0.4, "output: one row for each query", ha="center", va="center")
        set_title(figure, title)
    return figure


def _box(axes: "Axes", bottom: float, name: str, formula: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (_LEFT, bottom),
            _BOX,
            _HIGH,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor="#eef3f8",
            edgecolor=PALETTE["neutral"],
        )
    )
    middle = _LEFT + _BOX / 2
    axes.text(middle, bottom + _HIGH * 0.68, name, ha="center", va="center", fontweight="bold")
    axes.text(middle, bottom + _HIGH * 0.28, formula, ha="center", va="center", fontsize=11)


def _ball(axes: "Axes", x: float, y: float, letter: str, role: str) -> None:
    axes.plot(x, y, marker="o", markersize=24, color=PALETTE[role])
    axes.text(x, y, letter, color="white", ha="center", va="center", fontsize=14, fontweight="bold")


def _arrow(axes: "Axes", start: Any, stop: Any, colour: str = PALETTE["neutral"]) -> None:
    axes.annotate(
        "",
        xy=stop,
        xytext=start,
        arrowprops={
            "arrowstyle": "-|>",
            "color": colour,
            "linewidth": 1.8,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
