"""The explorer: the weights as given, on both sides, safe labels, the same bytes, no other host."""

import re

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.introspect import capture_attention
from glassformer.nn import MultiHeadAttention
from glassformer.visualization import attention_explorer
from support.core import forbid_float64_before_the_cpu

ASKS = ["<s>", "the", "</script><b>&"]
ASKED = ["das", "Haus", "ist", "groß", "</s>"]


def maps(heads=(5, 2), rows=3, columns=5):
    torch.manual_seed(0)
    return {
        f"layer {i}": torch.randn(1, count, rows, columns).softmax(dim=-1)
        for i, count in enumerate(heads)
    }


def shown(explorer, pattern):
    return torch.tensor([float(x) for x in re.findall(pattern, explorer._repr_html_())])


def test_nothing_is_float64_before_it_is_on_the_cpu(monkeypatch):
    forbid_float64_before_the_cpu(monkeypatch)
    assert attention_explorer(maps(), ASKS, ASKED)


def test_first_picture_table_and_column_are_the_weights():
    given = maps()
    explorer = attention_explorer(given, ASKS, ASKED, layer=0, head=3, token=2)
    weights = given["layer 0"][0, 3]
    cells = shown(explorer, r'width="1" height="1" opacity="([\d.]+)"').reshape(3, 5)
    torch.testing.assert_close(cells, weights, atol=5.1e-4, rtol=0)
    table = shown(explorer, r"<td>([\d.]+)</td>").reshape(3, 5)
    torch.testing.assert_close(table, weights, atol=5.1e-4, rtol=0)
    row = shown(explorer, r"<span>([\d.]+)</span>")
    torch.testing.assert_close(row, weights[2], atol=5.1e-3, rtol=0)
    assert repr(explorer).startswith("layer 0, head 3: </script><b>& listens to ")


def test_every_weight_travels_in_order_and_so_does_the_mean_of_the_heads():
    given = maps()
    markup = attention_explorer(given, ASKS, ASKED)._repr_html_()
    packed = re.search(r"maps = (\[\[.*?\]\]);", markup)[1]
    layers = [re.findall(r'"(\w+)"', part) for part in packed.split("], [")]
    for texts, weights in zip(layers, given.values(), strict=True):
        numbers = [[int(text[i : i + 2], 36) for i in range(0, len(text), 2)] for text in texts]
        expected = torch.cat([weights[0], weights[0].mean(dim=0, keepdim=True)]).flatten(1)
        torch.testing.assert_close(torch.tensor(numbers) / 1000, expected, atol=5.1e-4, rtol=0)


def test_a_weight_of_one_is_whole():
    explorer = attention_explorer({"only": torch.ones(1, 1, 2, 1)}, ["a", "b"], ["c"])
    assert repr(explorer) == "only, head 0: a listens to c 1.00"
    assert '"rsrs"' in explorer._repr_html_()  # 1000 in base 36, twice


def test_one_sentence_asks_itself():
    layer = MultiHeadAttention(10, 5)
    with capture_attention(layer) as captured:
        layer(torch.randn(1, 3, 10))
    markup = attention_explorer(captured, ASKS)._repr_html_()
    assert markup.count(">the<") >= 4  # both columns, both sides of the map


def test_equal_arguments_give_equal_bytes_and_others_another_id():
    one, two = (attention_explorer(maps(), ASKS, ASKED) for _ in range(2))
    assert one._repr_html_() == two._repr_html_()
    others = (
        one,
        attention_explorer(maps(), ASKS, ASKED, head=1),
        attention_explorer(maps(), ASKS, ASKED, token=1),
        attention_explorer(maps((5,)), ASKS, ASKED),
    )
    assert len({re.search(r'id="(explorer-\w+)"', e._repr_html_())[1] for e in others}) == 4


def test_labels_are_text_and_nothing_is_loaded():
    markup = attention_explorer({"<i>": maps()["layer 0"]}, ASKS, ASKED)._repr_html_()
    assert markup.count("</script>") == 1
    assert "<b>&" not in markup
    assert "<i>" not in markup
    assert "&lt;b&gt;&amp;" in markup
    assert "http" not in markup
    assert "src=" not in markup


def test_it_has_words_for_those_who_do_not_see_it():
    markup = attention_explorer(maps(), ASKS, ASKED)._repr_html_()
    assert 'role="img" aria-label="Heat map' in markup
    assert markup.count('<th scope="row">') == 3
    assert markup.count('<th scope="col">') == 5
    assert len(re.findall(r'<select aria-label="\w', markup)) == 2
    assert 'aria-live="polite"' in markup
    assert markup.count('tabindex="0"') == 2  # one token and the table; arrows lead to the others


def test_it_stays_small():
    tokens = [f"token {i}" for i in range(32)]
    many = {f"layer {i}": torch.rand(1, 12, 32, 32) for i in range(6)}
    assert len(attention_explorer(many, tokens)._repr_html_()) < 260_000
    assert len(attention_explorer(maps(), ASKS, ASKED)._repr_html_()) < 15_000


def test_bad_arguments():
    with pytest.raises(ShapeError, match="at least one layer"):
        attention_explorer({}, ASKS)
    with pytest.raises(ShapeError, match="do not fit 3 asking and 3 asked"):
        attention_explorer(maps(), ASKS)
    with pytest.raises(ShapeError, match="do not fit"):
        attention_explorer({"a": torch.rand(2, 1, 3, 5)}, ASKS, ASKED)
    with pytest.raises(ShapeError, match="33 tokens"):
        attention_explorer({"a": torch.rand(1, 1, 3, 33)}, ASKS, ["x"] * 33)
    with pytest.raises(ShapeError, match="without heads"):
        attention_explorer({"a": torch.rand(1, 0, 3, 5)}, ASKS, ASKED)
    with pytest.raises(ShapeError, match="not finite"):
        attention_explorer({"a": torch.full((1, 1, 3, 5), torch.nan)}, ASKS, ASKED)
    for name, value in (("layer", 2), ("head", 5), ("token", -1)):
        with pytest.raises(ShapeError, match=f"{name}={value}"):
            attention_explorer(maps(), ASKS, ASKED, **{name: value})
