"""Each token of a text with the probability it had and with its rivals."""

import pytest
from glassformer.errors import ShapeError
from glassformer.visualization import token_trace

ROWS = [
    (" Paris", 0.7, [(" Paris", 0.7), (" the", 0.1), (" Rome", 0.05), (" a", 0.02), (" b", 0.01)]),
    ("\n", 0.25, [(".", 0.5), ("\n", 0.25)]),
]


def words_of(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_every_token_stands_beside_its_probability_and_over_its_rivals() -> None:
    words = words_of(token_trace(ROWS, title="It writes"))
    assert words[:3] == ["Paris", "0.70", "the 0.10   Rome 0.05   a 0.02"]
    assert words[3:] == ["↵", "0.25", ". 0.50"]


def test_a_token_of_spaces_alone_is_seen() -> None:
    assert words_of(token_trace([("  ", 0.5, [(" ", 0.1)])], title="It waits")) == [
        "␣␣",
        "0.50",
        "␣ 0.10",
    ]


def test_bars_are_as_long_as_the_probabilities_and_follow_each_other() -> None:
    bars = token_trace(ROWS, title="It writes", n_alternatives=1).axes[0].patches
    assert [(round(b.get_x(), 4), round(b.get_width(), 4)) for b in bars] == [
        (0.0, 1.0),
        (0.0, 0.7),
        (0.7, 0.1),
        (0.0, 1.0),
        (0.0, 0.25),
        (0.25, 0.5),
    ]


def test_a_row_more_makes_the_figure_taller_and_no_wider() -> None:
    one, two = (token_trace(ROWS[:n], title="It writes") for n in (1, 2))
    assert one.get_figwidth() == two.get_figwidth()
    assert one.get_figheight() < two.get_figheight()
    assert two.get_suptitle() == "It writes"


@pytest.mark.parametrize("rows", [[], ROWS * 21, [("a", 1.5, [])], [("a", 0.5, [("b", -0.1)])]])
def test_what_cannot_be_drawn_is_refused(rows) -> None:
    with pytest.raises(ShapeError):
        token_trace(rows, title="It writes")
