"""Finding the modules to look at. Book: visualization"""

from typing import TypeVar

from torch import nn

from glassformer.errors import GlassformerError

M = TypeVar("M", bound=nn.Module)


def refuse_compiled(model: nn.Module) -> None:
    """Hooks registered after compilation do not run. Book: visualization"""
    # torch.compile wraps a module in one that holds it as `_orig_mod`
    if any(hasattr(module, "_orig_mod") for module in model.modules()):
        raise GlassformerError(
            "a compiled model does not run the hooks that look into it; pass the model that was "
            "given to torch.compile"
        )


def parts_of(model: nn.Module, kind: type[M]) -> dict[str, M]:
    """Name -> module for every module of one kind; at least one, or an error.

    Book: visualization
    """
    refuse_compiled(model)
    found = {name: module for name, module in model.named_modules() if isinstance(module, kind)}
    if not found:
        raise GlassformerError(f"{type(model).__name__} has no {kind.__name__} to look at")
    return found
