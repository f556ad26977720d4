"""All heads of a model at work on one sentence, to be stepped through.

Book: multi_head
"""

import hashlib
import html
import json
from collections.abc import Mapping, Sequence

from torch import Tensor

from glassformer.errors import ShapeError
from glassformer.visualization.compass import Explorer
from glassformer.visualization.styling import PALETTE

__all__ = ["head_player"]

_CELL, _LEFT, _TOP, _MOST = 22, 74, 62, 24  # a cell, room for labels, tokens that can be drawn
_INK = "#173f5f"


def head_player(
    maps: Mapping[str, Tensor],
    tokens: Sequence[str],
    *,
    layer: int = 0,
    head: int = 0,
    asks: int = 0,
) -> Explorer:
    """The weights of every layer and head on one sentence, with sliders and a button to play them.

    The picture has a row for each token that asks; bars show the row of one of them in numbers.
    Weights are shown to two digits.

    Args:
        maps: as :func:`glassformer.introspect.capture_attention` gives them: a name for each layer
            -> weights (1, H, T, T), with equally many heads in each.
        tokens: the T tokens, at most 24.
        layer, head: which map is shown first.
        asks: place of the token whose row is shown first.

    Raises:
        ShapeError: maps of another shape, too many tokens, or a first choice that is not there.

    Book: multi_head
    """
    places, layers = len(tokens), [_percent(weights, len(tokens)) for weights in maps.values()]
    heads = len(layers[0]) if layers else 0
    if not layers or any(len(one) != heads for one in layers):
        raise ShapeError("maps need at least one layer, and equally many heads in each")
    for name, value, count in (
        ("layer", layer, len(layers)),
        ("head", head, heads),
        ("asks", asks, places),
    ):
        if not 0 <= value < count:
            raise ShapeError(f"{name}={value} is not there; there are {count}, counted from 0")
    shown = layers[layer][head]
    data = json.dumps(["".join(_digits(square) for square in one) for one in layers])
    row, told = shown[asks], _told(tokens, shown, layer, head, asks)
    mark = hashlib.sha256(repr((data, list(tokens), layer, head, asks)).encode()).hexdigest()[:10]
    script = _SCRIPT.replace("@ID@", f"player-{mark}").replace("@MAPS@", data)
    script = script.replace("@TOKENS@", json.dumps(list(tokens)).replace("<", "\\u003c"))
    script = script.replace("@HEADS@", str(heads))
    markup = (
        f'<div id="player-{mark}" role="group" aria-label="Heads of a model at work" '
        'style="background:#fff;color:#222;padding:12px;border-radius:8px;max-width:680px;'
        'font:15px/1.4 sans-serif">'
        '<div style="display:flex;flex-wrap:wrap;gap:4px 16px">'
        f"{_slider('layer', len(layers) - 1, layer)}{_slider('head', heads - 1, head)}</div>"
        '<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:center">'
        f"{_picture(tokens, shown, asks)}"
        '<div style="flex:1 1 220px;min-width:0">'
        f"{_slider('who asks', places - 1, asks, tokens[asks])}"
        f'<div role="group" aria-label="shares">'
        f"{''.join(map(_bar, tokens, row))}</div></div></div>"
        '<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:center;margin-top:8px">'
        '<button type="button" aria-pressed="false" style="font:inherit;padding:4px 12px;'
        'background:#fff;color:#222;border:1px solid #4d4d4d;border-radius:4px;cursor:pointer">'
        f'play all heads</button><span class="told" aria-live="polite">{html.escape(told)}</span>'
        f"</div></div><script>{script}</script>"
    )
    return Explorer(markup, told)


def _percent(weights: Tensor, places: int) -> list[list[list[int]]]:
    """Heads, rows and columns of one layer, in whole hundredths from 0 to 99."""
    if not 1 <= places <= _MOST:
        raise ShapeError(f"{places} tokens cannot be drawn; give 1 to {_MOST}")
    if weights.ndim != 4 or weights.shape[0] != 1 or weights.shape[2:] != (places, places):
        raise ShapeError(
            f"weights of shape {tuple(weights.shape)} do not fit {places} tokens; "
            f"give one sentence: (1, heads, {places}, {places})"
        )
    hundredths: list[list[list[int]]] = (
        (weights[0].detach().double().cpu() * 100).round().clamp(0, 99).int().tolist()
    )
    return hundredths


def _digits(square: list[list[int]]) -> str:
    return "".join(f"{number:02d}" for row in square for number in row)


def _told(tokens: Sequence[str], square: list[list[int]], layer: int, head: int, asks: int) -> str:
    row = square[asks]
    best = sorted(range(len(row)), key=lambda place: (-row[place], place))[:3]
    shares = ", ".join(f"{tokens[place]} {row[place] / 100:.2f}" for place in best)
    return f"layer {layer}, head {head}: {tokens[asks]} listens to {shares}"


