"""Figures that say what to see: heat maps of weights and masks, curves, the flow of attention.

Every function returns a matplotlib figure and draws from rounded data, so that the same numbers
give the same bytes. matplotlib is loaded when the first figure is drawn, not before.
"""

from glassformer.visualization._pages import Explorer
from glassformer.visualization.alignment import alignment_picture
from glassformer.visualization.clocks import position_clocks
from glassformer.visualization.compass import query_compass
from glassformer.visualization.curves import line_chart, loss_curve
from glassformer.visualization.explorer import attention_explorer
from glassformer.visualization.flow import attention_flow
from glassformer.visualization.heat_maps import heat_map
from glassformer.visualization.paths import path_picture
from glassformer.visualization.stream import residual_stream
from glassformer.visualization.styling import PALETTE, rounded, safe_label, style
from glassformer.visualization.timeline import timeline
from glassformer.visualization.token_trace import token_trace

__all__ = [
    "PALETTE",
    "Explorer",
    "alignment_picture",
    "attention_explorer",
    "attention_flow",
    "heat_map",
    "line_chart",
    "loss_curve",
    "path_picture",
    "position_clocks",
    "query_compass",
    "residual_stream",
    "rounded",
    "safe_label",
    "style",
    "timeline",
    "token_trace",
]
