"""Who asks and who is asked, in every layer and head, to be pointed at.

Book: visualization
"""

import hashlib
import html
import json
from collections.abc import Mapping, Sequence

from torch import Tensor

from glassformer.errors import ShapeError
from glassformer.visualization._pages import Explorer
from glassformer.visualization.styling import PALETTE

__all__ = ["attention_explorer"]

_MOST = 32  # tokens on a side
_CELL, _LEFT, _TOP, _ROW = 22, 84, 84, 24  # a cell, room for labels; height of a token
_GAP = 64  # between the two columns of tokens
_INK = "23,63,95"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Square = list[list[int]]


def attention_explorer(
    maps: Mapping[str, Tensor],
    asks: Sequence[str],
    asked: Sequence[str] | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    token: int = 0,
) -> Explorer:
    """The weights of every layer and head, for one sentence that asks itself or another one.

    Point at a token, tap it, or walk to it with the arrow keys: lines lead to the tokens that it
    listens to, or, on the other side, from those that listen to it. Every layer has the mean of
    its heads as a last choice, a switch shades by powers of ten, a button plays all heads, and a
    table holds the numbers.

    Args:
        maps: a name for each layer -> weights (1, H, T, S), as
            :func:`glassformer.introspect.capture_attention` gives them. The number of heads may
            differ from layer to layer.
        asks: the T tokens with the queries, at most 32.
        asked: the S tokens with the keys, at most 32; the same ones when ``None``.
        layer, head: which map is shown first, counted from 0.
        token: place of the asking token that is looked at first.

    Raises:
        ShapeError: no maps, maps of another shape, too many tokens, or a first choice that is not
            there.

    Book: multi_head, visualization
    """
    asked = asks if asked is None else asked
    layers = {name: _squares(weights, len(asks), len(asked)) for name, weights in maps.items()}
    if not layers:
        raise ShapeError("maps need at least one layer; give what capture_attention gave")
    names = list(layers)
    _check("layer", layer, len(names))
    heads = layers[names[layer]]
    _check("head", head, len(heads) - 1)
    _check("token", token, len(asks))
    shown = heads[head]
    data = json.dumps([[_digits(square) for square in layers[name]] for name in names])
    labels = json.dumps([names, list(asks), list(asked)]).replace("<", "\\u003c")
    mark = hashlib.sha256(repr((data, labels, layer, head, token)).encode()).hexdigest()[:10]
    told = _told(names[layer], head, asks[token], asked, shown[token])
    script = _SCRIPT.replace("@ID@", f"explorer-{mark}").replace("@START@", str(token))
    script = script.replace("@LABELS@", labels).replace("@MAPS@", data)
    choices = [str(i) for i in range(len(heads) - 1)] + [_mean(len(heads) - 1)]
    markup = (
        f'<div id="explorer-{mark}" role="group" aria-label="Attention explorer">'
        f"<style>{_STYLE.replace('@ID@', f'#explorer-{mark}')}</style>"
        f'<div class="bar">{_choice("layer", names, layer)}{_choice("head", choices, head)}'
        '<button type="button" class="play" aria-pressed="false">play all heads</button>'
        '<label><input type="checkbox"> shade by powers of ten</label></div>'
        f'<p class="told" aria-live="polite">{html.escape(told)}</p><div class="views">'
        f"{_columns(asks, asked, shown[token], token)}{_picture(asks, asked, shown, token)}</div>"
        f"<details><summary>The numbers of this map</summary>{_table(asks, asked, shown)}"
        f"</details><script>{script}</script></div>"
    )
    return Explorer(markup, told)


def _squares(weights: Tensor, rows: int, columns: int) -> list[Square]:
    """Every head and then their mean, in whole thousandths."""
    for count in (rows, columns):
        if not 1 <= count <= _MOST:
            raise ShapeError(f"{count} tokens cannot be shown; give 1 to {_MOST}")
    if weights.ndim != 4 or weights.shape[0] != 1 or weights.shape[2:] != (rows, columns):
        raise ShapeError(
            f"weights of shape {tuple(weights.shape)} do not fit {rows} asking and {columns} asked "
            f"tokens; give one sentence: (1, heads, {rows}, {columns})"
        )
    if not weights.shape[1]:
        raise ShapeError("a layer without heads has nothing to show; leave it out")
    heads = weights[0].detach().cpu().double()
    if not heads.isfinite().all():
        raise ShapeError(
            "weights that are not finite cannot be shown; find out where they are from"
        )
    every = [*heads, heads.mean(dim=0)]
    return [(one * 1000).round().clamp(0, 1000).int().tolist() for one in every]


