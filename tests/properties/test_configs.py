"""What holds for any config: it builds, it counts right, it survives JSON, it is causal."""

import json
from typing import get_args

import torch
from glassformer import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    build_model,
    config_from_dict,
)
from glassformer.config import Activation, PositionKind
from glassformer.costs import parameter_count
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close


@st.composite
def configs(draw, kinds=(DecoderConfig, EncoderConfig, EncoderDecoderConfig)):
    """A class and its fields. It is made later: checks of annotations draw random numbers."""
    n_kv_heads, group, half = (draw(st.integers(1, 3)) for _ in range(3))
    vocab_size = draw(st.integers(2, 9))
    options = {
        "vocab_size": vocab_size,
        "max_len": draw(st.integers(4, 9)),
        "d_model": n_kv_heads * group * 2 * half,
        "n_heads": n_kv_heads * group,
        "n_kv_heads": draw(st.sampled_from((n_kv_heads, None))),
        "n_layers": draw(st.integers(1, 2)),
        "d_ff": draw(st.none() | st.integers(1, 9)),
        "activation": draw(st.sampled_from(get_args(Activation))),
        "norm": draw(st.sampled_from(("layer", "rms"))),
        "norm_position": draw(st.sampled_from(("pre", "post"))),
        "positions": draw(st.sampled_from(get_args(PositionKind))),
        "head_size": draw(st.none() | st.sampled_from((2, 4))),
        "qkv_bias": draw(st.none() | st.booleans()),
        "n_experts": draw(st.none() | st.integers(2, 3)),
        "bias": draw(st.booleans()),
        "tie_embeddings": draw(st.booleans()),
        "pad_id": draw(st.none() | st.integers(0, vocab_size - 1)),
    }
    kind = draw(st.sampled_from(kinds))
    if kind is EncoderConfig:
        options["n_segments"] = draw(st.integers(0, 2))
        options["embedding_norm"] = draw(st.booleans())
    if kind is not EncoderConfig:
        options["head_bias"] = draw(st.booleans())
        options["sliding_window"] = draw(st.none() | st.integers(1, 3))
    if kind is EncoderDecoderConfig:
        options["n_encoder_layers"] = draw(st.none() | st.integers(1, 3))
        options["source_vocab_size"] = draw(st.none() | st.integers(vocab_size, 11))
    return kind, options


@given(configs())
def test_survives_json(drawn):
    kind, options = drawn
    config = kind(**options)
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


@settings(max_examples=60)
@given(configs())
def test_counts_its_parameters(drawn):
    kind, options = drawn
    config = kind(**options)
    with torch.device("meta"):
        model = build_model(config)
    assert parameter_count(config) == sum(p.numel() for p in model.parameters())


@given(configs(kinds=(DecoderConfig,)))
def test_any_decoder_is_causal_and_caches(drawn):
    kind, options = drawn
    config = kind(**options)
    torch.manual_seed(0)
    model = build_model(config).double().eval()
    tokens = torch.randint(0, config.vocab_size, (2, 4))
    with torch.no_grad():
        want = model(tokens)
        assert_close(model(tokens[:, :3]), want[:, :3], atol=1e-9, rtol=0)
        for static in (False, True):
            cache = model.new_cache(static=static, batch_size=2)
            got = [model(tokens[:, :2], cache=cache), model(tokens[:, 2:], cache=cache)]
            assert_close(torch.cat(got, dim=1), want, atol=1e-5, rtol=0)
