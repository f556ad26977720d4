"""One look for all figures: colours with fixed roles, sizes for a phone, labels taken literally.

Book: visualization
"""

import contextlib
import functools
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

__all__ = [
    "PALETTE",
    "new_figure",
    "rounded",
    "safe_label",
    "set_label",
    "set_title",
    "set_words",
    "spread_out",
    "style",
]

# Dark enough to be read as text on white, and apart from each other in the usual kinds of colour
# blindness (after Okabe and Ito).
PALETTE = {
    "query": "#0063a6",
    "key": "#c24700",
    "value": "#00775a",
    "source": "#9b3d7e",
    "target": "#6f5f00",
    "neutral": "#4d4d4d",
    "quiet": "#b8b8b8",
}

WIDTH = 6.0  # inches; 12 points in it are still legible on a phone

_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#4d4d4d",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 2.2,
    "figure.figsize": (WIDTH, 3.6),
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "glassformer",
    "text.parse_math": False,
    "mathtext.default": "regular",
}

# Fonts that carry Chinese, Japanese and Korean, on Linux, macOS and Windows.
_WIDE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti TC",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "SimHei",
)
_VISIBLE = {"\n": "↵", "\r": "␍", "\t": "→", "": "∅"}


def style() -> None:
    """Give the figures that follow the look of the book.

    Book: visualization
    """
    import matplotlib as mpl

    mpl.rcParams.update(_RC)


@contextlib.contextmanager
def new_figure(width: float = WIDTH, height: float = 3.6) -> "Iterator[Figure]":
    """A figure in the look of the book, whatever the settings outside.

    It is not registered with pyplot, so a notebook shows it once: as the value of the cell.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with mpl.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for text in figure.findobj(Text):
            text.set_parse_math(False)
        figure.draw_without_rendering()  # any trouble shows here, not later


def rounded(values: Any, digits: int = 4) -> NDArray[np.float64]:
    """Numbers to ``digits`` significant digits, so that two CPUs draw the same picture.

    Book: visualization
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values, dtype=np.float64)
    flat = [float(f"{value:.{digits}g}") for value in array.ravel()]
    return np.array(flat, dtype=np.float64).reshape(array.shape)


def safe_label(label: object) -> tuple[str, list[str]]:
    """A label as it can be drawn, and the font families that draw it.

    White space becomes visible. Characters that the base font lacks are drawn with an installed
    font that has them; a character that no font has is spelt as its code point.

    Book: visualization
    """
    text = "".join(_VISIBLE.get(char, char) for char in str(label)) or _VISIBLE[""]
    families = ["DejaVu Sans"]
    known = _characters("DejaVu Sans")
    missing = sorted({char for char in text if ord(char) not in known})
    for family in _WIDE_FONTS:
        if not missing:
            break
        covered = _characters(family)
        if any(ord(char) in covered for char in missing):
            families.append(family)
            missing = [char for char in missing if ord(char) not in covered]
    for char in missing:
        text = text.replace(char, f"U+{ord(char):04X}")
    return text, families


def set_title(figure: "Figure", title: str) -> None:
    """The message of a figure, in bold over its left edge."""
    heading = figure.suptitle("", x=0.01, ha="left", fontsize=13, fontweight="bold")
    columns = int(9 * figure.get_figwidth())  # characters of this size that fit into a line
    set_label(heading, title)
    heading.set_text("\n".join(textwrap.wrap(heading.get_text(), columns)))


def set_label(text: "Text", label: object) -> None:
    """Put a label on a text of a figure, literally and with fonts that have its characters."""
    shown, families = safe_label(label)
    text.set_parse_math(False)
    text.set_text(shown)
    text.set_fontfamily(families)


def set_words(text: "Text", words: str) -> None:
    """As :func:`set_label` for a title of an axis or a note, which may be empty or have lines."""
    set_label(text, words)
    text.set_text("\n".join(line and safe_label(line)[0] for line in words.split("\n")))


def spread_out(places: Sequence[float], distance: float) -> list[float]:
    """Where to write labels for these places, in ascending order, so that none covers another.

    Places that are too close form a group, which is spread around its mean.
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and (
            _first(groups[-1], distance) - _first(groups[-2], distance) < distance * len(groups[-2])
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_first(group, distance) + distance * i for group in groups for i in range(len(group))]


def _first(group: list[float], distance: float) -> float:
    return sum(group) / len(group) - distance * (len(group) - 1) / 2


@functools.cache
def _characters(family: str) -> frozenset[int]:
    """The characters of an installed font; none if it is not installed."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    for entry in font_manager.fontManager.ttflist:
        if entry.name == family and entry.style == "normal":
            return frozenset(FT2Font(entry.fname).get_charmap())
    return frozenset()
