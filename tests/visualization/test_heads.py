"""Heads to step through: the weights as given, safe labels, the same bytes, no other host."""

import re

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.introspect import capture_attention
from glassformer.nn import MultiHeadAttention
from glassformer.visualization import head_player

TOKENS = ["[CLS]", "a", "<b>&"]


def maps(layers=2, heads=5, places=3):
    drawn = torch.randn(
        layers, 1, heads, places, places, generator=torch.Generator().manual_seed(0)
    )
    return {f"blocks.{i}": weights for i, weights in enumerate(drawn.softmax(dim=-1))}


def shown(explorer, pattern):
    return torch.tensor([float(x) for x in re.findall(pattern, explorer._repr_html_())])


def test_first_picture_and_bars_are_the_weights():
    given = maps()
    explorer = head_player(given, TOKENS, layer=1, head=3, asks=2)
    weights = given["blocks.1"][0, 3]
    cells = shown(explorer, r'class="cell"[^>]*fill-opacity="([\d.]+)"').reshape(3, 3)
    torch.testing.assert_close(cells, weights, atol=5.1e-3, rtol=0)
    bars = shown(explorer, r'class="share"[^>]*>([\d.]+)<')
    torch.testing.assert_close(bars, weights[2], atol=5.1e-3, rtol=0)
    assert repr(explorer).startswith("layer 1, head 3: <b>& listens to ")


def test_every_weight_travels_in_order():
    given = maps()
    text = re.search(r'maps = \["(\d+)", "(\d+)"\]', head_player(given, TOKENS)._repr_html_())
    for digits, weights in zip(text.groups(), given.values(), strict=True):
        numbers = torch.tensor([int(digits[i : i + 2]) for i in range(0, len(digits), 2)])
        torch.testing.assert_close(
            numbers / 100, weights.flatten().clamp(max=0.99), atol=5.1e-3, rtol=0
        )


def test_what_capture_attention_gives_can_be_played():
    layer = MultiHeadAttention(10, 5)
    with capture_attention(layer) as captured:
        layer(torch.randn(1, 3, 10))
    assert "layer 0, head 4" in repr(head_player(captured, TOKENS, head=4))


def test_equal_arguments_give_equal_bytes_and_others_another_id():
    one, two = head_player(maps(), TOKENS), head_player(maps(), TOKENS)
    assert one._repr_html_() == two._repr_html_()
    others = (one, head_player(maps(), TOKENS, head=1), head_player(maps(heads=7), TOKENS))
    assert len({re.search(r'id="(player-\w+)"', e._repr_html_())[1] for e in others}) == 3


def test_labels_are_text_and_nothing_is_loaded():
    markup = head_player(maps(), TOKENS, asks=2)._repr_html_()
    assert "<b>&" not in markup
    assert "&lt;b&gt;&amp;" in markup
    assert "http" not in markup
    assert "src=" not in markup
    assert 'role="img" aria-label="A row' in markup
    assert len(re.findall(r'<input type="range"[^>]*aria-label="\w', markup)) == 3


def test_bad_arguments():
    with pytest.raises(ShapeError, match="at least one layer"):
        head_player({}, TOKENS)
    with pytest.raises(ShapeError, match="equally many"):
        head_player({**maps(1), "more": maps(1, heads=2)["blocks.0"]}, TOKENS)
    with pytest.raises(ShapeError, match="do not fit 2 tokens"):
        head_player(maps(), TOKENS[:2])
    with pytest.raises(ShapeError, match="25 tokens"):
        head_player(maps(places=25), ["x"] * 25)
    for name, value in (("layer", 2), ("head", 5), ("asks", -1)):
        with pytest.raises(ShapeError, match=f"{name}={value}"):
            head_player(maps(), TOKENS, **{name: value})
