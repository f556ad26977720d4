"""Looking inside a model without changing it: whatever happens, nothing stays behind.

Book: visualization
"""

from glassformer.introspect.attention import ablate_heads, capture_attention
from glassformer.introspect.roles import head_roles
from glassformer.introspect.rollout import attention_rollout
from glassformer.introspect.router import collect_router
from glassformer.introspect.shapes import ShapeTrace, Step, trace_shapes
from glassformer.introspect.words import WordMaps, word_maps

__all__ = [
    "ShapeTrace",
    "Step",
    "WordMaps",
    "ablate_heads",
    "attention_rollout",
    "capture_attention",
    "collect_router",
    "head_roles",
    "trace_shapes",
    "word_maps",
]
