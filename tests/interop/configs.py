"""One config of ours for each family of theirs."""

from glassformer import DecoderConfig, EncoderConfig, EncoderDecoderConfig

SIZES = {"vocab_size": 29, "max_len": 23, "d_model": 30, "n_heads": 3, "n_layers": 2, "d_ff": 37}
ROTARY = {"norm": "rms", "norm_eps": 1e-6, "bias": False, "tie_embeddings": False}
BERT = {"norm_position": "post", "positions": "learned", "embedding_norm": True, "norm_eps": 1e-12}
T5 = {
    "activation": "geglu",
    "norm": "rms",
    "positions": "relative",
    "relative_buckets": 8,
    "relative_max_distance": 11,
    "bias": False,
    "head_size": 7,
    "n_encoder_layers": 3,
}
# one of ours for each family, with as little as possible left at its default
OURS = {
    "gpt2": DecoderConfig(**SIZES, activation="gelu_tanh", positions="learned"),
    "llama": DecoderConfig(
        **SIZES, **ROTARY, activation="swiglu", n_kv_heads=1, head_size=14, rope_base=5e4, pad_id=3
    ),
    "qwen2": DecoderConfig(**SIZES, **ROTARY, activation="swiglu", n_kv_heads=1, qkv_bias=True),
    "phi3": DecoderConfig(**SIZES, **ROTARY, activation="swiglu", sliding_window=5, dropout=0.1),
    "bert": EncoderConfig(**SIZES, **BERT, n_segments=2, pad_id=0),
    "roberta": EncoderConfig(**SIZES, **BERT, n_segments=1, pad_id=1),
    "t5": EncoderDecoderConfig(**SIZES, **T5, tie_embeddings=False),
    "marian": EncoderDecoderConfig(
        **SIZES,
        activation="silu",
        norm_position="post",
        positions="sinusoidal",
        head_bias=True,
        pad_id=28,
        n_encoder_layers=3,
    ),
}
