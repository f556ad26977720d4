"""A line for each weight that is worth one, between words that stand in two columns."""

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.visualization import alignment_picture

WEIGHTS = torch.tensor([[0.9, 0.06, 0.04], [0.0, 0.3, 0.7]])


def lines(figure, dashed):
    drawn = figure.axes[0].get_lines()
    return [line for line in drawn if (line.get_linestyle() != "-") == dashed]


def picture(**options):
    return alignment_picture(WEIGHTS, ["ein", "$Hund", "狗"], ["a", "dog"], title="It", **options)


def test_a_line_for_each_weight_of_a_twentieth() -> None:
    drawn = lines(picture(), dashed=False)
    assert len(drawn) == 4
    widths = [line.get_linewidth() for line in drawn]
    assert widths == sorted(widths, reverse=True)[:1] + widths[1:]
    assert widths[0] == pytest.approx(0.6 + 6.4 * 0.9)


def test_ends_stand_beside_their_words() -> None:
    figure = picture()
    places = {text.get_text(): text.get_position()[1] for text in figure.axes[0].texts}
    strongest = lines(figure, dashed=False)[0]
    assert list(strongest.get_ydata()) == [places["ein"], places["a"]]


def test_gold_links_are_dashed_and_words_are_literal() -> None:
    figure = picture(gold={(0, 0), (2, 1)}, source_title="German", target_title="English")
    assert len(lines(figure, dashed=True)) == 2
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words[:3] == ["German", "ein", "$Hund"]
    assert words[4:] == ["English", "a", "dog"]
    assert figure.get_suptitle() == "It"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="one row for each target word"):
        alignment_picture(WEIGHTS.T, ["a", "b", "c"], ["d", "e"], title="It")
    with pytest.raises(ShapeError, match="counted from 0"):
        picture(gold={(3, 0)})
