"""How far a word is from another: the way through a recurrent, convolutional or attention layer.

Book: motivation
"""

import itertools
from typing import TYPE_CHECKING, Literal, get_args

from glassformer.errors import ConfigError
from glassformer.visualization.styling import PALETTE, WIDTH, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["path_picture"]

LayerKind = Literal["rnn", "lstm", "gru", "cnn", "attention"]
Node = tuple[int, int]  # position, level; level 0 holds the tokens
Edge = tuple[Node, Node]

_ON_THE_WAY = {"rnn": "U", "lstm": "× f", "gru": "× z"}  # what meets the memory at each step


def path_picture(
    kind: LayerKind, *, title: str, n: int = 9, kernel_size: int = 3, dilation: int = 1
) -> "Figure":
    """The way from the first of ``n`` tokens to the last output, among all ways there are.

    Args:
        kind: ``rnn``, ``lstm``, ``gru``, ``cnn`` (causal, as many layers as it takes) or
            ``attention`` (causal, one layer).
        title: what to see.
        n: tokens.
        kernel_size, dilation: of the convolutions; each layer's gaps are ``dilation`` times those
            of the layer below.

    Raises:
        ConfigError: an unknown kind, fewer than 2 tokens or a kernel that sees one position only.

    Book: motivation
    """
    if kind not in get_args(LayerKind):
        raise ConfigError(f"kind={kind!r} may be {', '.join(get_args(LayerKind))}")
    if n < 2 or kernel_size < 2 or dilation < 1:
        raise ConfigError(
            f"n={n}, kernel_size={kernel_size}, dilation={dilation}: give at least 2 tokens, a "
            "kernel of at least 2 and a dilation of at least 1"
        )
    edges, way = _layout(kind, n, kernel_size, dilation)
    levels = 1 + max(node[1] for edge in edges for node in edge)
    fan = 1.0 if kind == "attention" else 0.0  # room for lines that lie flat
    with new_figure(WIDTH, 1.35 + 0.62 * levels + fan) as figure:
        axes = figure.subplots()
        axes.axis("off")
        axes.set_xlim(-0.55, n - 0.45)
        axes.set_ylim(-0.75, levels - 0.4)
        for edge in edges:
            _line(axes, edge, PALETTE["quiet"], 1.2)
        for edge in itertools.pairwise(way):
            _line(axes, edge, PALETTE["source"], 2.8)
        nodes = {node for edge in edges for node in edge}
        for position, level in sorted(nodes):
            on_way = (position, level) in way
            axes.plot(
                position,
                level,
                marker="o" if level == 0 else "s",
                markersize=15,
                color=PALETTE["source"] if on_way else "white",
                markeredgecolor=PALETTE["source"] if on_way else PALETTE["neutral"],
                zorder=3,
            )
        for position in range(n):
            colour = "white" if (position, 0) in way else PALETTE["neutral"]
            axes.text(
                position, 0, f"{position + 1}", color=colour, ha="center", va="center", fontsize=11
            )
        if kind in _ON_THE_WAY:
            for position in range(n - 1):
                axes.text(
                    position + 0.5,
                    0.86,
                    _ON_THE_WAY[kind],
                    color=PALETTE["source"],
                    ha="center",
                    va="top",
                    fontsize=13,
                )
        axes.text(-0.4, -0.62, "tokens", color=PALETTE["neutral"], fontsize=13)
        axes.text(
            n - 0.6,
            -0.62,
            _in_words(kind, way),
            color=PALETTE["source"],
            ha="right",
            fontsize=13,
        )
        set_title(figure, title)
    return figure


def _layout(kind: str, n: int, kernel_size: int, dilation: int) -> tuple[list[Edge], list[Node]]:
    """All edges, and the nodes on the way from the first token to the last output."""
    if kind == "attention":
        return [((i, 0), (j, 1)) for j in range(n) for i in range(j + 1)], [(0, 0), (n - 1, 1)]
    if kind == "cnn":
        return _convolutions(n, kernel_size, dilation)
    edges: list[Edge] = [((i, 0), (i, 1)) for i in range(n)]
    edges += [((i, 1), (i + 1, 1)) for i in range(n - 1)]
    way: list[Node] = [(0, 0), *((i, 1) for i in range(n))]
    if kind == "lstm":  # the cell below, the output it shows above, which the next step reads
        edges += [((i, 1), (i, 2)) for i in range(n)]
        edges += [((i, 2), (i + 1, 1)) for i in range(n - 1)]
        way.append((n - 1, 2))
    return edges, way


def _convolutions(n: int, kernel_size: int, dilation: int) -> tuple[list[Edge], list[Node]]:
    gaps: list[int] = []
    while 1 + sum((kernel_size - 1) * gap for gap in gaps) < n:
        gaps.append(dilation ** len(gaps))
    edges: list[Edge] = []
    for level, gap in enumerate(gaps):
        for i in range(n):
            edges += [
                ((i - back * gap, level), (i, level + 1))
                for back in range(kernel_size)
                if i >= back * gap
            ]
    way: list[Node] = [(n - 1, len(gaps))]
    for level in reversed(range(len(gaps))):
        position = way[-1][0]
        widest = min(kernel_size - 1, position // gaps[level])
        way.append((position - widest * gaps[level], level))
    return edges, way[::-1]


def _in_words(kind: str, way: list[Node]) -> str:
    n = way[-1][0] + 1
    if kind == "attention":
        return f"from 1 to {n}: one step"
    if kind == "cnn":
        return f"from 1 to {n}: {len(way) - 1} layers"
    return f"from 1 to {n}: {n - 1} steps in time"


def _line(axes: "Axes", edge: Edge, colour: str, width: float) -> None:
    (x0, y0), (x1, y1) = edge
    axes.plot([x0, x1], [y0, y1], color=colour, linewidth=width, zorder=1 + (width > 2))
