"""Where the routers of a mixture of experts sent their tokens.

Book: visualization
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from glassformer.introspect._parts import parts_of
from glassformer.nn.moe import MixtureOfExperts, Routing

__all__ = ["collect_router"]


@contextmanager
def collect_router(model: nn.Module) -> Iterator[dict[str, Routing]]:
    """Gather what every router did while the ``with`` block runs, with its gradient.

    ``with collect_router(model) as routings: logits = model(tokens)`` fills
    ``routings["decoder.blocks.0.feed_forward"]``. Look at ``r.overflow`` and at how often each
    expert is in ``r.chosen``; a loop of your own adds ``0.01 * sum(load_balancing_loss(r.probs,
    r.chosen) for r in routings.values())`` to its loss, as the setting ``balance`` of
    :class:`glassformer.training.TrainSettings` does. Of several forward passes the last one stays.

    Args:
        model: the model, neither compiled nor prepared.

    Raises:
        GlassformerError: the model is compiled or prepared, or has no mixture of experts.

    Book: visualization
    """
    mixtures = parts_of(model, MixtureOfExperts)
    routings: dict[str, Routing] = {}
    with ExitStack() as hooks:
        for name, mixture in mixtures.items():
            handle = mixture.router_tap.register_forward_hook(_recorder(routings, name))
            hooks.callback(handle.remove)
        yield routings


def _recorder(routings: dict[str, Routing], name: str) -> Callable[[nn.Module, Any, Routing], None]:
    def record(module: nn.Module, inputs: Any, routing: Routing) -> None:
        routings[name] = routing

    return record