def _check(name: str, value: int, count: int) -> None:
    if not 0 <= value < count:
        raise ShapeError(f"{name}={value} is not there; there are {count}, counted from 0")


def _digits(square: Square) -> str:
    """Two digits of base 36, enough for 0 to 1295, for each number."""
    return "".join(_DIGITS[number // 36] + _DIGITS[number % 36] for row in square for number in row)


def _mean(heads: int) -> str:
    return f"mean of {heads}"


def _told(layer: str, head: int, token: str, others: Sequence[str], row: list[int]) -> str:
    best = sorted(range(len(row)), key=lambda place: (-row[place], place))[:3]
    shares = ", ".join(f"{others[place]} {row[place] / 1000:.2f}" for place in best)
    return f"{layer}, head {head}: {token} listens to {shares}"


def _choice(label: str, options: Sequence[str], chosen: int) -> str:
    inside = "".join(
        f'<option value="{place}"{" selected" if place == chosen else ""}>'
        f"{html.escape(option)}</option>"
        for place, option in enumerate(options)
    )
    return f'<label>{label} <select aria-label="{label}">{inside}</select></label>'


def _columns(asks: Sequence[str], asked: Sequence[str], row: list[int], token: int) -> str:
    left = "".join(
        f'<button type="button" aria-pressed="{str(t == token).lower()}" '
        f'tabindex="{0 if t == token else -1}"><span></span>{html.escape(name)}</button>'
        for t, name in enumerate(asks)
    )
    right = "".join(
        f'<button type="button" aria-pressed="false" tabindex="-1" style="{_shade(number)}">'
        f"{html.escape(name)}<span>{number / 1000:.2f}</span></button>"
        for name, number in zip(asked, row, strict=True)
    )
    count = max(len(asks), len(asked))
    lines = "".join(
        f'<line x1="0" y1="{(token + 0.5) * _ROW:g}" x2="{_GAP}" y2="{(s + 0.5) * _ROW:g}" '
        f'stroke-width="{number / 125:g}"/>'
        for s, number in enumerate(row + [0] * (count - len(row)))
    )
    return (
        '<div class="columns"><div class="asks" role="group" aria-label="who asks">'
        f'<b>who asks</b>{left}</div><svg width="{_GAP}" height="{count * _ROW}" '
        f'aria-hidden="true">{lines}</svg>'
        '<div class="asked" role="group" aria-label="who is asked">'
        f"<b>who is asked</b>{right}</div></div>"
    )


def _shade(number: int) -> str:
    ink = "#fff" if number > 700 else "#000"  # either way a contrast of 4.5 or more
    return f"background:rgba({_INK},{number / 1000:g});color:{ink}"


def _picture(asks: Sequence[str], asked: Sequence[str], square: Square, token: int) -> str:
    width, height = len(asked) * _CELL, len(asks) * _CELL
    beside = [
        f'<text x="{_LEFT - 6}" y="{_TOP + (t + 0.5) * _CELL:g}" text-anchor="end" '
        f'fill="{PALETTE["query"]}">{html.escape(_short(name))}</text>'
        for t, name in enumerate(asks)
    ]
    above = [
        f'<text transform="translate({_LEFT + (s + 0.5) * _CELL:g} {_TOP - 6}) rotate(-60)" '
        f'fill="{PALETTE["key"]}">{html.escape(_short(name))}</text>'
        for s, name in enumerate(asked)
    ]
    cells = "".join(
        f'<rect x="{s}" y="{t}" width="1" height="1" opacity="{number / 1000:g}"/>'
        for t, row in enumerate(square)
        for s, number in enumerate(row)
    )
    return (
        f'<svg class="map" viewBox="0 0 {_LEFT + width + 40} {_TOP + height + 2}" '
        f'width="{_LEFT + width + 40}" role="img" aria-label="Heat map: a row for each token that '
        'asks, a column for each that is asked; dark means much. Its numbers are in the table.">'
        f'<g dominant-baseline="central">{"".join(beside + above)}</g>'
        f'<g class="cells" transform="translate({_LEFT} {_TOP}) scale({_CELL})" '
        f'fill="rgb({_INK})"><rect class="all" width="{len(asked)}" height="{len(asks)}" '
        f'fill="#fff" stroke="#999" stroke-width=".04"/>{cells}'
        f'<rect class="frame" x="0" y="{token}" width="{len(asked)}" height="1" fill="none" '
        f'stroke="var(--chosen,{PALETTE["query"]})" stroke-width=".1"/></g></svg>'
    )


def _short(label: str) -> str:
    """As much of a token as there is room for beside the picture."""
    return label if len(label) <= 11 else f"{label[:10]}…"


def _table(asks: Sequence[str], asked: Sequence[str], square: Square) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in asked)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        + "".join(f"<td>{number / 1000:.3f}</td>" for number in row)
        + "</tr>"
        for name, row in zip(asks, square, strict=True)
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="weights">'
        f"<table><thead><tr><th>asks \\ asked</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
        "</div>"
    )


