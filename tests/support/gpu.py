"""One helper for tests that need a GPU."""

import pytest
import torch


def needs_gpu(test):
    """Skip cleanly where there is no CUDA device."""
    missing = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(missing(test))
