"""Floating-point operations of the matrix products: forward, training, one step of generation.

Book: assembling
"""

from glassformer.config import EncoderConfig, EncoderDecoderConfig, TransformerConfig
from glassformer.costs import _sizes

__all__ = [
    "attention_macs",
    "decode_flops",
    "feed_forward_macs",
    "forward_flops",
    "training_flops",
]


def attention_macs(
    q_len: int,
    d_model: int,
    *,
    k_len: int | None = None,
    kv_width: int | None = None,
    q_width: int | None = None,
) -> int:
    """Multiply-adds of one attention sublayer on one sequence.

    With ``k_len = q_len = n`` and full-width keys this is ``4 n d^2 + 2 n^2 d``: four projections,
    the scores and the weighted sum.

    Args:
        q_len: queries, T.
        d_model: width, D.
        k_len: keys, S; ``q_len`` when ``None``. Only the T new ones are projected.
        kv_width: width of keys and values (``n_kv_heads * d_head``); ``d_model`` when ``None``.
        q_width: width of queries (``n_heads * d_head``); ``d_model`` when ``None``.

    Book: attention
    """
    k_len = q_len if k_len is None else k_len
    kv_width = d_model if kv_width is None else kv_width
    q_width = d_model if q_width is None else q_width
    return 2 * q_len * d_model * (q_width + kv_width) + 2 * q_len * k_len * q_width


def feed_forward_macs(length: int, d_model: int, d_ff: int, *, gated: bool = False) -> int:
    """Multiply-adds of one feed-forward sublayer: ``2 n d d_ff``, or three products if gated.

    With ``d_ff = 4 d_model`` this is ``8 n d^2``. Book: feed_forward
    """
    return (3 if gated else 2) * length * d_model * d_ff


def forward_flops(
    config: TransformerConfig,
    batch: int,
    length: int,
    *,
    cached: int = 0,
    source_length: int | None = None,
) -> int:
    """FLOPs of one forward pass, the output head included.

    Args:
        config: the model.
        batch, length: shape of the tokens; those of the target in an encoder-decoder.
        cached: tokens already in the cache. An encoder-decoder with cached tokens has read its
            source, so the encoder and the projection of its output are not counted again.
        source_length: tokens of an encoder-decoder's source.

    Raises:
        ConfigError: an encoder-decoder without ``source_length``, or another model with one.

    Book: assembling
    """
    source = _sizes.source_of(config, source_length)
    macs = _stacks(config, batch, length, cached, source, source_read=cached > 0)
    return 2 * (macs + _head(config, batch, length))


def decode_flops(
    config: TransformerConfig, batch: int, step: int, *, source_length: int | None = None
) -> int:
    """FLOPs of the step that reads one token behind ``step`` cached ones, with all caches.

    They grow with ``step`` until a ``sliding_window`` is full. The source of an encoder-decoder
    has been read before.

    Raises:
        ConfigError: as in :func:`forward_flops`.

    Book: kv_cache
    """
    source = _sizes.source_of(config, source_length)
    macs = _stacks(config, batch, 1, step, source, source_read=True)
    return 2 * (macs + _head(config, batch, 1))


def training_flops(
    config: TransformerConfig,
    batch: int,
    length: int,
    *,
    source_length: int | None = None,
    checkpointed: bool = False,
) -> int:
    """FLOPs of one training step: the forward pass three times.

    Each product ``x @ W`` of the forward pass has two in the backward pass, one for the gradient
    of ``x`` and one for that of ``W``. Checkpointed blocks run forward once more, which makes it
    four times; PyTorch stops there as soon as all it needs is back, and so saves the last product
    of a block.

    Args:
        config, batch, length, source_length: as in :func:`forward_flops`.
        checkpointed: whether blocks compute their activations twice.

    Raises:
        ConfigError: as in :func:`forward_flops`.

    Source: Kaplan et al. 2020, section 2.1; Chen et al. 2016, section 4. Book: training
    """
    flops = 3 * forward_flops(config, batch, length, source_length=source_length)
    if checkpointed:
        source = _sizes.source_of(config, source_length)
        flops += 2 * _stacks(config, batch, length, 0, source, source_read=False)
    return flops


def _head(config: TransformerConfig, batch: int, length: int) -> int:
    if isinstance(config, EncoderConfig):
        return 0
    return batch * length * config.d_model * config.vocab_size


def _stacks(
    config: TransformerConfig,
    batch: int,
    length: int,
    cached: int,
    source: int,
    *,
    source_read: bool,
) -> int:
    """Multiply-adds of all layers."""
    if cached and config.sliding_window is not None:
        cached = min(cached, config.sliding_window - 1)
    own = "encoder" if isinstance(config, EncoderConfig) else "decoder"
    macs = batch * _attentions(config, own, length, cached + length)
    macs += config.n_layers * _feed_forward(config, batch * length)
    if isinstance(config, EncoderDecoderConfig):
        q_width, kv_width = _widths(config, "decoder", "cross_attn")
        macs += batch * 2 * length * q_width * (config.d_model + source)
        if not source_read:
            macs += batch * 2 * source * config.d_model * kv_width
            macs += batch * _attentions(config, "encoder", source, source)
            macs += config.encoder_layers * _feed_forward(config, batch * source)
    return macs


def _attentions(config: TransformerConfig, stack: str, q_len: int, k_len: int) -> int:
    """Self-attention of all layers of a stack."""
    q_width, kv_width = _widths(config, stack, "self_attn")
    return attention_macs(q_len, config.d_model, k_len=k_len, kv_width=kv_width, q_width=q_width)


def _widths(config: TransformerConfig, stack: str, kind: str) -> tuple[int, int]:
    """Widths of queries and of keys, added up over the layers: the products are linear in them."""
    n_layers, lost = config.stacks[stack], _sizes.gone(config, stack, kind)
    return (
        n_layers * _sizes.q_width(config) - lost.q_width,
        n_layers * _sizes.kv_width(config) - lost.kv_width,
    )


def _feed_forward(config: TransformerConfig, n_tokens: int) -> int:
    rows = _sizes.expert_rows(config, n_tokens)
    macs = feed_forward_macs(rows, config.d_model, config.ff_size, gated=_sizes.is_gated(config))
    return macs + n_tokens * config.d_model * (config.n_experts or 0)