def _picture(tokens: Sequence[str], square: list[list[int]], asks: int) -> str:
    side = len(tokens) * _CELL
    drawn = []
    for place, token in enumerate(tokens):
        label, middle = html.escape(token), (place + 0.5) * _CELL
        x, y = _LEFT + middle, _TOP + middle
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{y:g}" fill="{PALETTE["query"]}" text-anchor="end" '
            f'dominant-baseline="central">{label}</text>'
            f'<text x="{x:g}" y="{_TOP - 6}" fill="{PALETTE["key"]}" '
            f'dominant-baseline="central" transform="rotate(-60 {x:g} {_TOP - 6})">{label}</text>'
        )
    for t, row in enumerate(square):
        drawn += [
            f'<rect class="cell" x="{_LEFT + s * _CELL}" y="{_TOP + t * _CELL}" '
            f'width="{_CELL}" height="{_CELL}" fill-opacity="{number / 100:g}"/>'
            for s, number in enumerate(row)
        ]
    return (
        f'<svg viewBox="0 0 {_LEFT + side + 34} {_TOP + side + 2}" '
        f'width="{_LEFT + side + 34}" role="img" aria-label="A row for each token that asks, '
        'a column for each that is asked; dark means much" font-size="14" '
        f'style="max-width:100%;height:auto;flex:0 1 auto"><rect x="{_LEFT}" y="{_TOP}" '
        f'width="{side}" height="{side}" fill="none" stroke="#999"/>'
        f'<g fill="{_INK}">{"".join(drawn)}</g>'
        f'<rect class="asks" x="{_LEFT}" y="{_TOP + asks * _CELL}" width="{side}" '
        f'height="{_CELL}" fill="none" stroke="{PALETTE["query"]}" stroke-width="2"/></svg>'
    )


def _slider(label: str, last: int, value: int, said: str | None = None) -> str:
    return (
        f'<label style="display:block;flex:1 1 200px;color:{PALETTE["query"]}">{label}: '
        f"<output>{html.escape(said or str(value))}</output>"
        f'<input type="range" min="0" max="{last}" step="1" value="{value}" '
        f'aria-label="{label}" style="display:block;width:100%"></label>'
    )


def _bar(token: str, number: int) -> str:
    return (
        '<div style="display:flex;align-items:center;gap:8px;line-height:1.25">'
        f'<span style="flex:0 0 5em;overflow:hidden">{html.escape(token)}</span>'
        '<span style="flex:1;background:#eee;height:12px"><span class="bar" style="display:block;'
        f'height:12px;background:{PALETTE["value"]};width:{number}%"></span></span>'
        f'<span class="share" style="flex:0 0 3em;text-align:right">{number / 100:.2f}</span></div>'
    )


_SCRIPT = """
(function () {
  const root = document.getElementById("@ID@"), maps = @MAPS@, tokens = @TOKENS@;
  const heads = @HEADS@, n = tokens.length, size = 2 * n * n;
  const [layer, head, asks] = root.querySelectorAll("input");
  const [a, b, c] = root.querySelectorAll("output");
  const cells = root.querySelectorAll(".cell"), frame = root.querySelector(".asks");
  const bars = root.querySelectorAll(".bar"), shares = root.querySelectorAll(".share");
  const told = root.querySelector(".told"), button = root.querySelector("button");
  let timer = null;
  function draw() {
    const square = maps[layer.value].substr(head.value * size, size), t = Number(asks.value);
    const at = (row, column) => Number(square.substr(2 * (row * n + column), 2));
    cells.forEach((cell, i) => {
      cell.setAttribute("fill-opacity", at(Math.floor(i / n), i % n) / 100);
    });
    const row = tokens.map((_, s) => at(t, s));
    row.forEach((number, s) => {
      bars[s].style.width = number + "%";
      shares[s].textContent = (number / 100).toFixed(2);
    });
    frame.setAttribute("y", Number(cells[t * n].getAttribute("y")));
    const best = row.map((_, s) => s).sort((x, y) => row[y] - row[x] || x - y).slice(0, 3);
    a.textContent = layer.value;
    b.textContent = head.value;
    c.textContent = tokens[t];
    told.textContent = "layer " + layer.value + ", head " + head.value + ": " + tokens[t]
      + " listens to " + best.map(s => tokens[s] + " " + (row[s] / 100).toFixed(2)).join(", ");
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    button.textContent = "play all heads";
    button.setAttribute("aria-pressed", "false");
    told.setAttribute("aria-live", "polite");
  }
  function step() {
    if (!root.isConnected) { stop(); return; }
    const next = (Number(layer.value) * heads + Number(head.value) + 1) % (maps.length * heads);
    layer.value = Math.floor(next / heads);
    head.value = next % heads;
    draw();
  }
  button.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    timer = setInterval(step, 700);
    button.textContent = "stop";
    button.setAttribute("aria-pressed", "true");
    told.setAttribute("aria-live", "off");
  });
  for (const slider of [layer, head, asks]) slider.addEventListener("input", draw);
})();
"""
