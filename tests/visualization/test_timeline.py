"""Events stand beside their year, in order, and no two labels cover each other."""

import itertools

import pytest
from glassformer.errors import ConfigError
from glassformer.visualization import timeline
from glassformer.visualization.styling import spread_out
from glassformer.visualization.timeline import _LINE

LEFT = {"a part": 2017.1, "another": 2019.8, "a third": 2019.9}
RIGHT = {"a model": 2017.5, "a later one": 2025.1}


def drawn(**choices):
    return timeline(LEFT, RIGHT, title="What came when", names=("parts", "models"), **choices)


def test_every_event_every_year_and_both_names_are_written():
    words = [text.get_text() for text in drawn().axes[0].texts]
    years = [str(year) for year in range(2017, 2027)]
    assert sorted(words) == sorted([*LEFT, *RIGHT, "parts", "models", *years])


def test_earlier_stands_higher_and_on_its_own_side():
    axes = drawn().axes[0]
    places = {text.get_text(): text.get_position() for text in axes.texts}
    assert axes.yaxis_inverted()
    assert places["a part"][1] < places["another"][1] < places["a third"][1]
    assert all(places[label][0] < 0 for label in LEFT)
    assert all(places[label][0] > 0 for label in RIGHT)


def test_what_is_marked_is_bold():
    weights = {t.get_text(): t.get_fontweight() for t in drawn(marked=["another"]).axes[0].texts}
    assert weights["another"] == "bold"
    assert weights["a part"] == "normal"


@pytest.mark.parametrize(
    "places",
    [[2017.0], [2019.8, 2019.9, 2020.1, 2020.4], [2017.0, 2017.1, 2020.0, 2020.05, 2021.0]],
)
def test_labels_keep_their_distance_and_their_mean(places):
    moved = spread_out(places, _LINE)
    assert all(b - a >= _LINE - 1e-9 for a, b in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(places))


def test_places_that_are_far_apart_stay():
    assert spread_out([2017.0, 2018.0], _LINE) == [2017.0, 2018.0]


def test_refusals():
    with pytest.raises(ConfigError, match="no event"):
        timeline({}, RIGHT, title="t", names=("a", "b"))
    with pytest.raises(ConfigError, match="a stranger is on neither side"):
        drawn(marked=["a stranger"])
