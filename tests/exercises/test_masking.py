"""Right answers pass; typical wrong ones are told which property they lack."""

import itertools
import math

import pytest
import torch
from glassformer import exercises
from glassformer.exercises.clinic import ILLNESSES, Patient, patients
from glassformer.exercises.masking import _place_apart, _probes
from glassformer.functional import attend, causal_mask, combine_masks, padding_mask

TRUTH = {name: patient._illness for name, patient in patients().items()}


def sound(q, k, v, *, q_real=None, k_real=None, is_causal=False):
    mask = combine_masks(
        causal_mask(q.shape[2], k.shape[2]) if is_causal else None,
        None if k_real is None else padding_mask(k_real),
    )
    return attend(q, k, v, mask=mask)


def gatekeeper(
    attention,
    *,
    sizes=((5, 5), (2, 5)),
    dtypes=(torch.float32, torch.float16),
    causal=(True, False),
    padded=(None, "left", "target"),
    loud=False,
    catch=True,
    exact=False,
):
    """A test as a learner writes it, with knobs for what it may leave out."""
    for (q_len, k_len), dtype, is_causal, pad in itertools.product(sizes, dtypes, causal, padded):
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 3, n, 4).to(dtype) for n in (q_len, k_len, k_len))
        if loud:  # values of 1, which every right average keeps
            v = torch.ones_like(v)
        real = {}
        if pad is not None:
            real["k_real"] = torch.arange(k_len) >= torch.tensor([[0], [2]])
        if pad == "target":
            real["q_real"] = torch.arange(q_len) < torch.tensor([[q_len], [1]])
        want = sound(q, k, v, is_causal=is_causal, **real)
        try:
            got = attention(q, k, v, is_causal=is_causal, **real)
        except RuntimeError:
            if catch:
                return False
            raise
        if exact and not torch.equal(got, want):
            return False
        if not torch.allclose(got.float(), want.float(), atol=1e-2):
            return False
    return True


def translate(mask, n_heads):
    return (~mask).expand(-1, n_heads, -1, -1).flatten(0, 1)


def packed(document):
    same = document[:, None, :, None] == document[:, None, None, :]
    return same & causal_mask(document.shape[1]) & (document >= 0)[:, None, None, :]


def chunk(n_cached, n_new, window):
    key = torch.arange(n_cached + n_new)
    query = n_cached + torch.arange(n_new)[:, None]
    return (key <= query) & (key > query - window)


def pooled(x, real):
    total = x.float().masked_fill(~real[..., None], 0.0).sum(1)
    return (total / real.sum(1, keepdim=True).clamp(min=1)).to(x.dtype)


RIGHT = {
    "clinic": TRUTH,
    "gatekeeper": gatekeeper,
    "translate": translate,
    "packed": packed,
    "chunk": chunk,
    "pooled": pooled,
}


def swapped(one, other):
    """The truth with the diagnoses of two patients exchanged."""
    names = {illness: name for name, illness in TRUTH.items()}
    return TRUTH | {names[one]: other, names[other]: one}


def one_table_per_sample(mask, n_heads):
    return ~mask[:, 0]


def neighbours(document):
    """Looks at the id just before, not at every key's."""
    same = torch.cat([torch.ones(len(document), 1), document[:, 1:] == document[:, :-1]], 1).bool()
    return same[:, None, None, :] & causal_mask(document.shape[1]) & padding_mask(document >= 0)


