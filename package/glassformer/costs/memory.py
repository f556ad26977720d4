"""Bytes: what a cache keeps, and what training keeps for its backward pass.

Book: kv_cache
"""

from functools import partial

from glassformer.config import EncoderConfig, EncoderDecoderConfig, TransformerConfig
from glassformer.costs._sizes import (
    Heads,
    expert_rows,
    gone,
    is_gated,
    kv_width,
    q_width,
    source_of,
)

__all__ = ["activation_bytes", "kv_cache_bytes"]


def kv_cache_bytes(
    config: TransformerConfig,
    batch: int,
    length: int,
    *,
    source_length: int | None = None,
    bytes_per_value: int = 4,
) -> int:
    """Bytes of the keys and values of ``length`` tokens: ``2 L B S n_kv_heads d_head``, in bytes.

    Experts have no keys, so a mixture of them changes nothing.

    Args:
        config: the model. With a ``sliding_window`` no more tokens than that are kept.
        batch, length: rows, and tokens of each.
        source_length: tokens of an encoder-decoder's source, whose projections are then counted
            too: those of the cross cache.
        bytes_per_value: 4 for float32, 2 for half precision.

    Raises:
        ConfigError: a ``source_length`` for a model that reads no source.

    Book: kv_cache
    """
    if source_length is not None:
        source_of(config, source_length)
    if isinstance(config, EncoderConfig):
        return 0  # it reads everything at once
    kept = length if config.sliding_window is None else min(length, config.sliding_window)
    width, source = config.n_layers * kv_width(config), source_length or 0
    numbers = kept * (width - gone(config, "decoder", "self_attn").kv_width)
    numbers += source * (width - gone(config, "decoder", "cross_attn").kv_width)
    return 2 * batch * numbers * bytes_per_value


def activation_bytes(
    config: TransformerConfig,
    batch: int,
    length: int,
    *,
    source_length: int | None = None,
    checkpointed: bool = False,
    log_probs: bool = True,
    bytes_per_value: int = 4,
) -> int:
    """Bytes of the activations that one training step keeps for its backward pass.

    The model behind it, for each token of a block of width D: every norm keeps its input and two
    statistics (an RMSNorm of PyTorch's explicit path: the normalised values and one); the linear
    layers behind it share its output; the fused kernel keeps queries, keys, values, its output and
    one number per head (with rotary positions its output is copied once when heads are merged);
    the activation keeps its input, the layer behind it its output (ReLU makes one of the two,
    gates need four). A mixture of experts keeps these for every visit, and the visits' inputs and
    outputs. Relative positions make PyTorch keep the weights instead, H S numbers a token.

    Left out: masks of dropout, padding, and everything that no gradient needs.

    Args:
        config: the model.
        batch, length: shape of the tokens, all of them real.
        source_length: tokens of an encoder-decoder's source.
        checkpointed: blocks keep their input only, and one at a time gets its activations back;
            counted is one with all its heads.
        log_probs: count the float32 log-probabilities of a plain cross-entropy over all tokens; a
            chunked one does without.
        bytes_per_value: 4 for float32, 2 for half precision. Statistics stay in float32.

    Raises:
        ConfigError: an encoder-decoder without ``source_length``, or another model with one.

    Source: Korthikanti et al. 2023, section 4 for the way of counting. Book: training
    """
    source = source_of(config, source_length)
    own = "encoder" if isinstance(config, EncoderConfig) else "decoder"
    total = _stack(config, own, batch, length, source, checkpointed, bytes_per_value)
    if isinstance(config, EncoderDecoderConfig):
        total += _stack(config, "encoder", batch, source, 0, checkpointed, bytes_per_value)
    if log_probs and not isinstance(config, EncoderConfig):
        total += batch * length * config.vocab_size * 4
    return total


def _stack(
    config: TransformerConfig,
    stack: str,
    batch: int,
    length: int,
    source: int,
    checkpointed: bool,
    size: int,
) -> int:
    """Bytes of the blocks of a stack, of what comes in and of what goes out."""
    n_tokens, n_layers = batch * length, config.stacks[stack]
    whole = Heads(config.n_heads, q_width(config), kv_width(config))
    listen = partial(_attention, batch, length, size=size)
    block = listen(length, whole, positions=config.positions)
    lost = listen(length, gone(config, stack, "self_attn"), positions=config.positions)
    block += _norm(config, n_tokens, size) + _feed_forward(config, n_tokens, size)
    block += _norm(config, n_tokens, size)
    if config.sliding_window is not None:
        block += length * length * size  # the mask as numbers
    if source:
        block += listen(source, whole, positions="none")
        lost += listen(source, gone(config, stack, "cross_attn"), positions="none")
        block += _norm(config, n_tokens, size)
    stream = n_tokens * config.d_model * size
    blocks = n_layers * stream + block if checkpointed else n_layers * block - lost
    closing = _norm(config, n_tokens, size) if config.norm_position == "pre" else stream
    return blocks + closing + n_tokens * 8  # the ids


def _norm(config: TransformerConfig, n_tokens: int, size: int) -> int:
    """Input and output, the output as what the next linear layers read."""
    if config.norm == "rms":
        return n_tokens * (3 * config.d_model * size + 4)
    return n_tokens * (2 * config.d_model * size + 2 * 4)


def _attention(
    batch: int,
    q_len: int,
    k_len: int,
    heads: Heads,
    *,
    size: int,
    positions: str,
) -> int:
    """Bytes of some heads; linear in them, so that pruned ones can be taken off."""
    outputs = 2 if positions == "rotary" else 1
    numbers = q_len * (1 + outputs) * heads.q_width + k_len * 2 * heads.kv_width
    per_head = q_len * (k_len * size if positions == "relative" else 4)
    return batch * (numbers * size + heads.n_heads * per_head)


def _feed_forward(config: TransformerConfig, n_tokens: int, size: int) -> int:
    wide = 4 if is_gated(config) else 1 if config.activation == "relu" else 2
    rows = expert_rows(config, n_tokens)
    total = rows * wide * config.ff_size * size
    if config.n_experts is not None:
        visits = n_tokens * config.experts_per_token
        total += (rows + visits) * config.d_model * size  # read and written by the experts
        total += rows * 8 + visits * (2 * 8 + 2 * 4)  # seats, places, choices; weights
        total += n_tokens * (config.n_experts + 1) * 4  # probabilities
    return total
