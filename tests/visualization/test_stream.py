"""Every layer reads from the stream and adds to it."""

from glassformer.visualization import residual_stream


def test_four_sublayers_each_with_a_norm_and_a_sum() -> None:
    figure = residual_stream("It runs through")
    words = [text.get_text() for text in figure.axes[0].texts]
    assert [word for word in words if word in ("attention", "FFN")] == ["attention", "FFN"] * 2
    assert words.count("norm") == words.count("+") == 4
    assert figure.get_suptitle() == "It runs through"
