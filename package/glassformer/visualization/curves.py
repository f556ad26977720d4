"""Line charts whose lines carry their names, and loss curves.

Book: visualization
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glassformer.errors import ShapeError
from glassformer.visualization.styling import (
    PALETTE,
    WIDTH,
    new_figure,
    rounded,
    safe_label,
    set_title,
    set_words,
    spread_out,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["line_chart", "loss_curve"]

Curves = Mapping[str, tuple[Any, Any]]
_CYCLE = ("query", "key", "value", "source", "target", "neutral")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
_APART = 0.075  # of the height: how close two names at line ends may come


def line_chart(
    curves: Curves,
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_scale: str = "linear",
    y_scale: str = "linear",
    x_ticks: Sequence[int | float] | None = None,
    colours: Mapping[str, str] | None = None,
    notes: Mapping[str, tuple[int | float, int | float]] | None = None,
    spans: Mapping[str, tuple[int | float, int | float]] | None = None,
    y_limits: tuple[int | float, int | float] | None = None,
    markers: bool = False,
    height: float = 3.8,
) -> "Figure":
    """Lines with their names at the right end; dashes tell them apart where colour cannot.

    Args:
        curves: name -> (x, y), sequences or tensors of one length.
        title: what the figure shows, as a sentence.
        x_label, y_label: names of the axes, with units.
        x_scale, y_scale: ``linear``, ``log`` or (x only) ``log2``.
        x_ticks: where to put marks on the horizontal axis.
        colours: name -> a role of ``PALETTE`` or any colour.
        notes: text -> (x, y) where it stands.
        spans: name -> (from, to): a shaded stretch of the horizontal axis.
        y_limits: lowest and highest value shown.
        markers: draw the points too.
        height: in inches.

    Raises:
        ShapeError: if there is no curve, or x and y of one differ in length.

    Book: visualization
    """
    points = {name: (rounded(xs).ravel(), rounded(ys).ravel()) for name, (xs, ys) in curves.items()}
    if not points:
        raise ShapeError("there is no curve to draw; give at least one")
    for name, (xs, ys) in points.items():
        if len(xs) != len(ys):
            raise ShapeError(
                f"curve {name!r} has {len(xs)} x and {len(ys)} y; give as many of each"
            )
    with new_figure(WIDTH, height) as figure:
        axes = figure.subplots()
        _scales(axes, x_scale, y_scale, x_ticks)
        for place, (name, (xs, ys)) in enumerate(points.items()):
            axes.plot(
                xs,
                ys,
                color=_colour(name, place, colours),
                linestyle=_DASHES[place % len(_DASHES)],
                marker="o" if markers else None,
                markersize=5,
            )
        if y_limits is not None:
            axes.set_ylim(*y_limits)
        for text, (x, y) in (notes or {}).items():
            set_words(axes.text(x, y, "", color=PALETTE["neutral"], fontsize=11), text)
        _shade(axes, spans or {})
        set_words(axes.set_xlabel(""), x_label)
        set_words(axes.set_ylabel(""), y_label)
        _name_lines(axes, points, colours)
        set_title(figure, title)
    return figure


def loss_curve(
    curves: Curves,
    *,
    title: str,
    x_label: str = "step",
    y_label: str = "loss (nats per token)",
    phases: Mapping[str, tuple[int | float, int | float]] | None = None,
    y_limits: tuple[int | float, int | float] | None = None,
) -> "Figure":
    """Loss over training: one line each for, say, ``train`` and ``dev``, whose colours are fixed.

    Args:
        curves: name -> (steps, losses).
        title: what the figure shows, as a sentence.
        x_label, y_label: names of the axes.
        phases: name -> (first step, last step), shaded in turn.
        y_limits: lowest and highest loss shown.

    Raises:
        ShapeError: as :func:`line_chart`.

    Book: visualization, training
    """
    return line_chart(
        curves,
        title=title,
        x_label=x_label,
        y_label=y_label,
        colours={"train": "query", "dev": "key", "test": "value"},
        spans=phases,
        y_limits=y_limits,
    )


def _colour(name: str, place: int, colours: Mapping[str, str] | None) -> str:
    chosen = (colours or {}).get(name, _CYCLE[place % len(_CYCLE)])
    return PALETTE.get(chosen, chosen)


def _scales(
    axes: "Axes", x_scale: str, y_scale: str, x_ticks: Sequence[int | float] | None
) -> None:
    if x_scale == "log2":
        axes.set_xscale("log", base=2)
    elif x_scale == "log":
        axes.set_xscale("log")
    if y_scale == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_power_of_ten)
    if x_scale != "linear":
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if x_ticks is not None:
        axes.set_xticks(list(x_ticks), labels=[f"{tick:g}" for tick in x_ticks])
    axes.minorticks_off()


def _power_of_ten(value: float, _: int | float | None = None) -> str:
    """1e-05 as 10⁻⁵, without TeX."""
    if value <= 0:
        return ""
    exponent = round(math.log10(value))
    if -3 < exponent < 4:
        return f"{value:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _shade(axes: "Axes", spans: Mapping[str, tuple[int | float, int | float]]) -> None:
    from matplotlib.transforms import blended_transform_factory

    above = blended_transform_factory(axes.transData, axes.transAxes)
    for place, (name, (start, stop)) in enumerate(spans.items()):
        axes.axvspan(start, stop, color="#f1f1f1" if place % 2 == 0 else "#e2e2e2", linewidth=0)
        shown, families = safe_label(name)
        axes.text(
            (start + stop) / 2,
            1.01,
            shown,
            family=families,
            transform=above,
            ha="center",
            va="bottom",
            fontsize=11,
            color=PALETTE["neutral"],
        )


def _name_lines(
    axes: "Axes", points: Mapping[str, tuple[Any, Any]], colours: Mapping[str, str] | None
) -> None:
    """Each name beside the end of its line, moved apart where lines end close together."""
    axes.get_ylim()  # settles the limits that the next line reads
    transform = axes.transData + axes.transAxes.inverted()
    ends = []
    for place, (name, (xs, ys)) in enumerate(points.items()):
        if len(xs) == 0:
            continue
        height = float(transform.transform((xs[-1], ys[-1]))[1])
        ends.append((min(max(height, 0.0), 1.0) if math.isfinite(height) else 0.5, place, name))
    ends.sort()
    lowest = 0.0
    moved = spread_out([height for height, _, _ in ends], _APART)
    for height, (_, place, name) in zip(moved, ends, strict=True):
        free = max(height, lowest)
        lowest = free + _APART
        shown, families = safe_label(name)
        axes.annotate(
            shown,
            xy=(1.0, free),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=_colour(name, place, colours),
            fontsize=12,
            family=families,
        )
