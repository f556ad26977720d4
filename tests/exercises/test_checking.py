"""A checker speaks like a good colleague: what it fed in, what it expected, what it got, a hint."""

import functools

import pytest
import torch
from bs4 import BeautifulSoup
from glassformer import exercises
from glassformer.errors import GlassformerError
from glassformer.exercises import Failed, checking, expect, expect_close
from glassformer.exercises.report import stable
from torch import nn


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_registered", {})

    @exercises.exercise("sample.double", minutes=5, level="easy")
    def double(learner):
        """Twice the input, for any shape."""
        x = torch.tensor([1.0, 2.0])
        expect_close("it doubles", learner(x), 2 * x, fed="[1, 2]", hint="Multiply by two.")
        big = torch.rand(3, 5)
        expect_close("any shape", learner(big), 2 * big, fed="random numbers of shape (3, 5)")

    @exercises.exercise("sample.layer", minutes=20, level="hard")
    def layer(learner):
        """A module is handed over as it is."""
        expect(isinstance(learner, nn.Module), "it is a module", got=learner, hint="Subclass it.")
        learner(torch.ones(2, 3))

    @exercises.exercise("sample.sloppy", minutes=5, level="easy")
    def sloppy(learner):
        """Reads the result without looking at it first."""
        if learner(1).shape != (1,):
            raise Failed("the shape is right", expected="(1,)", got="another")


def check(function, name="sample.double"):
    return exercises.check(name, function)


def test_a_right_answer_passes() -> None:
    report = check(lambda x: x * 2)
    assert report.passed
    assert bool(report)
    assert repr(report) == "✓ sample.double: passed"


def test_a_wrong_value_names_everything() -> None:
    assert repr(check(lambda x: x * 3)).splitlines() == [
        "✗ sample.double: not yet, it doubles",
        "  fed: [1, 2]",
        "  expected: [2.000, 4.000] (shape (2,), float32)",
        "  got: [3.000, 6.000] (shape (2,), float32)",
        "  hint: Multiply by two.",
    ]


@pytest.mark.parametrize(
    ("function", "property", "got"),
    [
        (lambda x: None, "it doubles: the result is a tensor", "None"),
        (lambda x: [2.0, 4.0], "it doubles: the result is a tensor", "[2, 4]"),
        (lambda x: (2 * x)[None], "it doubles: the shape", "(1, 2)"),
        (lambda x: (2 * x).long(), "it doubles: the dtype", "torch.int64"),
        (lambda x: x / 0 * 0, "it doubles: every number is finite", "2 of 2 are NaN or infinite"),
        (lambda x: torch.tensor([2.0, 4.0]), "any shape: the shape", "(2,)"),
    ],
)
def test_kinds_of_failure_are_told_apart(function, property: str, got: str) -> None:
    report = check(function)
    assert report.property == property
    assert got in report.got


def test_a_large_result_shows_the_first_difference() -> None:
    def nearly(x):
        doubled = 2 * x
        if x.dim() == 2:
            doubled[1, 2] = 9.0
        return doubled

    report = check(nearly)
    assert report.property == "any shape"
    assert "at index (1, 2), where yours has 9 (1 of 15 differ)" in report.expected


def test_an_exception_is_reported_with_its_input() -> None:
    def broken(x):
        raise RuntimeError("sizes differ\nand more")

    report = check(broken)
    assert report.property == "it runs without an error"
    assert report.got == "RuntimeError: sizes differ"
    assert report.fed == "[1.000, 2.000] (shape (2,), float32)"


def test_exceptions_get_fitting_hints() -> None:
    def starter(x):
        raise NotImplementedError

    assert "starter is still in place" in check(starter).hint
    assert "order of the arguments" in check(lambda: 1).hint


def test_a_name_from_a_cell_that_did_not_run_is_pointed_out() -> None:
    report = check(lambda x: x * not_yet_imported.factor)  # noqa: F821
    assert report.got == "NameError: name 'not_yet_imported' is not defined"
    assert "run the cells above first" in report.hint

    def used_too_soon(x):
        total += x  # noqa: F821
        return total

    assert "last line of the message" in check(used_too_soon).hint


def test_keyword_arguments_are_described() -> None:
    @exercises.exercise("sample.keywords", minutes=1, level="easy")
    def keywords(learner):
        """Calls by name."""
        learner(1, scale=0.5)

    def broken(x, scale):
        raise ValueError

    report = check(broken, "sample.keywords")
    assert report.fed == "1; scale=0.5"
    assert report.got == "ValueError"


def test_a_result_that_trips_the_checker_is_no_crash() -> None:
    report = check(lambda x: None, "sample.sloppy")
    assert report.property == "the result can be used as the exercise says"
    assert report.got.startswith("None, on which AttributeError")


def test_a_module_is_not_wrapped() -> None:
    assert check(nn.Linear(3, 2), "sample.layer").passed
    wrong = check(nn.Linear(7, 2), "sample.layer")
    assert wrong.property == "it runs without an error"
    assert wrong.got.startswith("RuntimeError")
    assert check(3, "sample.layer").got == "3"


