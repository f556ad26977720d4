"""Pictures of attention weights and of permissions, one map for each head.

Book: visualization
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glassformer.errors import ShapeError
from glassformer.visualization.styling import (
    PALETTE,
    WIDTH,
    new_figure,
    rounded,
    safe_label,
    set_label,
    set_title,
    set_words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["heat_map"]

_NUMBERS_UP_TO = 8  # cells along an axis, over all maps in a row
_MARKS_UP_TO = 16
_LINES_UP_TO = 24  # white lines between more cells would pale the map
_MOST_DECADES = 6
_VECTOR_UP_TO = 4096  # cells of one map that are drawn as shapes, not as pixels

Maps = dict[str, NDArray[Any]]


def heat_map(
    weights: Any,
    row_labels: Sequence[object] | None = None,
    col_labels: Sequence[object] | None = None,
    *,
    title: str,
    names: Sequence[str] | None = None,
    row_title: str = "query: who asks",
    col_title: str = "key: who is asked",
    columns: int | None = None,
    numbers: bool | None = None,
    decades: int | None = None,
) -> "Figure":
    """Who listens to whom, or, for a boolean mask, who may listen to whom.

    Args:
        weights: (T, S) for one map; (H, T, S) or (1, H, T, S) for one map per head, which are
            never averaged; or a mapping from names to (T, S). Boolean maps are drawn as
            permissions, True = may attend. All maps share one colour scale.
        row_labels: T labels, one for each query.
        col_labels: S labels, one for each key.
        title: what the figure shows, as a sentence.
        names: a heading for each map; ``head 0``, ``head 1``, ... when several and ``None``.
        row_title: name of the vertical axis. What begins with ``query:`` or ``key:``, or another
            role of ``PALETTE``, has its colour.
        col_title: name of the horizontal axis, likewise.
        columns: maps beside each other; at most four when ``None``.
        numbers: write the weight into each cell; only into small maps when ``None``.
        decades: colour by powers of ten, this many of them, which shows what is small: 4 tells
            0.0003 from 0.003 and calls everything below 0.0001 nothing.

    Raises:
        ShapeError: if the maps are not of one size, several samples are given, the labels do not
            fit, nothing is there to be drawn, or there are fewer than 1 or more than 6 decades.

    Book: visualization
    """
    maps = _as_maps(weights, names)
    first = next(iter(maps.values()))
    n_rows, n_cols = first.shape
    _check_labels("row_labels", row_labels, n_rows)
    _check_labels("col_labels", col_labels, n_cols)
    if columns is not None and columns < 1:
        raise ShapeError(f"columns={columns} must be at least 1")
    columns = min(len(maps), columns or 4)
    lines = math.ceil(len(maps) / columns)
    if numbers is None:
        numbers = max(n_cols * columns, n_rows) <= _NUMBERS_UP_TO or (n_cols <= 4 and columns <= 2)
    top = max(1.0, *(float(np.nanmax(shown, initial=0)) for shown in maps.values()))
    if decades is not None:
        if not 1 <= decades <= _MOST_DECADES:
            raise ShapeError(f"decades={decades} must be from 1 to {_MOST_DECADES}; try 4")
        maps = {name: _in_decades(shown, decades) for name, shown in maps.items()}
        top, numbers = float(decades), False
    key = 0.0 if decades is None else 1.1  # what the shades mean, beside the maps
    width, height = _size(maps, columns, lines, row_labels, col_labels, WIDTH - key)
    with new_figure(width + key, height) as figure:
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(maps) :]:
            axes.set_visible(False)
        for place, (name, shown) in enumerate(maps.items()):
            axes = grid.flat[place]
            _draw(axes, shown, top, numbers)
            if len(maps) > 1 or names:
                heading = axes.set_title("", fontsize=12, fontweight="normal", loc="center")
                set_label(heading, name)
            _name_axes(axes, row_labels, col_labels, (n_rows, n_cols))
            if place % columns:
                axes.yaxis.set_ticklabels([])
            if _upright(col_labels, n_cols, columns):
                axes.tick_params(axis="x", rotation=90)
        if decades is not None:
            _add_key(figure, grid, decades)
        across = grid[-1, 0].set_xlabel if columns == 1 else figure.supxlabel
        down = grid[0, 0].set_ylabel if lines == 1 else figure.supylabel
        set_words(across("", color=_role(col_title), fontsize=12), col_title)
        set_words(down("", color=_role(row_title), fontsize=12), row_title)
        set_title(figure, title)
    return figure


def _role(title: str) -> str:
    """The colour of what stands on an axis: that of queries or keys only if it is about them."""
    return PALETTE.get(title.partition(":")[0], PALETTE["neutral"])


def _as_maps(weights: Any, names: Sequence[str] | None) -> Maps:
    """Every map under its name, as plain numbers."""
    if isinstance(weights, Mapping):
        maps = {str(name): _plain(shown) for name, shown in weights.items()}
    else:
        array = _plain(weights)
        if array.ndim == 4 and array.shape[0] == 1:
            array = array[0]
        if array.ndim == 2:
            array = array[None]
        if array.ndim != 3:
            raise ShapeError(
                f"weights of shape {array.shape} are no single sample; pick one, as in weights[0]"
            )
        names = names or [f"head {head}" for head in range(len(array))]
        if len(names) != len(array):
            raise ShapeError(f"{len(names)} names for {len(array)} maps; give one for each")
        maps = dict(zip(names, array, strict=True))
    if not maps or len({shown.shape for shown in maps.values()}) != 1:
        raise ShapeError(
            "maps in one figure need one size; draw the others in a figure of their own"
        )
    if next(iter(maps.values())).ndim != 2:
        raise ShapeError("a named map has two axes, queries by keys")
    if not next(iter(maps.values())).size:
        raise ShapeError("a map without queries or keys has nothing to show; leave it out")
    return maps


def _plain(values: Any) -> NDArray[Any]:
    array = values.detach().cpu() if hasattr(values, "detach") else np.asarray(values)
    if str(array.dtype).endswith("bool"):
        return np.asarray(array)
    return rounded(array)


def _check_labels(which: str, labels: Sequence[object] | None, wanted: int) -> None:
    if labels is not None and len(labels) != wanted:
        raise ShapeError(f"{len(labels)} {which} for a map with {wanted}; give one for each")


def _size(
    maps: Maps,
    columns: int,
    lines: int,
    row_labels: Sequence[object] | None,
    col_labels: Sequence[object] | None,
    page: float,
) -> tuple[float, float]:
    """Width and height that leave room for the labels in full; as wide as the page if it can be."""
    n_rows, n_cols = next(iter(maps.values())).shape
    beside = 0.3 + 0.11 * _longest(row_labels)
    below = 0.3 + (0.11 * _longest(col_labels) if _upright(col_labels, n_cols, columns) else 0.2)
    room = page - beside - 0.4
    cell = min(0.95, room / (n_cols * columns), 4.6 / n_rows)
    cell = max(cell, 0.165 if col_labels is not None or row_labels is not None else 0.03)
    width = max(page, n_cols * columns * cell + beside + 0.6)
    return width, lines * (n_rows * cell + below + 0.35) + 0.7


def _longest(labels: Sequence[object] | None) -> int:
    return max((len(str(label)) for label in labels), default=0) if labels is not None else 2


def _upright(labels: Sequence[object] | None, n_cols: int, columns: int) -> bool:
    """Whether labels below the map must stand on end to keep apart."""
    return labels is not None and _longest(labels) * 0.12 * n_cols * columns > 4.6


def _draw(axes: "Axes", shown: NDArray[Any], top: float, numbers: bool) -> None:
    from matplotlib.colors import ListedColormap

    permission = shown.dtype == np.bool_
    n_rows, n_cols = shown.shape
    small = shown.size <= _VECTOR_UP_TO
    lines = "white" if max(n_rows, n_cols) <= _LINES_UP_TO else "face"
    axes.pcolormesh(
        shown.astype(float),
        cmap=ListedColormap(["#ececec", PALETTE["query"]]) if permission else "Blues",
        vmin=0.0,
        vmax=1.0 if permission else top,
        edgecolors=lines if small else "none",
        linewidth=1.0 if max(n_rows, n_cols) <= _MARKS_UP_TO else 0.2,
        rasterized=not small,
    )
    axes.set_aspect("equal")
    axes.set_ylim(n_rows, 0)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if permission and max(n_rows, n_cols) <= _MARKS_UP_TO:
        for row, col in np.argwhere(shown):
            axes.plot(col + 0.5, row + 0.5, marker="o", color="white", markersize=4)
    if numbers and not permission:
        for (row, col), value in np.ndenumerate(shown):
            colour = "white" if value > 0.66 * top else "#222222"  # contrast of 4 or more
            label = "NaN" if math.isnan(value) else f"{value:.2f}"
            axes.text(col + 0.5, row + 0.5, label, ha="center", va="center", color=colour)


def _in_decades(shown: NDArray[Any], decades: int) -> NDArray[Any]:
    """0 for less than all the decades, then one step up for each power of ten."""
    exponents = np.floor(np.log10(np.maximum(shown.astype(float), 10.0 ** -(decades + 1))))
    return np.clip(exponents + decades + 1, 0, decades)


def _add_key(figure: "Figure", grid: Any, decades: int) -> None:
    """What the shades of the powers of ten mean."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm

    edges = [step - 0.5 for step in range(decades + 2)]
    shades = ScalarMappable(norm=BoundaryNorm(edges, 256), cmap="Blues")
    bar = figure.colorbar(
        shades, ax=list(grid.flat), ticks=range(decades + 1), fraction=0.05, pad=0.02
    )
    starts = [
        f"from {10.0 ** (step - decades - 1):.{decades - step + 1}f}"
        for step in range(1, decades + 1)
    ]
    bar.ax.set_yticklabels(["less", *starts])
    bar.ax.tick_params(which="both", length=0)
    bar.outline.set_visible(False)


def _name_axes(
    axes: "Axes",
    row_labels: Sequence[object] | None,
    col_labels: Sequence[object] | None,
    size: tuple[int, int],
) -> None:
    n_rows, n_cols = size
    for labels, count, axis in ((row_labels, n_rows, axes.yaxis), (col_labels, n_cols, axes.xaxis)):
        shown = [str(i) for i in range(count)] if labels is None else labels
        step = 1 if labels is not None else max(1, math.ceil(count / 8))
        axis.set_ticks([i + 0.5 for i in range(0, count, step)])
        drawn = [safe_label(shown[place]) for place in range(0, count, step)]
        axis.set_ticklabels([text for text, _ in drawn])
        for tick, (_, families) in zip(axis.get_ticklabels(), drawn, strict=True):
            tick.set_fontfamily(families)
