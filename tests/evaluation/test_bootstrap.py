"""The paired bootstrap: right about equal systems, right about different ones, and repeatable."""

import random

import pytest
from glassformer.errors import ConfigError, DataError
from glassformer.evaluation import bleu, chrf, paired_bootstrap

WORDS = [f"w{i}" for i in range(41)]
SCORES = {"bleu": bleu, "chrf": chrf}


def sentences(n, seed=1):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(6, 13))) for _ in range(n)]


def noisy(references, share, seed):
    """Each word replaced with probability ``share``, but some sentences are harder."""
    draw = random.Random(seed)
    lines = []
    for reference in references:
        level = 2 * share * draw.random()
        words = [draw.choice(WORDS) if draw.random() < level else w for w in reference.split()]
        lines.append(" ".join(words))
    return lines


REFERENCES = sentences(43)
GOOD, BAD = noisy(REFERENCES, 0.1, 2), noisy(REFERENCES, 0.4, 3)


@pytest.mark.parametrize("metric", SCORES)
def test_a_clear_difference(metric):
    found = paired_bootstrap(GOOD, BAD, REFERENCES, metric=metric, n_samples=199)
    assert found.score_a == pytest.approx(SCORES[metric](GOOD, REFERENCES).score, abs=1e-6)
    assert found.score_b == pytest.approx(SCORES[metric](BAD, REFERENCES).score, abs=1e-6)
    assert found.difference == found.score_a - found.score_b > 0
    assert found.signature == SCORES[metric](GOOD, REFERENCES).signature
    assert found.p_value == 1 / 200
    assert found.share_a_better == 1
    assert 0 < found.interval[0] < found.difference < found.interval[1]


def test_the_other_way_round_it_is_the_mirror_image():
    one = paired_bootstrap(GOOD, BAD, REFERENCES, n_samples=97, seed=5)
    other = paired_bootstrap(BAD, GOOD, REFERENCES, n_samples=97, seed=5)
    assert other.difference == -one.difference
    assert other.interval == pytest.approx((-one.interval[1], -one.interval[0]))
    assert (other.p_value, other.share_a_better) == (one.p_value, 0)


def test_a_system_equals_itself():
    found = paired_bootstrap(GOOD, list(GOOD), REFERENCES, n_samples=97)
    assert (found.difference, found.p_value, found.interval) == (0, 1, (0, 0))
    assert found.share_a_better == 0


def test_the_seed_decides_everything():
    other = noisy(REFERENCES, 0.15, 7)
    one, again = (paired_bootstrap(GOOD, other, REFERENCES, n_samples=97, seed=5) for _ in "ab")
    assert one == again
    assert paired_bootstrap(GOOD, other, REFERENCES, n_samples=97, seed=6) != one


def test_equal_systems_are_rarely_called_different():
    """Two systems with the same error rate: p is at most 0.1 in about a tenth of the trials.

    With the p-value of sacreBLEU 2.6 it would be in 26 of these 100.
    """
    references = sentences(43, seed=11)
    small = [
        paired_bootstrap(
            noisy(references, 0.3, 100 + trial),
            noisy(references, 0.3, 500 + trial),
            references,
            n_samples=59,
            seed=trial,
        ).p_value
        <= 0.1
        for trial in range(100)
    ]
    assert 4 <= sum(small) <= 18


def test_bad_input_is_refused():
    with pytest.raises(DataError, match="42 hypotheses and 43 references"):
        paired_bootstrap(GOOD, BAD[1:], REFERENCES)
    with pytest.raises(DataError, match="42 hypotheses and 43 references"):
        paired_bootstrap(GOOD[1:], BAD, REFERENCES)
    with pytest.raises(DataError, match="n_samples=0 must be at least 1"):
        paired_bootstrap(GOOD, BAD, REFERENCES, n_samples=0)
    with pytest.raises(ConfigError, match="tokenize='14a' is no tokenizer"):
        paired_bootstrap(GOOD, BAD, REFERENCES, tokenize="14a")
