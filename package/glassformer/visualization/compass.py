"""A query to turn and stretch: which keys it meets, and how the shares move.

Book: attention
"""

import hashlib
import html
import json
import math
from collections.abc import Mapping

from glassformer.errors import ShapeError
from glassformer.visualization._pages import Explorer, slider
from glassformer.visualization.styling import PALETTE

__all__ = ["query_compass"]

_SIZE, _KEY, _LONGEST = 260, 78, 40.0  # drawing, length of a key in it, longest query


def query_compass(
    keys: Mapping[str, int | float],
    *,
    name: str = "query",
    angle: int | float = 30,
    length: int | float = 3.0,
) -> Explorer:
    """One query among keys on a circle, with sliders for its direction and its length.

    The shares are ``softmax(keys @ query / sqrt(2))``: direction chooses, length makes sure.

    Args:
        keys: label -> direction of a key of length one, in degrees.
        name: who asks.
        angle: first direction of the query, in degrees.
        length: first length of the query, from 0 to 40.

    Raises:
        ShapeError: if there are no keys, or the length is out of range.

    Book: attention
    """
    if not keys:
        raise ShapeError("a query needs at least one key to meet; give label -> degrees")
    if not 0 <= length <= _LONGEST:
        raise ShapeError(
            f"length={length} is outside the slider, which goes from 0 to {_LONGEST:g}"
        )
    shares = _shares(keys, angle, length)
    mark = hashlib.sha256(repr((dict(keys), name, angle, length)).encode()).hexdigest()[:10]
    rows = "".join(_row(label, share) for label, share in zip(keys, shares, strict=True))
    script = _SCRIPT.replace("@ID@", f"compass-{mark}").replace(
        "@KEYS@", json.dumps([math.radians(degrees) for degrees in keys.values()])
    )
    markup = (
        f'<div id="compass-{mark}" style="display:flex;flex-wrap:wrap;gap:16px;align-items:center;'
        "background:#fff;color:#222;padding:12px;border-radius:8px;max-width:640px;"
        'font:15px/1.4 sans-serif">'
        f"{_plane(keys, angle, length)}"
        '<div style="flex:1 1 240px;min-width:0">'
        f"{slider(f'direction of {name}', angle, 359, unit='°')}"
        f"{slider(f'length of {name}', length, _LONGEST, step=0.5)}"
        f'<div role="group" aria-label="shares">{rows}</div></div></div>'
        f"<script>{script}</script>"
    )
    told = ", ".join(f"{key} {share:.2f}" for key, share in zip(keys, shares, strict=True))
    return Explorer(markup, f"{name} at {angle}°, length {length:g}: {told}")


def _shares(
    keys: Mapping[str, int | float], angle: int | float, length: int | float
) -> list[float]:
    scores = [length * math.cos(math.radians(d - angle)) / math.sqrt(2) for d in keys.values()]
    parts = [math.exp(score - max(scores)) for score in scores]
    return [part / sum(parts) for part in parts]


def _reach(length: int | float) -> float:
    """How long the query is drawn: even a short one shows its direction."""
    return 14.0 + length * 2


def _tip(degrees: int | float, reach: int | float) -> tuple[str, str]:
    turn, middle = math.radians(degrees), _SIZE / 2
    return f"{middle + reach * math.cos(turn):.1f}", f"{middle - reach * math.sin(turn):.1f}"


def _plane(keys: Mapping[str, int | float], angle: int | float, length: int | float) -> str:
    middle = _SIZE // 2
    shown = [
        f'<circle cx="{middle}" cy="{middle}" r="{_KEY}" fill="none" stroke="#ddd"/>',
    ]
    for label, degrees in keys.items():
        x, y = _tip(degrees, _KEY)
        text_x, text_y = _tip(degrees, _KEY + 24)
        shown.append(
            f'<line x1="{middle}" y1="{middle}" x2="{x}" y2="{y}" stroke="{PALETTE["key"]}" '
            f'stroke-width="2"/><circle cx="{x}" cy="{y}" r="4" fill="{PALETTE["key"]}"/>'
            f'<text x="{text_x}" y="{text_y}" fill="{PALETTE["key"]}" text-anchor="middle" '
            f'dominant-baseline="middle" font-size="14">{html.escape(label)}</text>'
        )
    x, y = _tip(angle, _reach(length))
    shown.append(
        f'<line class="query" x1="{middle}" y1="{middle}" x2="{x}" y2="{y}" '
        f'stroke="{PALETTE["query"]}" stroke-width="5" stroke-linecap="round"/>'
    )
    return (
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" width="{_SIZE}" height="{_SIZE}" role="img" '
        'aria-label="The keys as thin arrows from the middle, the query as a thick one" '
        f'style="max-width:100%;flex:0 1 auto">{"".join(shown)}</svg>'
    )


def _row(label: str, share: float) -> str:
    return (
        '<div style="display:flex;align-items:center;gap:8px;margin:4px 0">'
        f'<span style="flex:0 0 4em;overflow-wrap:anywhere">{html.escape(label)}</span>'
        '<span style="flex:1;background:#eee;height:14px"><span class="bar" style="display:block;'
        f'height:14px;background:{PALETTE["value"]};width:{100 * share:.1f}%"></span></span>'
        f'<span class="share" style="flex:0 0 3em;text-align:right">{share:.2f}</span></div>'
    )


_SCRIPT = """
(function () {
  const root = document.getElementById("@ID@"), keys = @KEYS@, middle = 130;
  const [turn, long] = root.querySelectorAll("input"), [a, b] = root.querySelectorAll("output");
  const line = root.querySelector(".query");
  const bars = root.querySelectorAll(".bar"), shares = root.querySelectorAll(".share");
  function draw() {
    const angle = turn.value * Math.PI / 180, length = Number(long.value);
    const scores = keys.map(key => length * Math.cos(key - angle) / Math.SQRT2);
    const top = Math.max(...scores), parts = scores.map(score => Math.exp(score - top));
    const total = parts.reduce((x, y) => x + y, 0), reach = 14 + length * 2;
    line.setAttribute("x2", middle + reach * Math.cos(angle));
    line.setAttribute("y2", middle - reach * Math.sin(angle));
    parts.forEach((part, i) => {
      bars[i].style.width = 100 * part / total + "%";
      shares[i].textContent = (part / total).toFixed(2);
    });
    a.textContent = turn.value + "\\u00b0";
    b.textContent = long.value;
  }
  turn.addEventListener("input", draw);
  long.addEventListener("input", draw);
})();
"""
