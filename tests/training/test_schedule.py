"""Learning rates: exact values at the corners, Vaswani's formula, and no negative counts."""

import pytest
from glassformer.errors import ConfigError
from glassformer.training import warmup_constant, warmup_cosine, warmup_inverse_sqrt


def test_cosine_at_the_corners():
    at = [warmup_cosine(step, warmup=5, total=25, floor=0.1) for step in range(31)]
    assert at[0] == pytest.approx(1 / 5)
    assert at[4] == at[5] == 1.0
    assert at[15] == pytest.approx(0.55)  # half way down
    assert at[25] == at[30] == pytest.approx(0.1)
    assert at[:5] == sorted(at[:5])
    assert at[5:] == sorted(at[5:], reverse=True)


def test_no_step_has_a_rate_of_zero():
    assert warmup_cosine(0, warmup=7, total=9) > 0


def test_cosine_when_the_warm_up_is_the_whole_run():
    assert warmup_cosine(6, warmup=7, total=7) == 1.0
    assert warmup_cosine(7, warmup=7, total=7) == 1.0
    assert warmup_cosine(8, warmup=7, total=7) == pytest.approx(0.1)


def test_inverse_sqrt_is_vaswanis_rule_over_its_peak():
    d_model, warmup = 512, 4000

    def paper(s):
        return d_model**-0.5 * min(s**-0.5, s * warmup**-1.5)

    for step in (0, 17, 3998, 3999, 4000, 100_003):
        expected = paper(step + 1) / paper(warmup)
        assert warmup_inverse_sqrt(step, warmup=warmup) == pytest.approx(expected)
    assert warmup_inverse_sqrt(3999, warmup=warmup) == 1.0


def test_constant():
    assert [warmup_constant(s, warmup=2) for s in range(4)] == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "factor",
    [
        lambda step: warmup_cosine(step, warmup=0, total=7),
        lambda step: warmup_inverse_sqrt(step, warmup=0),
        lambda step: warmup_constant(step, warmup=0),
    ],
)
def test_without_a_warm_up_the_peak_comes_first(factor):
    assert factor(0) == 1.0
    assert 0 < factor(1) <= 1.0
    with pytest.raises(ConfigError, match="step=-1"):
        factor(-1)


def test_refuses_nonsense():
    with pytest.raises(ConfigError, match="warmup=-3"):
        warmup_constant(0, warmup=-3)
    with pytest.raises(ConfigError, match="total=0"):
        warmup_cosine(0, warmup=0, total=0)
    with pytest.raises(ConfigError, match=r"floor=1\.5"):
        warmup_cosine(0, warmup=0, total=7, floor=1.5)
