"""Sinusoidal positions as clocks, to be wound by hand: what turns, and what stays.

Book: embeddings
"""

import hashlib
import json
import math

from glassformer.errors import ShapeError
from glassformer.visualization._pages import Explorer, slider
from glassformer.visualization.styling import PALETTE

__all__ = ["position_clocks"]

_FACE, _MIDDLE, _HAND = 100, 50, 40  # drawing, its middle, length of a hand in it
_LAST, _FARTHEST = 999, 24  # ends of the two sliders


def position_clocks(
    d_model: int = 8, *, position: int = 3, shift: int = 1, base: int | float = 10_000
) -> Explorer:
    """The hands of a sinusoidal code at two positions, with sliders for where and how far apart.

    Each pair of dimensions is a clock: the sine says how far right its hand points, the cosine how
    far up, so that at position 0 all hands stand at twelve. A button lets the position run. While
    it does, the angle between the two hands of a clock and the dot product of the two codes stay.

    Args:
        d_model: width of the code; a clock for every two of it, six at most.
        position: first position, from 0 to 999.
        shift: how far ahead the second position lies, from 0 to 24.
        base: the slowest hands turn about this many times slower than the fastest.

    Raises:
        ShapeError: ``d_model`` is odd or too wide to be drawn, or a position is out of range.

    Source: Vaswani et al. 2017, section 3.5. Book: embeddings
    """
    if d_model % 2 or not 2 <= d_model <= 12:
        raise ShapeError(f"d_model={d_model} must be even, from 2 to 12: a clock for every two")
    for name, value, last in (("position", position, _LAST), ("shift", shift, _FARTHEST)):
        if not 0 <= value <= last:
            raise ShapeError(f"{name}={value} is outside its slider, which goes from 0 to {last}")
    speeds = [base ** (-2 * pair / d_model) for pair in range(d_model // 2)]
    mark = hashlib.sha256(repr((d_model, position, shift, base)).encode()).hexdigest()[:10]
    script = _SCRIPT.replace("@ID@", f"clocks-{mark}").replace("@SPEEDS@", json.dumps(speeds))
    faces = "".join(_clock(pair, speed, position, shift) for pair, speed in enumerate(speeds))
    product = sum(math.cos(shift * speed) for speed in speeds)
    markup = (
        f'<div id="clocks-{mark}" role="group" aria-label="Positions as clock hands" '
        'style="background:#fff;color:#222;color-scheme:light;padding:12px;border-radius:8px;max-width:640px;'
        'font:15px/1.4 sans-serif">'
        f'<div style="display:flex;flex-wrap:wrap;gap:12px;justify-content:space-around">{faces}'
        "</div>"
        f"{slider('position p (thick hands)', position, _LAST, margin='8px 0')}"
        f"{slider('shift k: thin hands at p + k', shift, _FARTHEST, role='key', margin='8px 0')}"
        '<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:center">'
        '<button type="button" aria-pressed="false" style="font:inherit;padding:4px 12px;'
        'background:#fff;color:#222;border:1px solid #4d4d4d;border-radius:4px;cursor:pointer">'
        "let p run</button>"
        f'<span>dot product of the two codes: <b class="product">{product:.3f}</b></span>'
        f"</div></div><script>{script}</script>"
    )
    told = "; ".join(
        f"clock {pair}: {_degrees(position * speed)}° and {_degrees((position + shift) * speed)}°"
        for pair, speed in enumerate(speeds)
    )
    return Explorer(
        markup,
        f"hands at positions {position} and {position + shift}: {told}; "
        f"dot product of the two codes {product:.3f}",
    )


def _degrees(angle: float) -> str:
    """An angle in whole degrees of one turn, clockwise from twelve."""
    return f"{math.degrees(angle) % 360:.0f}"


def _tip(angle: float, reach: int) -> tuple[str, str]:
    return f"{_MIDDLE + reach * math.sin(angle):.1f}", f"{_MIDDLE - reach * math.cos(angle):.1f}"


def _hand(name: str, colour: str, angle: float, reach: int, width: int) -> str:
    x, y = _tip(angle, reach)
    return (
        f'<line class="{name}" x1="{_MIDDLE}" y1="{_MIDDLE}" x2="{x}" y2="{y}" stroke="{colour}" '
        f'stroke-width="{width}" stroke-linecap="round"/>'
    )


def _clock(pair: int, speed: float, position: int, shift: int) -> str:
    ticks = "".join(
        '<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="#999"/>'.format(
            *_tip(hour * math.pi / 6, 44), *_tip(hour * math.pi / 6, 47)
        )
        for hour in range(12)
    )
    return (
        '<div style="flex:0 0 auto;width:132px;text-align:center">'
        f'<svg viewBox="0 0 {_FACE} {_FACE}" width="120" height="120" role="img" '
        f'aria-label="Clock {pair}: a thick hand for position p, a thin one for p plus k">'
        f'<circle cx="{_MIDDLE}" cy="{_MIDDLE}" r="47" fill="none" stroke="#999"/>{ticks}'
        f"{_hand('here', PALETTE['query'], position * speed, _HAND - 6, 6)}"
        f"{_hand('there', PALETTE['key'], (position + shift) * speed, _HAND, 3)}"
        f"</svg><div>dimensions {2 * pair}, {2 * pair + 1}</div>"
        f"<div>turn: {_steps(2 * math.pi / speed)} steps</div>"
        f'<div style="color:{PALETTE["query"]}">at p: <span class="angle">'
        f"{_degrees(position * speed)}°</span></div>"
        f'<div style="color:{PALETTE["key"]}">between: <span class="between">'
        f"{math.degrees(shift * speed) % 360:.1f}°</span></div></div>"
    )


def _steps(wavelength: float) -> str:
    return f"{wavelength:.1f}" if wavelength < 100 else f"{wavelength:,.0f}"


_SCRIPT = """
(function () {
  const root = document.getElementById("@ID@"), speeds = @SPEEDS@;
  const [where, ahead] = root.querySelectorAll("input"), [a, b] = root.querySelectorAll("output");
  const here = root.querySelectorAll(".here"), there = root.querySelectorAll(".there");
  const angles = root.querySelectorAll(".angle"), between = root.querySelectorAll(".between");
  const product = root.querySelector(".product"), button = root.querySelector("button");
  let timer = null;
  function point(line, angle, reach) {
    line.setAttribute("x2", 50 + reach * Math.sin(angle));
    line.setAttribute("y2", 50 - reach * Math.cos(angle));
  }
  function degrees(angle) { return angle * 180 / Math.PI % 360; }
  function draw() {
    const p = Number(where.value), k = Number(ahead.value);
    let total = 0;
    speeds.forEach((speed, i) => {
      point(here[i], p * speed, 34);
      point(there[i], (p + k) * speed, 40);
      angles[i].textContent = degrees(p * speed).toFixed(0) + "\\u00b0";
      between[i].textContent = degrees(k * speed).toFixed(1) + "\\u00b0";
      total += Math.sin(p * speed) * Math.sin((p + k) * speed)
        + Math.cos(p * speed) * Math.cos((p + k) * speed);
    });
    product.textContent = total.toFixed(3);
    a.textContent = p;
    b.textContent = k;
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    button.textContent = "let p run";
    button.setAttribute("aria-pressed", "false");
  }
  function step() {
    if (!root.isConnected) { stop(); return; }
    where.value = (Number(where.value) + 1) % 1000;
    draw();
  }
  button.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    timer = setInterval(step, 250);
    button.textContent = "stop";
    button.setAttribute("aria-pressed", "true");
  });
  where.addEventListener("input", draw);
  ahead.addEventListener("input", draw);
})();
"""
