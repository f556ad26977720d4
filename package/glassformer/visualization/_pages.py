"""Small pages that a reader can play with, and the sliders on them."""

import html
from dataclasses import dataclass

from glassformer.visualization.styling import PALETTE

__all__ = ["Explorer", "slider"]


@dataclass(frozen=True)
class Explorer:
    """A small page that answers to sliders, complete in itself and the same on every run.

    Where scripts do not run it stands still and shows its first state.
    """

    markup: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.markup


def slider(
    label: str,
    value: int | float,
    high: int | float,
    *,
    step: int | float = 1,
    unit: str = "",
    role: str = "query",
    margin: str = "0 0 8px",
) -> str:
    """A labelled slider from 0 to ``high`` that shows its value, in the colour of a role."""
    label = html.escape(label)
    return (
        f'<label style="display:block;margin:{margin};color:{PALETTE[role]}">{label}: '
        f"<output>{value:g}{unit}</output>"
        f'<input type="range" min="0" max="{high:g}" step="{step:g}" value="{value:g}" '
        f'aria-label="{label}" style="display:block;width:100%"></label>'
    )
