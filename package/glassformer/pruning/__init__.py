"""Which heads and layers matter, and models without the others.

Book: pruning
"""

from glassformer.pruning.gates import HardConcreteGates, gated_heads
from glassformer.pruning.importance import (
    head_importance,
    layer_importance,
    random_importance,
    weakest_heads,
)
from glassformer.pruning.removal import drop_layers, every_other, prune_heads
from glassformer.pruning.sparse import sparse_attention

__all__ = [
    "HardConcreteGates",
    "drop_layers",
    "every_other",
    "gated_heads",
    "head_importance",
    "layer_importance",
    "prune_heads",
    "random_importance",
    "sparse_attention",
    "weakest_heads",
]
