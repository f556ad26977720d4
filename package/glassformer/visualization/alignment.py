"""Two sentences side by side, and a line from each word to the words that it drew on.

Book: cross_attention
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from glassformer.errors import ShapeError
from glassformer.visualization.styling import (
    PALETTE,
    WIDTH,
    new_figure,
    rounded,
    set_label,
    set_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["alignment_picture"]

_LEFT, _RIGHT, _TOP = 0.0, 1.0, -1.1  # where the columns stand, and their headings
_ROW = 0.36  # inches for a word
_FAINTEST = 0.05  # weights below are not drawn


def alignment_picture(
    weights: Any,
    source: Sequence[object],
    target: Sequence[object],
    *,
    title: str,
    gold: Collection[tuple[int, int]] = (),
    source_title: str = "source",
    target_title: str = "target",
) -> "Figure":
    """Which source words each target word draws on: the thicker the line, the larger the weight.

    Both are read from top to bottom, so where the order is the same the lines run level, and where
    it is not they cross. Weights below 0.05 are left out.

    Args:
        weights: (T, S), the attention of one head, or a mean.
        source: the S words that are asked, on the left.
        target: the T words that ask, on the right.
        title: what to see, as a sentence.
        gold: pairs (source, target) that a person would draw; dashed.
        source_title, target_title: headings of the two columns.

    Raises:
        ShapeError: weights of another size than the words, or a gold link beyond them.

    Book: cross_attention
    """
    table = rounded(weights, 2)
    if table.shape != (len(target), len(source)):
        raise ShapeError(
            f"weights of shape {table.shape} for {len(target)} target and {len(source)} source "
            "words; give one row for each target word and one column for each source word"
        )
    beyond = [link for link in gold if link[0] >= len(source) or link[1] >= len(target)]
    if beyond:
        raise ShapeError(
            f"gold link {beyond[0]} is beyond {len(source)} source and {len(target)} target words; "
            "links are (source, target), counted from 0"
        )
    longest = max(len(source), len(target))
    with new_figure(WIDTH, _ROW * (longest + 1) + 0.8) as figure:
        axes = figure.subplots()
        axes.set_xlim(-0.62, 1.62)
        axes.set_ylim(longest - 0.3, -1.4)
        axes.axis("off")
        heights = {
            side: [(place + 0.5) * longest / len(words) - 0.5 for place in range(len(words))]
            for side, words in (("source", source), ("target", target))
        }
        for t, s in zip(*(table >= _FAINTEST).nonzero(), strict=True):
            axes.plot(
                (_LEFT, _RIGHT),
                (heights["source"][s], heights["target"][t]),
                color=PALETTE["query"],
                linewidth=0.6 + 6.4 * float(table[t, s]),
                alpha=0.25 + 0.6 * min(float(table[t, s]), 1.0),
                solid_capstyle="round",
            )
        for s, t in sorted(gold):
            axes.plot(
                (_LEFT, _RIGHT),
                (heights["source"][s], heights["target"][t]),
                color="#111111",
                linewidth=1.2,
                linestyle=(0, (3, 3)),
            )
        headings = {"source": source_title, "target": target_title}
        for side, words, x in (("source", source, _LEFT), ("target", target, _RIGHT)):
            _write(axes, side, x, _TOP, headings[side], weight="bold")
            for word, height in zip(words, heights[side], strict=True):
                _write(axes, side, x, height, word)
        set_title(figure, title)
    return figure


def _write(
    axes: "Axes", side: str, x: float, height: float, word: object, *, weight: str = "normal"
) -> None:
    """A word beside its column: sources on the left of it, targets on the right."""
    left = side == "source"
    label = axes.text(
        x - 0.04 if left else x + 0.04,
        height,
        "",
        ha="right" if left else "left",
        va="center",
        color=PALETTE[side],
        fontsize=12,
        fontweight=weight,
    )
    set_label(label, word)