_STYLE = f"""
@ID@{{background:#fff;color:#222;padding:12px;border-radius:8px;max-width:760px;
font:15px/1.4 sans-serif;color-scheme:light}}
@ID@ .bar{{display:flex;flex-wrap:wrap;gap:6px 14px;align-items:center}}
@ID@ select,@ID@ .play{{font:inherit;padding:3px 8px;background:#fff;color:#222;
border:1px solid #4d4d4d;border-radius:4px;max-width:100%}}
@ID@ .told{{margin:8px 0;min-height:2.8em;color:#222}}
@ID@ .views{{display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start}}
@ID@ .columns{{display:grid;grid-template-columns:minmax(0,1fr) {_GAP}px minmax(0,1fr);
flex:1 1 250px;min-width:0}}
@ID@ .columns b,@ID@ .columns button{{display:block;height:{_ROW}px;line-height:{_ROW}px;
font-size:14px;white-space:nowrap;overflow:hidden;width:100%;box-sizing:border-box}}
@ID@ .columns>svg{{margin-top:{_ROW}px}}
@ID@ .columns button{{padding:0 6px;border:0;border-radius:3px;background:none;color:#222;
font-family:inherit;cursor:pointer;text-align:left}}
@ID@ .asks b,@ID@ .asks button{{text-align:right}}
@ID@ .asks b{{color:{PALETTE["query"]}}}@ID@ .asked b{{color:{PALETTE["key"]}}}
@ID@ .columns button{{position:relative;text-overflow:ellipsis}}
@ID@ .columns span{{position:absolute;top:0;font-size:12px}}
@ID@ .asks button{{padding-left:34px}}@ID@ .asks span{{left:6px}}
@ID@ .asked button{{padding-right:34px}}@ID@ .asked span{{right:6px}}
@ID@ .columns button[aria-pressed=true]{{outline:2px solid var(--chosen,{PALETTE["query"]});
outline-offset:-2px;font-weight:bold}}
@ID@ button:focus-visible,@ID@ select:focus-visible{{outline:3px solid #000;outline-offset:-1px}}
@ID@ line{{stroke:rgb({_INK});stroke-opacity:.55}}
@ID@ .map{{max-width:100%;height:auto;flex:0 1 auto;font-size:13px}}
@ID@ .cells{{cursor:crosshair}}
@ID@ summary{{cursor:pointer;color:#222;background:none}}
@ID@ details{{margin-top:8px;background:none;color:#222}}
@ID@ .scroll{{overflow-x:auto}}@ID@ th[scope=row]{{position:sticky;left:0}}
@ID@ table{{border-collapse:collapse;font-size:13px;color:#222;background:#fff}}
@ID@ th,@ID@ td{{padding:2px 6px;text-align:right;color:#222;background:#fff;white-space:nowrap}}
""".replace("\n", "")

