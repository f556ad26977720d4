"""Finding the modules to look at. Book: visualization"""

from collections.abc import Callable
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from glassformer.errors import GlassformerError
from glassformer.inference import PreparedDecoder, PreparedTranslator
from glassformer.nn.multi_head import MultiHeadAttention

M = TypeVar("M", bound=nn.Module)


def refuse_compiled(model: nn.Module) -> None:
    """Hooks registered after compilation do not run. Book: visualization"""
    # torch.compile wraps a module in one that holds it as `_orig_mod`
    if any(hasattr(module, "_orig_mod") for module in model.modules()):
        raise GlassformerError(
            "a compiled model does not run the hooks that look into it; pass the model that was "
            "given to torch.compile"
        )


def refuse_prepared(model: nn.Module) -> None:
    """The side that writes is no modules any more. Book: visualization"""
    kinds = (PreparedDecoder, PreparedTranslator)
    if any(isinstance(module, kinds) for module in model.modules()):
        raise GlassformerError(
            "a prepared model only writes: it has no parts to look into or to train; pass the "
            "model that it was made of"
        )


def parts_of(model: nn.Module, kind: type[M]) -> dict[str, M]:
    """Name -> module for every module of one kind; at least one, or an error.

    Book: visualization
    """
    refuse_compiled(model)
    refuse_prepared(model)
    found = {name: module for name, module in model.named_modules() if isinstance(module, kind)}
    if not found:
        raise GlassformerError(f"{type(model).__name__} has no {kind.__name__} to look at")
    return found


def on_heads(
    attention: MultiHeadAttention,
    change: Callable[[Float[Tensor, "*lead n_heads d_head"]], Tensor],
) -> RemovableHandle:
    """Let ``change`` see what the heads say, and replace it, before ``o_proj`` mixes them.

    There the outputs of all heads lie side by side, on every path of the attention.

    Book: visualization
    """
    n_heads = attention.n_heads

    def replace(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (change(inputs[0].unflatten(-1, (n_heads, -1))).flatten(-2),)

    return attention.o_proj.register_forward_pre_hook(replace)
