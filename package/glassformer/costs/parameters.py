"""Trainable numbers.

Book: assembling
"""

from glassformer.config import EncoderConfig, EncoderDecoderConfig, TransformerConfig
from glassformer.costs._sizes import gone, is_gated, kv_width, q_width

__all__ = ["parameter_count"]


def parameter_count(config: TransformerConfig) -> int:
    """Number of trainable numbers of the model that :func:`build_model` makes of ``config``.

    Book: assembling
    """
    embeddings = _embedding(config, config.vocab_size)
    head = 0 if config.tie_embeddings else config.vocab_size * config.d_model
    head += config.vocab_size if config.head_bias else 0
    if isinstance(config, EncoderDecoderConfig):
        if config.source_vocab_size is not None:
            embeddings += _embedding(config, config.source_vocab_size)
        encoder = _stack(config, config.encoder_layers)
        decoder = _stack(config, config.n_layers, cross=True)
        return embeddings + encoder + decoder + head - _pruned(config)
    if isinstance(config, EncoderConfig):
        embeddings += config.n_segments * config.d_model
        embeddings += _norm(config) if config.embedding_norm else 0
        head = 0
    return embeddings + _stack(config, config.n_layers) + head - _pruned(config)


def _linear(n_in: int, n_out: int, bias: bool) -> int:
    return n_in * n_out + (n_out if bias else 0)


def _norm(config: TransformerConfig) -> int:
    return config.d_model if config.norm == "rms" else 2 * config.d_model


def _embedding(config: TransformerConfig, vocab_size: int) -> int:
    learned = config.max_len if config.positions == "learned" else 0
    return (vocab_size + learned) * config.d_model


def _attention(config: TransformerConfig) -> int:
    output_bias = config.d_model if config.bias else 0
    return _heads(config, q_width(config), kv_width(config)) + output_bias


def _heads(config: TransformerConfig, q_width: int, kv_width: int) -> int:
    """All of an attention that grows with its heads."""
    qkv_bias = config.bias if config.qkv_bias is None else config.qkv_bias
    qkv = _linear(config.d_model, q_width + 2 * kv_width, qkv_bias)
    return qkv + q_width * config.d_model


def _pruned(config: TransformerConfig) -> int:
    lost = [gone(config, s, kind) for s in config.stacks for kind in ("self_attn", "cross_attn")]
    return sum(_heads(config, each.q_width, each.kv_width) for each in lost)


def _feed_forward(config: TransformerConfig) -> int:
    wide = 2 if is_gated(config) else 1
    one = wide * _linear(config.d_model, config.ff_size, config.bias)
    one += _linear(config.ff_size, config.d_model, config.bias)
    if config.n_experts is None:
        return one
    return config.n_experts * (one + config.d_model)  # the router has a row for each expert


def _stack(config: TransformerConfig, n_layers: int, *, cross: bool = False) -> int:
    attentions = 2 if cross else 1
    sublayers = attentions * _attention(config) + _feed_forward(config)
    block = sublayers + (attentions + 1) * _norm(config)
    closing = _norm(config) if config.norm_position == "pre" else 0
    relative = config.positions == "relative"
    table = config.relative_buckets * config.n_heads if relative else 0
    return n_layers * block + closing + table
