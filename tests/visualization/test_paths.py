"""The way from the first token to the last output is as long as the layer makes it."""

import io
import itertools

import matplotlib as mpl
import pytest
from glassformer.errors import ConfigError
from glassformer.visualization import path_picture
from glassformer.visualization.paths import _layout


def words(figure):
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize(
    ("kind", "choices", "said"),
    [
        ("rnn", {}, "from 1 to 9: 8 steps in time"),
        ("lstm", {}, "from 1 to 9: 8 steps in time"),
        ("gru", {"n": 5}, "from 1 to 5: 4 steps in time"),
        ("cnn", {}, "from 1 to 9: 4 layers"),
        ("cnn", {"n": 8, "kernel_size": 2, "dilation": 2}, "from 1 to 8: 3 layers"),
        ("attention", {}, "from 1 to 9: one step"),
    ],
)
def test_the_length_of_the_way_is_written_down(kind, choices, said):
    assert said in words(path_picture(kind, title="A way", **choices))


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "cnn", "attention"])
@pytest.mark.parametrize("n", [2, 7, 8])
def test_the_way_runs_along_edges_from_the_first_token_to_the_last_output(kind, n):
    edges, way = _layout(kind, n, 3, 1)
    assert way[0] == (0, 0)
    assert way[-1] == (n - 1, max(level for _, (_, level) in edges))
    assert set(itertools.pairwise(way)) <= set(edges)
    assert all(start[0] <= stop[0] for start, stop in edges)  # nobody sees the future


def test_what_meets_the_memory_at_each_step_stands_beside_it():
    assert words(path_picture("lstm", title="A way", n=4)).count("× f") == 3
    assert words(path_picture("gru", title="A way", n=4)).count("× z") == 3
    assert "× f" not in words(path_picture("attention", title="A way"))


def test_the_same_picture_twice_has_the_same_bytes():
    def drawn():
        buffer = io.BytesIO()
        with mpl.rc_context({"svg.hashsalt": "paths"}):
            path_picture("cnn", title="A way").savefig(
                buffer, format="svg", metadata={"Date": None}
            )
        return buffer.getvalue()

    assert drawn() == drawn()


@pytest.mark.parametrize("choices", [{"n": 1}, {"kernel_size": 1}, {"dilation": 0}])
def test_what_cannot_be_drawn_is_refused(choices):
    with pytest.raises(ConfigError, match="give at least"):
        path_picture("cnn", title="A way", **choices)
