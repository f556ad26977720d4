"""Modules: embeddings, norms, attention, feed-forward, blocks. They take plain numbers."""

from glassformer.nn.blocks import Block, Stack
from glassformer.nn.embeddings import InputEmbedding, TokenEmbedding
from glassformer.nn.feed_forward import FeedForward
from glassformer.nn.init import init_weights
from glassformer.nn.layer_norm import LayerNorm, RMSNorm
from glassformer.nn.multi_head import MultiHeadAttention, merge_heads, split_heads
from glassformer.nn.rotary import Rotary

__all__ = [
    "Block",
    "FeedForward",
    "InputEmbedding",
    "LayerNorm",
    "MultiHeadAttention",
    "RMSNorm",
    "Rotary",
    "Stack",
    "TokenEmbedding",
    "init_weights",
    "merge_heads",
    "split_heads",
]
