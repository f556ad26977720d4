"""Small models for tests. Sizes differ, so that a mix-up of two axes cannot pass."""

import torch
from glassformer import DecoderConfig, EncoderConfig, EncoderDecoderConfig, build_model
from torch import nn

SIZES = {
    "vocab_size": 29,
    "max_len": 23,
    "d_model": 30,
    "n_heads": 3,
    "n_layers": 2,
    "d_ff": 37,
}


def decoder_config(**changes):
    return DecoderConfig(**{**SIZES, **changes})


def encoder_config(**changes):
    return EncoderConfig(**{**SIZES, **changes})


def translator_config(**changes):
    return EncoderDecoderConfig(**{**SIZES, **changes})


def scrambled(config, *, dtype=torch.float64):
    """A model in evaluation mode whose every parameter is random.

    Fresh norms are ones and fresh biases zeros, which would hide many a mistake.
    """
    model = build_model(config).to(dtype).eval()
    scramble(model)
    return model


@torch.no_grad()
def scramble(module: nn.Module, *, by: float = 0.3) -> nn.Module:
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * by)
    for part in module.modules():
        if hasattr(part, "reset_pad"):
            part.reset_pad()
    return module


def ids(*shape, vocab_size=SIZES["vocab_size"], low=1):
    """Random ids without 0, which tests use as padding."""
    return torch.randint(low, vocab_size, shape)


def as_mask(*rows: str) -> torch.Tensor:
    """``as_mask("1..", "11.")``: 1 = may attend."""
    return torch.tensor([[mark == "1" for mark in row] for row in rows])


def forbid_float64_before_the_cpu(monkeypatch):
    """As on MPS, which has no float64: ``double`` takes only what ``cpu`` gave."""
    cpu, double = torch.Tensor.cpu, torch.Tensor.double

    def to_cpu(tensor):
        moved = cpu(tensor)
        moved.moved = True
        return moved

    def to_double(tensor):
        if not hasattr(tensor, "moved"):
            raise TypeError("MPS does not support float64")
        return double(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", to_cpu)
    monkeypatch.setattr(torch.Tensor, "double", to_double)