@pytest.mark.parametrize("nothing", [None, ...])
def test_no_answer(nothing) -> None:
    report = check(nothing)
    assert report.property == "there is an answer"


def test_partial_functions_are_watched() -> None:
    def power(x, n):
        raise ValueError("no")

    assert check(functools.partial(power, n=2)).fed.startswith("[1.000")


def test_random_numbers_are_fixed_and_put_back() -> None:
    seen = []

    def spy(x):
        seen.append(float(torch.rand(())))
        return 2 * x

    torch.manual_seed(7)
    expected = float(torch.rand(()))
    torch.manual_seed(7)
    check(spy)
    assert float(torch.rand(())) == expected
    check(spy)
    assert seen[:2] == seen[2:]


def test_a_machine_with_several_gpus_is_no_reason_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert check(lambda x: 2 * x)


def test_reports_are_the_same_on_every_run() -> None:
    def broken(x):
        raise TypeError(f"{object()!r} in /home/someone/book/cell.py")

    first = check(broken)
    assert first.got != ""
    assert "0x" not in repr(first)
    assert "/home" not in repr(first) + first._repr_mimebundle_()["text/html"]
    assert repr(first) == repr(check(broken))


def test_the_html_is_text_and_self_contained() -> None:
    def broken(x):
        raise TypeError("<b>bold</b>")

    html = check(broken)._repr_mimebundle_()["text/html"]
    assert "<b>bold" not in html
    text = BeautifulSoup(html, "html.parser").get_text()
    assert "TypeError: <b>bold</b>" in text
    assert "✗ sample.double" in text
    assert html.count("class=") == 1


def test_addresses_and_folders_are_left_out() -> None:
    assert stable("<f at 0x7f00aa>") == "<f somewhere in memory>"
    assert stable("in /a/b-c/d.py line 3") == "in d.py line 3"
    assert stable("q / sqrt(d) and 1/2/3") == "q / sqrt(d) and 1/2/3"


@pytest.mark.parametrize(
    ("got", "property"),
    [
        (3.0, "n"),
        (torch.tensor(3.0), "n"),
        (float("nan"), "n"),
        (True, "n: the result is a number"),
        ("2", "n: the result is a number"),
        (torch.ones(2), "n: the result is a number"),
    ],
)
def test_numbers_are_compared(got, property: str) -> None:
    with pytest.raises(Failed) as caught:
        expect_close("n", got, 2.0)
    assert caught.value.property == property


def test_numbers_that_agree() -> None:
    expect_close("n", 2, 2.0)
    expect_close("n", torch.tensor(2.0), 2.0)
    expect_close("NaN where NaN is due", torch.tensor([torch.nan]), torch.tensor([torch.nan]))


def test_expect() -> None:
    expect(True, "fine")
    with pytest.raises(Failed, match="not fine"):
        expect(torch.tensor(False), "not fine")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.23456789, "1.235"),
        ([1, "a", None], "[1, 'a', None]"),
        ((1, 2.5), "(1, 2.5)"),
        (list(range(100)), "a list of 100"),
        ({"a": 1}, "a dict of 1"),
        (nn.Linear, "type Linear"),
        (nn.ReLU(), "a ReLU"),
        (torch.zeros(3, 5), "tensor of shape (3, 5), float32"),
        (torch.tensor([True, False]), "[True, False] (shape (2,), bool)"),
        (torch.tensor(-0.0), "0.000 (shape (), float32)"),
        (torch.ones(2, dtype=torch.complex64), "tensor of shape (2,), complex64"),
    ],
)
def test_values_are_described_in_a_line(value, text: str) -> None:
    assert exercises.describe(value) == text


def test_an_unknown_exercise_lists_near_ones() -> None:
    with pytest.raises(GlassformerError, match=r"no exercise; there are sample\.double"):
        exercises.check("sample.dubble", lambda x: x)
    with pytest.raises(GlassformerError, match="this chapter has no exercises"):
        exercises.check("nowhere.at_all", lambda x: x)


@pytest.mark.parametrize("name", ["double", "a.b.c", "sample.", "my chapter.x"])
def test_a_bad_id_is_refused(name: str) -> None:
    with pytest.raises(GlassformerError, match="<chapter>"):
        exercises.exercise(name, minutes=5, level="easy")


def test_no_time_is_refused() -> None:
    with pytest.raises(GlassformerError, match="minutes=0"):
        exercises.exercise("sample.none", minutes=0, level="easy")


def test_one_name_twice_is_refused() -> None:
    def elsewhere(learner):
        """From another module."""

    elsewhere.__module__ = "elsewhere"
    with pytest.raises(GlassformerError, match=r"sample\.double is registered twice"):
        exercises.exercise("sample.double", minutes=5, level="easy")(elsewhere)
