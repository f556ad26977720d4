"""The model inside a wrapper, and the names of its weights without the wrapper's.

``torch.compile`` and data-parallel training put a module around the model, and its name in front
of every weight.

Book: training
"""

from torch import Tensor, nn

from glassformer.training._ranks import whole

__all__ = ["copied_weights", "plain_name", "unwrap"]

_WRAPPERS = ("module", "_orig_mod")


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself, however deeply wrapped.

    Book: training
    """
    for name in _WRAPPERS:
        inner = model._modules.get(name)
        if inner is not None:
            return unwrap(inner)
    return model


def plain_name(name: str) -> str:
    """``module._orig_mod.decoder.norm.weight`` -> ``decoder.norm.weight``, in any order and depth.

    Book: training
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def copied_weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and buffers, under their plain names.

    Book: training
    """
    state = whole(unwrap(model).state_dict())
    return {plain_name(name): value.detach().clone() for name, value in state.items()}