_SCRIPT = """
(function () {
  const root = document.getElementById("@ID@"), maps = @MAPS@;
  const [names, asks, asked] = @LABELS@, n = asked.length, ink = "@INK@";
  const all = query => Array.from(root.querySelectorAll(query)), one = q => root.querySelector(q);
  const [layer, head] = all("select"), play = one(".play"), powers = one("input");
  const told = one(".told"), frame = one(".frame"), area = one(".cells");
  const sides = [all(".asks button"), all(".asked button")], lines = all("line");
  const cells = all(".cells rect").slice(1, -1), numbers = all("td");
  let side = 0, place = @START@, timer = null;
  const at = (t, s) => parseInt(
    maps[layer.value][head.value].substr(2 * (t * n + s), 2), 36) / 1000;
  const shade = w => powers.checked ? (w > 0 ? 1 + Math.log10(w) / 3 : 0) : w;
  function choices() {
    const count = maps[layer.value].length, was = Number(head.value);
    if (head.options.length !== count) {
      head.replaceChildren();
      for (let i = 0; i < count; i++) head.add(new Option(i));
    }
    head.options[count - 1].text = "mean of " + (count - 1);
    head.value = Math.min(was, count - 1);
  }
  function draw() {
    const other = 1 - side, labels = other ? asked : asks, token = (side ? asked : asks)[place];
    const row = labels.map((_, i) => side ? at(i, place) : at(place, i));
    sides[side].forEach((button, i) => {
      button.style.background = button.style.color = button.children[0].textContent = "";
      button.tabIndex = i === place ? 0 : -1;
      button.setAttribute("aria-pressed", i === place);
    });
    sides[other].forEach((button, i) => {
      button.style.background = "rgba(" + ink + "," + shade(row[i]) + ")";
      button.style.color = shade(row[i]) > 0.7 ? "#fff" : "#000";
      button.children[0].textContent = row[i].toFixed(2);
      button.tabIndex = -1;
      button.setAttribute("aria-pressed", false);
    });
    lines.forEach((line, i) => {
      const ends = side ? [i, place] : [place, i];
      line.setAttribute("y1", (ends[0] + 0.5) * @ROW@);
      line.setAttribute("y2", (ends[1] + 0.5) * @ROW@);
      line.setAttribute("stroke-width", i < row.length ? 8 * shade(row[i]) : 0);
    });
    root.style.setProperty("--chosen", side ? "@KEY@" : "@QUERY@");
    frame.setAttribute("x", side ? place : 0);
    frame.setAttribute("y", side ? 0 : place);
    frame.setAttribute("width", side ? 1 : n);
    frame.setAttribute("height", side ? asks.length : 1);
    const best = row.map((_, i) => i).sort((x, y) => row[y] - row[x] || x - y).slice(0, 3);
    const which = head.options[head.value].text;
    told.textContent = names[layer.value] + ", "
      + (which.startsWith("mean") ? which + " heads" : "head " + which) + ": " + token
      + (side ? " is listened to by " : " listens to ")
      + best.map(i => labels[i] + " " + row[i].toFixed(2)).join(", ");
  }
  function drawAll() {
    choices();
    cells.forEach((cell, i) => {
      const w = at(Math.floor(i / n), i % n);
      cell.setAttribute("opacity", shade(w));
      numbers[i].textContent = w.toFixed(3);
    });
    draw();
  }
  function choose(which, where) {
    if (which === side && where === place) return;
    side = which;
    place = where;
    draw();
  }
  sides.forEach((buttons, which) => buttons.forEach((button, where) => {
    button.addEventListener("focus", () => choose(which, where));
    button.addEventListener("click", () => choose(which, where));
    button.addEventListener("pointerenter", event => {
      if (event.pointerType === "mouse") choose(which, where);
    });
    button.addEventListener("keydown", event => {
      const move = { ArrowDown: [which, where + 1], ArrowUp: [which, where - 1],
        ArrowLeft: [0, where], ArrowRight: [1, where], Home: [which, 0], End: [which, 99] };
      if (!(event.key in move)) return;
      event.preventDefault();
      const [to, next] = move[event.key];
      sides[to][Math.max(0, Math.min(next, sides[to].length - 1))].focus();
    });
  }));
  for (const kind of ["pointerover", "click"]) area.addEventListener(kind, event => {
    const i = cells.indexOf(event.target);
    if (i >= 0) choose(0, Math.floor(i / n));
  });
  for (const control of [layer, head, powers]) control.addEventListener("change", drawAll);
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "play all heads";
    play.setAttribute("aria-pressed", "false");
    told.setAttribute("aria-live", "polite");
  }
  play.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    timer = setInterval(() => {
      if (!root.isConnected) { stop(); return; }
      const last = Number(head.value) + 1 >= maps[layer.value].length;
      if (last) layer.value = (Number(layer.value) + 1) % maps.length;
      choices();
      head.value = last ? 0 : Number(head.value) + 1;
      drawAll();
    }, 900);
    play.textContent = "stop";
    play.setAttribute("aria-pressed", "true");
    told.setAttribute("aria-live", "off");
  });
})();
"""
_SCRIPT = _SCRIPT.replace("@INK@", _INK).replace("@ROW@", str(_ROW))
_SCRIPT = _SCRIPT.replace("@QUERY@", PALETTE["query"]).replace("@KEY@", PALETTE["key"])
