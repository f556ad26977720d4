"""Shapes in signatures are checked in every test, and cost a chapter or a user nothing."""

import subprocess
import sys

import jaxtyping
import pytest
import torch
from glassformer.functional import token_mask_from_lengths

WRONG_RANK = torch.tensor([[3, 5]])


def test_the_tests_check_shapes():
    with pytest.raises(jaxtyping.TypeCheckError):
        token_mask_from_lengths(WRONG_RANK, 5)


def test_another_process_does_not():
    code = (
        "import glassformer.functional as functional\n"
        "print(hasattr(functional.attend, '__wrapped__'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