WRONG = [
    ("clinic", dict.fromkeys(TRUTH, "healthy"), "behaves as you diagnosed"),
    ("clinic", swapped("zeros instead of -inf", "mask after softmax"), "behaves as you diagnosed"),
    ("clinic", swapped("polarity", "wrong axis"), "behaves as you diagnosed"),
    ("clinic", swapped("healthy", "cache offset"), "behaves as you diagnosed"),
    ("clinic", {"A": "polarity"}, "for each of the nine"),
    ("clinic", list(TRUTH.values()), "for each of the nine"),
    ("clinic", TRUTH | {"C": "a cold"}, "of patient C is one of the list"),
    ("gatekeeper", lambda attention: True, "is refused that"),
    ("gatekeeper", lambda attention: False, "a healthy attention passes"),
    ("gatekeeper", lambda attention: None, "answers True or False"),
    ("gatekeeper", lambda a: gatekeeper(a, exact=True), "a healthy attention passes"),
    ("gatekeeper", lambda a: gatekeeper(a, catch=False), "raises an error is refused"),
    (
        "gatekeeper",
        lambda a: gatekeeper(a, dtypes=(torch.float32,)),
        "a number that float16 does not have",
    ),
    ("gatekeeper", lambda a: gatekeeper(a, sizes=((5, 5),)), "first query for the first token"),
    ("gatekeeper", lambda a: gatekeeper(a, padded=(None,)), "lays the padding over the queries"),
    (
        "gatekeeper",
        lambda a: gatekeeper(a, padded=(None, "left")),
        "hides the keys where the queries",
    ),
    ("gatekeeper", lambda a: gatekeeper(a, causal=(False,)), "may see nothing"),
    ("translate", lambda m, h: ~translate(m, h), "True means hidden"),
    ("translate", one_table_per_sample, "one table for each sample and head"),
    ("translate", lambda m, h: (~m[:, 0]).repeat(h, 1, 1), "heads of one sample stand together"),
    ("translate", lambda m, h: translate(m, h).float(), "is boolean"),
    ("translate", lambda m, h: translate(m.mT, h), "a row is a query"),
    ("packed", lambda d: packed(d) | ~causal_mask(6), "sees the future"),
    ("packed", lambda d: causal_mask(6) & (d >= 0)[:, None, None, :], "sees another document"),
    ("packed", neighbours, "sees another document"),
    (
        "packed",
        lambda d: (d[:, None, :, None] == d[:, None, None, :]) & causal_mask(6),
        "attends to padding",
    ),
    ("packed", lambda d: packed(d)[:, 0], "axes for samples, heads"),
    ("packed", lambda d: packed(d).expand(2, 8, 6, 6), "for all heads"),
    ("packed", lambda d: packed(d) & ~torch.eye(6).bool(), "sees itself and what"),
    ("packed", lambda d: packed(d) & (d > 0)[:, None, None, :], "sees itself and what"),
    (
        "chunk",
        lambda c, n, w: causal_mask(n, c + n, offset=0),
        "the last query sees the last key",
    ),
    ("chunk", lambda c, n, w: causal_mask(n, c + n), "a window of 3 is the token itself"),
    ("chunk", lambda c, n, w: chunk(c, n, w + 1), "a window of 3 is the token itself"),
    ("chunk", lambda c, n, w: chunk(c, n, w)[:, c:], "cached ones first"),
    ("chunk", lambda c, n, w: chunk(c, n, w).float(), "is boolean"),
    (
        "chunk",
        lambda c, n, w: causal_mask(n, c + n) & (torch.arange(c + n) >= c + n - w),
        "a window of 3 is the token itself|the window moves",
    ),
    ("pooled", lambda x, r: x.mean(1), "only real tokens count"),
    ("pooled", lambda x, r: (x * r[..., None]).mean(1), "only real tokens count"),
    (
        "pooled",
        lambda x, r: (x * r[..., None]).sum(1) / r.sum(1, keepdim=True).clamp(min=1),
        "stands in the padding does not matter",
    ),
    (
        "pooled",
        lambda x, r: x.masked_fill(~r[..., None], 0.0).sum(1) / r.sum(1, keepdim=True),
        "without a real token gives zeros",
    ),
    (
        "pooled",
        lambda x, r: (
            x.masked_fill(~r[..., None], 0.0).cumsum(1)[:, -1] / r.sum(1, keepdim=True).clamp(min=1)
        ),
        "does not overflow",
    ),
    ("pooled", lambda x, r: x.masked_fill(~r[..., None], 0.0).sum(1), "the plain mean"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    report = exercises.check(f"masking.{name}", RIGHT[name])
    assert report.passed, report


def test_a_mean_by_weights_passes_though_it_rounds_in_half_precision():
    def by_weights(x, real):
        share = (real / real.sum(1, keepdim=True).clamp(min=1)).to(x.dtype)
        return (x.masked_fill(~real[..., None], 0.0) * share[..., None]).sum(1)

    report = exercises.check("masking.pooled", by_weights)
    assert report.passed, report


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_wrong_answers_are_told_what_they_lack(name, answer, said):
    report = exercises.check(f"masking.{name}", answer)
    assert not report.passed
    assert any(part in report.property for part in said.split("|")), report
    assert report.fed
    assert report.hint


def test_every_exercise_meets_at_least_three_wrong_answers():
    for name in exercises.exercises_of("masking"):
        assert sum(f"masking.{wrong[0]}" == name for wrong in WRONG) >= 3


# --- the clinic


def test_each_patient_has_another_illness_and_one_has_none():
    assert sorted(TRUTH.values()) == sorted(ILLNESSES)
    assert list(patients()) == list("ABCDEFGHI")
    assert repr(patients()["A"]) == "patient A"


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(ILLNESSES, 2)])
def test_the_probes_tell_every_illness_from_every_other(one, other):
    torch.manual_seed(0)
    assert any(
        _place_apart(probe.of(Patient("x", one)), probe.of(Patient("y", other))) is not None
        for probe in _probes()
    )


