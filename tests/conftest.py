"""Fixtures that all tests share."""

import jaxtyping
import pytest
import torch
from hypothesis import settings

# The same examples on every run: a red test is red for everyone.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def seed():
    """Every test starts from the same random state."""
    torch.manual_seed(0)


@pytest.fixture
def no_shape_checks():
    """Users run without the checks of annotations: what the package itself says is tested so."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
