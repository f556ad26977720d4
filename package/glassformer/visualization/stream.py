"""The residual stream as a drawing: an arrow that runs through, and layers that add to it.

Book: feed_forward
"""

from typing import TYPE_CHECKING, Any

from glassformer.visualization.styling import PALETTE, WIDTH, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["residual_stream"]

_LEVEL, _NORM, _LAYER = 0.55, 1.15, 1.85


def residual_stream(
    title: str = "The stream runs through; layers read it and add to it",
) -> "Figure":
    """Two pre-norm layers, each of attention and a feed-forward network, along one stream.

    Book: feed_forward
    """
    with new_figure(WIDTH, 3.0) as figure:
        axes = figure.subplots()
        axes.set_xlim(0, 9.2)
        axes.set_ylim(0, 2.5)
        axes.axis("off")
        stream = PALETTE["query"]
        _arrow(axes, (0.1, _LEVEL), (9.1, _LEVEL), stream, width=5.0)
        axes.text(0.1, 0.1, "x, of shape (T, d)", color=stream, fontsize=12, va="center")
        for place in range(4):
            left = 0.55 + 2.1 * place
            name, role = (("attention", "value"), ("FFN", "key"))[place % 2]
            read, write = left + 0.35, left + 1.3
            _arrow(axes, (read, _LEVEL), (read, _LAYER), PALETTE["neutral"])
            _box(axes, (left, _NORM), (0.7, 0.34), "norm", PALETTE["neutral"])
            _box(axes, (left, _LAYER), (1.65, 0.5), name, PALETTE[role])
            _arrow(axes, (write, _LAYER), (write, _LEVEL + 0.17), PALETTE[role])
            axes.plot(
                write,
                _LEVEL,
                "o",
                markersize=18,
                color="white",
                markeredgecolor=stream,
                markeredgewidth=1.8,
                zorder=2.5,
            )
            axes.text(write, _LEVEL, "+", ha="center", va="center", color=stream, zorder=3)
        set_title(figure, title)
    return figure


def _box(axes: "Axes", corner: Any, size: Any, name: str, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            corner,
            size[0],
            size[1],
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor="white",
            edgecolor=colour,
            linewidth=1.8,
            zorder=2.5,
        )
    )
    middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    axes.text(*middle, name, ha="center", va="center", fontsize=11, color=colour, zorder=3)


def _arrow(axes: "Axes", start: Any, stop: Any, colour: str, width: float = 1.8) -> None:
    axes.annotate(
        "",
        xy=stop,
        xytext=start,
        zorder=2,
        arrowprops={
            "arrowstyle": "-|>",
            "mutation_scale": 10 + 2 * width,
            "color": colour,
            "linewidth": width,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
