"""Figures: what they show is what they were given, in full, and the same bytes each time."""

import io
import itertools
import warnings

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.functional import causal_mask
from glassformer.visualization import (
    PALETTE,
    attention_flow,
    heat_map,
    line_chart,
    loss_curve,
    rounded,
    safe_label,
    style,
)


def texts(figure):
    """Every text that a figure shows."""
    found = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    return [text.get_text() for text in found if text.get_visible() and text.get_text()]


def svg(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def cells(axes):
    """The numbers behind the coloured cells of one map."""
    return torch.as_tensor(axes.collections[0].get_array().reshape(-1).data.copy())


def test_X03_heads_are_drawn_one_by_one():
    """One diagonal head and three uniform ones are not averaged."""
    weights = torch.stack([torch.eye(5), *(torch.full((5, 5), 0.2) for _ in range(3))])
    figure = heat_map(weights[None], title="Four heads")
    shown = [cells(axes) for axes in figure.axes]
    assert len(shown) == 4
    assert torch.equal(shown[0], torch.eye(5).double().flatten())
    assert all(torch.equal(one, torch.full((25,), 0.2, dtype=torch.float64)) for one in shown[1:])
    assert {"head 0", "head 1", "head 2", "head 3"} <= set(texts(figure))


def test_all_heads_share_one_colour_scale():
    figure = heat_map({"small": torch.full((2, 2), 0.1), "large": torch.ones(2, 2)}, title="t")
    limits = {axes.collections[0].get_clim() for axes in figure.axes}
    assert limits == {(0.0, 1.0)}


def test_a_batch_is_not_one_picture():
    with pytest.raises(ShapeError, match=r"\(2, 3, 5, 7\).*pick one"):
        heat_map(torch.zeros(2, 3, 5, 7), title="t")


@pytest.mark.parametrize("which", ["row_labels", "col_labels"])
def test_labels_must_fit(which):
    with pytest.raises(ShapeError, match=f"2 {which} for a map with 3"):
        heat_map(torch.eye(3), title="t", **{which: ["a", "b"]})


def test_maps_of_two_sizes_are_refused():
    with pytest.raises(ShapeError, match="one size"):
        heat_map({"a": torch.eye(2), "b": torch.eye(3)}, title="t")
    with pytest.raises(ShapeError, match="1 names for 2 maps"):
        heat_map(torch.zeros(2, 3, 3), title="t", names=["only"])
    with pytest.raises(ShapeError, match="two axes"):
        heat_map({"a": torch.zeros(2, 3, 3)}, title="t")


def test_labels_stand_in_full():
    long = ["internationalisation", "a", "counterrevolutionary"]
    figure = heat_map(torch.eye(3), long, long, title="Long words stay whole")
    assert texts(figure).count("internationalisation") == 2
    left = min(label.get_window_extent().x0 for label in figure.axes[0].get_yticklabels())
    low = min(label.get_window_extent().y0 for label in figure.axes[0].get_xticklabels())
    assert left >= 0
    assert low >= 0


def test_labels_of_neighbours_do_not_touch():
    words = [f"token{i:02d}" for i in range(12)]
    figure = heat_map(torch.rand(2, 12, 12), words, words, title="t", columns=2)
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert all(one.x1 <= two.x0 + 1 for one, two in itertools.pairwise(boxes))


@pytest.mark.parametrize("label", ["$x_{$", "$$", "a_b^c", r"\frac"])
def test_X07_dollars_are_no_formula(label):
    figure = heat_map(torch.eye(2), [label, "b"], ["a", label], title=f"About {label}")
    assert texts(figure).count(label) == 2
    assert svg(figure)


def test_X05_cjk_labels_draw_without_a_warning():
    """A glyph from an installed font, else its code point."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = heat_map(torch.eye(2), ["猫", "dog"], title="t")
        svg(figure)
    shown, families = safe_label("猫")
    assert shown in texts(figure)
    assert (shown, len(families)) in {("猫", 2), ("U+732B", 1)}


@pytest.mark.parametrize("title", ["猫の声", "two\nlines", ""])
def test_X05_axis_titles_and_notes_draw_without_a_warning(title):
    shown = "\n".join(line and safe_label(line)[0] for line in title.split("\n"))
    spelt = {"x_label": title, "y_label": title}
    curves = {"a": ([1, 2, 3], [3, 1, 2])}
    spans, notes = {"猫": (1, 2)}, {title: (2, 2)}
    figures = [
        (line_chart(curves, title="t", notes=notes, spans=spans, **spelt), 3),
        (heat_map(torch.eye(2), title="t", row_title=title, col_title=title), 2),
        (heat_map(torch.rand(3, 2, 2), title="t", columns=2, row_title=title, col_title=title), 2),
    ]
    for figure, times in figures:
        svg(figure)
        assert texts(figure).count(shown) == (times if title else 0)


def test_a_character_that_no_font_has_is_spelt(monkeypatch):
    monkeypatch.setattr(
        "glassformer.visualization.styling._characters", lambda family: frozenset(map(ord, "ab"))
    )
    assert safe_label("a猫b") == ("aU+732Bb", ["DejaVu Sans"])


@pytest.mark.parametrize(
    ("label", "shown"), [("\n", "↵"), ("", "∅"), ("a\tb", "a→b"), (7, "7"), ("▁the", "▁the")]
)
def test_white_space_is_visible(label, shown):
    assert safe_label(label)[0] == shown


def test_a_mask_is_drawn_as_permissions():
    figure = heat_map(causal_mask(3), title="t")
    axes = figure.axes[0]
    marks = {(line.get_xdata()[0] - 0.5, line.get_ydata()[0] - 0.5) for line in axes.lines}
    assert marks == {(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)}


def test_nan_is_written_as_such():
    weights = torch.tensor([[1.0, 0.0], [float("nan"), float("nan")]])
    assert texts(heat_map(weights, title="t")).count("NaN") == 2


def test_decades_show_what_is_small():
    weights = torch.tensor([[0.9, 0.09, 0.0095, 0.0005]])
    figure = heat_map(weights, title="x", decades=3)
    maps, key = figure.axes
    (mesh,) = maps.collections
    assert mesh.get_array().flatten().tolist() == [3, 2, 1, 0]
    assert [label.get_text() for label in key.get_yticklabels()] == [
        "less",
        "from 0.001",
        "from 0.01",
        "from 0.1",
    ]
    for decades in (0, 7):
        with pytest.raises(ShapeError, match=f"decades={decades}"):
            heat_map(weights, title="x", decades=decades)


def test_a_large_map_is_drawn_as_pixels():
    figure = heat_map(torch.rand(80, 80), title="t")
    assert figure.axes[0].collections[0].get_rasterized()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: heat_map(torch.eye(3) * 0.123456789, title="t"),
        lambda: line_chart({"a": ([1, 2], [3, 4])}, title="t", x_label="x", y_label="y"),
        attention_flow,
    ],
)
def test_equal_data_give_equal_bytes(draw):
    assert svg(draw()) == svg(draw())


def test_noise_below_four_digits_changes_no_byte():
    weights = torch.full((3, 3), 0.123449, dtype=torch.float64)
    assert svg(heat_map(weights, title="t")) == svg(heat_map(weights + 1e-9, title="t"))
    assert rounded([123456.0, 0.000123456]).tolist() == [123500.0, 0.0001235]


def test_settings_outside_do_not_matter():
    import matplotlib as mpl

    plain = svg(heat_map(torch.eye(2), title="t"))
    with mpl.rc_context({"font.size": 40, "axes.grid": False, "svg.hashsalt": None}):
        loud = heat_map(torch.eye(2), title="t")
    assert svg(loud) == plain


@pytest.fixture(autouse=True)
def _own_settings():
    import matplotlib as mpl

    with mpl.rc_context():
        style()
        yield


def test_lines_carry_their_names_apart():
    flat = {name: ([0, 1, 2], [1.0, 1.0, 1.0]) for name in ("one", "two", "three")}
    figure = line_chart(flat, title="t", x_label="x", y_label="y")
    heights = sorted(text.xy[1] for text in figure.axes[0].texts)
    assert [text.get_text() for text in figure.axes[0].texts] == ["one", "two", "three"]
    assert all(b - a >= 0.05 for a, b in itertools.pairwise(heights))
    assert len({str(line.get_linestyle()) for line in figure.axes[0].lines}) >= 3


def test_names_stand_at_the_height_of_their_lines():
    curves = {"low": ([1, 4], [1e-6, 1e-6]), "high": ([1, 4], [1.0, 1.0])}
    figure = line_chart(
        curves, title="t", x_label="x", y_label="y", x_scale="log2", y_scale="log", x_ticks=[1, 4]
    )
    low, high = (text.xy[1] for text in figure.axes[0].texts)
    assert low < 0.2
    assert high > 0.8
    assert "10⁻⁶" in [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_a_curve_needs_as_many_x_as_y():
    with pytest.raises(ShapeError, match="'a' has 2 x and 3 y"):
        line_chart({"a": ([1, 2], [1, 2, 3])}, title="t", x_label="x", y_label="y")
    with pytest.raises(ShapeError, match="no curve"):
        line_chart({}, title="t", x_label="x", y_label="y")


def test_loss_curve_has_fixed_colours_and_named_phases():
    from matplotlib.colors import to_hex

    figure = loss_curve(
        {"dev": ([0, 9], [3.0, 2.0]), "train": (range(10), torch.linspace(3, 1, 10))},
        title="Dev follows train",
        phases={"warm-up": (0, 3), "decay": (3, 9)},
        y_limits=(0, 4),
    )
    axes = figure.axes[0]
    assert [to_hex(line.get_color()) for line in axes.lines] == [PALETTE["key"], PALETTE["query"]]
    assert {"warm-up", "decay", "dev", "train", "loss (nats per token)"} <= set(texts(figure))
    assert axes.get_ylim() == (0, 4)


def test_notes_and_an_empty_curve():
    figure = line_chart(
        {"none": ([], []), "some": ([1, 10], [1, 2])},
        title="t",
        x_label="x",
        y_label="y",
        x_scale="log",
        notes={"look here": (2, 1.5)},
        markers=True,
    )
    assert "look here" in texts(figure)
    assert "none" not in texts(figure)


def test_figures_do_not_pile_up_in_pyplot():
    import matplotlib.pyplot as plt

    before = len(plt.get_fignums())
    heat_map(torch.eye(2), title="t")
    assert len(plt.get_fignums()) == before


def test_an_axis_has_the_colour_of_its_role_only():
    def names(figure):
        return figure.axes[0].xaxis.label, figure.axes[0].yaxis.label

    across, down = names(heat_map(torch.eye(3), title="t"))
    assert across.get_color() == PALETTE["key"]
    assert down.get_color() == PALETTE["query"]
    across, down = names(heat_map(torch.eye(3), title="t", row_title="layer", col_title="keyhole"))
    assert across.get_color() == down.get_color() == PALETTE["neutral"]


@pytest.mark.parametrize("shape", [(0, 3), (2, 3, 0), (0, 2, 3)])
def test_a_map_of_nothing_is_refused(shape):
    with pytest.raises(ShapeError):
        heat_map(torch.zeros(shape), title="t")


@pytest.mark.parametrize("columns", [0, -1])
def test_maps_beside_each_other_are_at_least_one(columns):
    with pytest.raises(ShapeError, match=f"columns={columns} must be at least 1"):
        heat_map(torch.rand(2, 3, 3), title="t", columns=columns)


def test_a_map_with_many_columns_and_one_with_a_key_stay_as_wide_as_a_page():
    many = heat_map(torch.rand(9, 30), [str(head) for head in range(9)], title="t", numbers=False)
    words = [f"word{i}" for i in range(9)]
    keyed = heat_map(torch.rand(9, 9), words, words, title="t", decades=3)
    assert many.get_figwidth() == pytest.approx(6.2)
    assert keyed.get_figwidth() == pytest.approx(6.2)


def test_names_of_crowded_lines_spread_to_both_sides():
    ends = {"a": 0.86, "b": 0.9, "c": 0.91, "far": 0.1}
    figure = line_chart(
        {name: ([0, 1], [0, end]) for name, end in ends.items()},
        title="t",
        x_label="x",
        y_label="y",
        y_limits=(0, 1),
    )
    heights = {text.get_text(): text.xy[1] for text in figure.axes[0].texts}
    assert heights["far"] == pytest.approx(0.1)
    assert heights["a"] < 0.86
    assert heights["c"] > 0.91
    assert sum(heights[name] - ends[name] for name in "abc") == pytest.approx(0)
