"""Modules: embeddings, norms, attention, feed-forward, blocks. They take plain numbers."""

from glassformer.nn.blocks import Block, Stack
from glassformer.nn.embeddings import InputEmbedding, TokenEmbedding
from glassformer.nn.feed_forward import FeedForward
from glassformer.nn.init import init_weights
from glassformer.nn.layer_norm import LayerNorm, RMSNorm
from glassformer.nn.moe import MixtureOfExperts, Routing, load_balancing_loss, route
from glassformer.nn.multi_head import MultiHeadAttention, merge_heads, split_heads
from glassformer.nn.relative import RelativePositionBias
from glassformer.nn.rotary import Rotary

__all__ = [
    "Block",
    "FeedForward",
    "InputEmbedding",
    "LayerNorm",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "RMSNorm",
    "RelativePositionBias",
    "Rotary",
    "Routing",
    "Stack",
    "TokenEmbedding",
    "init_weights",
    "load_balancing_loss",
    "merge_heads",
    "route",
    "split_heads",
]
