"""Evaluation mode comes and goes without a trace."""

import pytest
import torch
from glassformer.evaluation import device_of, evaluating
from torch import nn


def test_O23_flags_are_restored_per_module_also_after_an_exception():
    """A frozen part inside a model in training must stay frozen."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 5)))
    model.train()
    model[1][0].eval()
    before = [module.training for module in model.modules()]
    assert set(before) == {True, False}
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == before
    with pytest.raises(RuntimeError, match="inside"), evaluating(model):
        raise RuntimeError("inside")
    assert [module.training for module in model.modules()] == before
    assert torch.is_grad_enabled()


def test_device_of_a_model_with_and_without_tensors():
    assert device_of(nn.Linear(3, 5, device="meta")).type == "meta"
    buffered = nn.Module()
    buffered.register_buffer("table", torch.empty(3, device="meta"))
    assert device_of(buffered).type == "meta"
    assert device_of(nn.Identity()).type == "cpu"
