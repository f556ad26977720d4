"""What a model costs, from its config alone: parameters, multiply-adds, FLOPs, bytes.

One multiply-add (MAC) is two floating-point operations (FLOPs). Counted are the matrix products;
softmax, norms, activations and biases are left out, as is the half of the scores that a causal
kernel may skip.

Book: assembling
"""

from glassformer.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, TransformerConfig
from glassformer.errors import ConfigError

__all__ = [
    "attention_macs",
    "feed_forward_macs",
    "forward_flops",
    "kv_cache_bytes",
    "parameter_count",
]


def attention_macs(
    q_len: int, d_model: int, *, k_len: int | None = None, kv_width: int | None = None
) -> int:
    """Multiply-adds of one attention sublayer on one sequence.

    With ``k_len = q_len = n`` and full-width keys this is ``4 n d^2 + 2 n^2 d``: four projections,
    the scores and the weighted sum.

    Args:
        q_len: queries, T.
        d_model: width, D.
        k_len: keys, S; ``q_len`` when ``None``. Only the T new ones are projected.
        kv_width: width of keys and values (``n_kv_heads * d_head``); ``d_model`` when ``None``.

    Book: attention
    """
    k_len = q_len if k_len is None else k_len
    kv_width = d_model if kv_width is None else kv_width
    projections = 2 * q_len * d_model * d_model + 2 * q_len * d_model * kv_width
    return projections + 2 * q_len * k_len * d_model


def feed_forward_macs(length: int, d_model: int, d_ff: int, *, gated: bool = False) -> int:
    """Multiply-adds of one feed-forward sublayer: ``2 n d d_ff``, or three products if gated.

    With ``d_ff = 4 d_model`` this is ``8 n d^2``. Book: feed_forward
    """
    return (3 if gated else 2) * length * d_model * d_ff


def forward_flops(
    config: DecoderConfig | EncoderConfig, batch: int, length: int, *, cached: int = 0
) -> int:
    """FLOPs of one forward pass of a decoder or encoder.

    Args:
        config: the model.
        batch, length: shape of the tokens.
        cached: tokens already in the cache: one step of generation has ``length=1``.

    Raises:
        ConfigError: an encoder-decoder, whose two stacks read sequences of different lengths.

    Book: assembling
    """
    if isinstance(config, EncoderDecoderConfig):
        raise ConfigError("forward_flops counts one stack on one sequence; count the two apart")
    attention = attention_macs(
        length,
        config.d_model,
        k_len=cached + length,
        kv_width=config.kv_heads * config.d_head,
    )
    feed_forward = feed_forward_macs(
        length, config.d_model, config.ff_size, gated=config.activation == "swiglu"
    )
    macs = config.n_layers * (attention + feed_forward)
    if isinstance(config, DecoderConfig):
        macs += length * config.d_model * config.vocab_size
    return 2 * batch * macs


def kv_cache_bytes(
    config: TransformerConfig, batch: int, length: int, *, bytes_per_value: int = 4
) -> int:
    """Bytes of the keys and values of ``length`` tokens: ``2 L B S n_kv_heads d_head``, in bytes.

    Book: kv_cache
    """
    return 2 * config.n_layers * batch * length * config.kv_heads * config.d_head * bytes_per_value


def parameter_count(config: TransformerConfig) -> int:
    """Number of trainable numbers of the model that :func:`build_model` makes of ``config``.

    Book: assembling
    """
    embeddings = _embedding(config, config.vocab_size)
    head = 0 if config.tie_embeddings else config.vocab_size * config.d_model
    if isinstance(config, EncoderDecoderConfig):
        if config.source_vocab_size is not None:
            embeddings += _embedding(config, config.source_vocab_size)
        encoder = _stack(config, config.encoder_layers)
        return embeddings + encoder + _stack(config, config.n_layers, cross=True) + head
    if isinstance(config, EncoderConfig):
        embeddings += config.n_segments * config.d_model
        embeddings += _norm(config) if config.embedding_norm else 0
        head = 0
    return embeddings + _stack(config, config.n_layers) + head


def _linear(config: TransformerConfig, n_in: int, n_out: int) -> int:
    return n_in * n_out + (n_out if config.bias else 0)


def _norm(config: TransformerConfig) -> int:
    return config.d_model if config.norm == "rms" else 2 * config.d_model


def _embedding(config: TransformerConfig, vocab_size: int) -> int:
    learned = config.max_len if config.positions == "learned" else 0
    return (vocab_size + learned) * config.d_model


def _attention(config: TransformerConfig) -> int:
    width, kv_width = config.d_model, config.kv_heads * config.d_head
    return 2 * _linear(config, width, width) + 2 * _linear(config, width, kv_width)


def _stack(config: TransformerConfig, n_layers: int, *, cross: bool = False) -> int:
    gates = 2 if config.activation == "swiglu" else 1
    feed_forward = gates * _linear(config, config.d_model, config.ff_size)
    feed_forward += _linear(config, config.ff_size, config.d_model)
    attentions = 2 if cross else 1
    block = attentions * (_attention(config) + _norm(config)) + feed_forward + _norm(config)
    return n_layers * block + (_norm(config) if config.norm_position == "pre" else 0)
