"""Automatic checks for the exercises of the book.

A learner calls ``exercises.check("attention.blind_rows", my_function)`` and reads what was fed in,
what was expected, what came out, and one hint. A chapter's checkers stand in the module of the
chapter's name and register themselves with :func:`exercise`. The patients of the mask clinic
stand in :mod:`glassformer.exercises.clinic`.
"""

from glassformer.exercises.checking import Exercise, check, exercise, exercises_of
from glassformer.exercises.clinic import ILLNESSES, patients
from glassformer.exercises.comparing import (
    Failed,
    describe,
    expect,
    expect_answer,
    expect_close,
)
from glassformer.exercises.report import Report

__all__ = [
    "ILLNESSES",
    "Exercise",
    "Failed",
    "Report",
    "check",
    "describe",
    "exercise",
    "exercises_of",
    "expect",
    "expect_answer",
    "expect_close",
    "patients",
]