@pytest.mark.parametrize("name", TRUTH)
@pytest.mark.parametrize("claimed", ILLNESSES)
def test_a_single_wrong_diagnosis_is_refuted_and_the_right_one_not_told(name, claimed):
    report = exercises.check("masking.clinic", TRUTH | {name: claimed})
    assert report.passed == (claimed == TRUTH[name])
    if not report.passed:
        assert report.property == f"patient {name} behaves as you diagnosed"
        assert claimed in report.expected
        assert "8 of 9 diagnoses stand" in report.got
        told = report.property + report.fed + report.expected + report.got
        assert TRUTH[name] not in told


def test_the_healthy_patient_is_the_packages_attention():
    healthy = Patient("E", "healthy")
    torch.manual_seed(0)
    for probe in _probes():
        assert _place_apart(probe.of(healthy), probe.of(sound)) is None


@pytest.mark.parametrize("illness", [ill for ill in ILLNESSES if "half" not in ill])
def test_seven_illnesses_raise_no_error(illness):
    torch.manual_seed(0)
    assert all(isinstance(p.of(Patient("x", illness)), torch.Tensor) for p in _probes())


def test_more_queries_than_keys_raise_no_error_either():
    q, k = torch.randn(1, 1, 6, 4), torch.randn(1, 1, 3, 4)
    real = torch.tensor([[True, True, False]])
    for patient in patients().values():
        out = patient(q, k, k, q_real=torch.ones(1, 6).bool(), k_real=real)
        assert out.shape == q.shape


def test_zeros_and_late_masks_mirror_each_other():
    """A hidden key's value moves one and its key the other: what the chapter tells apart."""
    q, k, v = (torch.randn(1, 1, 4, 5) for _ in range(3))
    real = torch.tensor([[True, True, True, False]])
    other = torch.cat([torch.zeros(1, 1, 3, 5), torch.ones(1, 1, 1, 5)], dim=2)
    for illness, by_key, by_value in (
        ("healthy", False, False),
        ("zeros instead of -inf", False, True),
        ("mask after softmax", True, False),
    ):
        patient = Patient("x", illness)
        before = patient(q, k, v, k_real=real)
        assert torch.equal(patient(q, k + other, v, k_real=real), before) != by_key
        assert torch.equal(patient(q, k, v + other, k_real=real), before) != by_value


def test_blind_rows_are_nan_in_one_patient_only():
    q = torch.randn(1, 1, 2, 4)
    nothing = torch.zeros(1, 2, dtype=torch.bool)
    broken = [
        name for name, p in patients().items() if p(q, q, q, k_real=nothing).isnan().any().item()
    ]
    assert [TRUTH[name] for name in broken] == ["blind rows"]
    assert math.isfinite(float(patients()["E"](q, q, q, k_real=nothing).sum()))
