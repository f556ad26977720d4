"""Who is trained, and who decays."""

import pytest
import torch
from glassformer import EncoderDecoder, EncoderDecoderConfig
from glassformer.errors import ConfigError
from glassformer.training import make_optimizer
from support.runs import tiny_decoder
from torch import nn


def models():
    shared = EncoderDecoder(
        EncoderDecoderConfig(vocab_size=13, max_len=11, d_model=14, n_heads=7, n_layers=2)
    )
    return [
        tiny_decoder(),
        tiny_decoder(tie_embeddings=False, positions="learned"),
        tiny_decoder(norm="rms", bias=False),
        shared,
    ]


@pytest.mark.parametrize("model", models(), ids=["tied", "untied", "rms", "shared"])
def test_T09_every_parameter_once_and_no_decay_on_gains_and_biases(model):
    optimizer = make_optimizer(model, lr=1e-3, weight_decay=0.1)
    grouped = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped})
    assert {id(p) for p in grouped} == {id(p) for p in model.parameters()}
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    for name, parameter in model.named_parameters():
        small = "norm" in name or name.endswith("bias")
        assert decay[id(parameter)] == (0.0 if small else 0.1), name


def test_frozen_parameters_are_left_out():
    model = tiny_decoder()
    model.embedding.requires_grad_(False)
    optimizer = make_optimizer(model, lr=1e-3)
    grouped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(model.embedding.tokens.weight) not in grouped


def test_decay_is_decoupled():
    """With a gradient of zero, a matrix shrinks by lr * decay and a bias stays."""
    layer = nn.Linear(3, 5)
    before = [p.detach().clone() for p in (layer.weight, layer.bias)]
    optimizer = make_optimizer(layer, lr=0.5, weight_decay=0.1)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before[0] * 0.95)
    assert torch.equal(layer.bias.detach(), before[1])


def test_refuses_nonsense():
    with pytest.raises(ConfigError, match=r"lr=-1\.0"):
        make_optimizer(nn.Linear(3, 5), lr=-1.0)
    with pytest.raises(ConfigError, match="no parameter"):
        make_optimizer(nn.Linear(3, 5).requires_grad_(False), lr=1.0)
