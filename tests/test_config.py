"""Configs: frozen, checked, plain data, with errors that say what to do."""

import dataclasses
import json

import pytest
from glassformer import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    TransformerConfig,
    build_model,
    config_from_dict,
)
from glassformer.config import gpt2_small, llama_7b, transformer_base
from glassformer.errors import ConfigError, GlassformerError

SIZES = {"vocab_size": 29, "max_len": 23, "d_model": 30, "n_heads": 3, "n_layers": 2}
KINDS = [DecoderConfig, EncoderConfig, EncoderDecoderConfig]


@pytest.mark.parametrize("kind", KINDS)
class TestRoundTrip:
    def test_through_json(self, kind):
        config = kind(**SIZES, activation="swiglu", pad_id=0, dropout=0.1, tie_embeddings=False)
        data = json.loads(json.dumps(config.to_dict()))
        assert data["kind"] == kind.kind
        assert config_from_dict(data) == config
        assert kind.from_dict(data) == config
        assert type(config_from_dict(data)) is kind

    def test_data_stays_as_it_was(self, kind):
        data = kind(**SIZES).to_dict()
        before = dict(data)
        kind.from_dict(data)
        assert data == before

    def test_unknown_key_suggests_the_right_one(self, kind):
        data = kind(**SIZES).to_dict() | {"n_head": 3}
        with pytest.raises(ConfigError, match=r"unknown config key 'n_head'; did you mean n_heads"):
            config_from_dict(data)

    def test_unknown_key_without_a_neighbour_lists_all(self, kind):
        data = kind(**SIZES).to_dict() | {"zzz": 3}
        with pytest.raises(ConfigError, match=r"'zzz'; it may be vocab_size, max_len, d_model"):
            config_from_dict(data)

    def test_missing_keys_are_named(self, kind):
        data = kind(**SIZES).to_dict()
        del data["d_model"], data["n_layers"]
        with pytest.raises(ConfigError, match=f"a {kind.kind} config lacks d_model, n_layers"):
            config_from_dict(data)


def test_kind_of_another_class():
    with pytest.raises(ConfigError, match="config of kind 'decoder', not 'encoder'"):
        EncoderConfig.from_dict(DecoderConfig(**SIZES).to_dict())


@pytest.mark.parametrize("kind", [None, "transformer"])
def test_unknown_kind(kind):
    message = f"config kind {kind!r} is not one of decoder, encoder, encoder_decoder"
    with pytest.raises(ConfigError, match=message):
        config_from_dict({**SIZES, "kind": kind})


def test_the_base_describes_no_model():
    with pytest.raises(ConfigError, match="TransformerConfig describes no model; use Encoder"):
        build_model(TransformerConfig(**SIZES))


def test_frozen_and_keyword_only():
    config = DecoderConfig(**SIZES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 60
    with pytest.raises(TypeError):
        DecoderConfig(29, 23, 30, 3, 2)
    assert hash(config) == hash(DecoderConfig(**SIZES))


def test_derived_sizes():
    config = DecoderConfig(**{**SIZES, "n_heads": 15}, n_kv_heads=5)
    assert (config.d_head, config.kv_heads, config.ff_size) == (2, 5, 120)
    assert DecoderConfig(**SIZES).kv_heads == 3
    assert DecoderConfig(**SIZES, d_ff=37).ff_size == 37
    assert DecoderConfig(**{**SIZES, "n_heads": 7}, head_size=6).d_head == 6
    assert EncoderDecoderConfig(**SIZES).encoder_layers == 2
    assert EncoderDecoderConfig(**SIZES, n_encoder_layers=5).encoder_layers == 5


def test_replace_checks_again():
    config = DecoderConfig(**SIZES)
    assert dataclasses.replace(config, n_layers=7).n_layers == 7
    with pytest.raises(ConfigError, match="n_heads=4"):
        dataclasses.replace(config, n_heads=4)


def size_errors():
    optional = ("n_kv_heads", "head_size", "d_ff", "sliding_window", "n_experts")
    for name in (*SIZES, *optional, "relative_buckets", "experts_per_token"):
        for value in (0, -3, 2.0, True, "5"):
            yield pytest.param(DecoderConfig, {name: value}, f"{name}={value!r} must be a whole")
    for name in SIZES:
        yield pytest.param(DecoderConfig, {name: None}, f"{name}=None must be a whole number")
    for name in ("source_vocab_size", "n_encoder_layers"):
        yield pytest.param(EncoderDecoderConfig, {name: 0}, f"{name}=0 must be a whole number")
    for value in (-1, 2.0, None, True):
        yield pytest.param(EncoderConfig, {"n_segments": value}, f"n_segments={value!r} must be")


ERRORS = [
    *size_errors(),
    (DecoderConfig, {"n_heads": 6, "d_model": 512}, "must divide d_model=512; try n_heads=4 or 8"),
    (DecoderConfig, {"n_heads": 31}, "n_heads=31 must divide d_model=30; try n_heads=15 or 30"),
    (DecoderConfig, {"n_kv_heads": 2}, "n_kv_heads=2 must divide n_heads=3; it may be 1, 3"),
    (DecoderConfig, {"n_kv_heads": 6}, "n_kv_heads=6 must divide n_heads=3; it may be 1, 3"),
    (DecoderConfig, {"activation": "gelu_tan"}, "'gelu_tan' is unknown; did you mean gelu_tanh"),
    (DecoderConfig, {"norm": "batch"}, "norm='batch' is unknown; it may be layer, rms"),
    (DecoderConfig, {"norm_position": "prenorm"}, "norm_position='prenorm' is unknown; did you me"),
    (DecoderConfig, {"positions": "absolute"}, "positions='absolute' is unknown; it may be sinus"),
    (DecoderConfig, {"dropout": 1.0}, "dropout=1.0 is a probability; give 0 <= dropout < 1"),
    (DecoderConfig, {"dropout": -0.1}, "dropout=-0.1 is a prob"),
    (DecoderConfig, {"dropout": float("nan")}, "dropout=nan is a prob"),
    *(
        (DecoderConfig, {name: value}, f"{name}={value!r} must be a number")
        for name in ("dropout", "layer_drop", "norm_eps", "rope_base", "expert_capacity")
        for value in ("1", True, None)
        if (name, value) != ("expert_capacity", None)
    ),
    (DecoderConfig, {"layer_drop": 1.0}, "layer_drop=1.0 is a probability; give 0 <= layer_drop"),
    (DecoderConfig, {"qkv_bias": 1}, "qkv_bias=1 must be True or False"),
    (DecoderConfig, {"head_bias": None}, "head_bias=None must be True or False"),
    (EncoderConfig, {"head_bias": True}, "head_bias=True asks for logits, and an encoder has none"),
    (EncoderConfig, {"sliding_window": 3}, "sliding_window=3 looks back only, and an encoder's"),
    (DecoderConfig, {"head_size": 7}, "d_head must be even, but d_model=30 with n_heads=3 gives"),
    (DecoderConfig, {"relative_buckets": 5}, "relative_buckets=5 must be even and at least 4"),
    (DecoderConfig, {"relative_buckets": 2}, "relative_buckets=2 must be even and at least 4"),
    (DecoderConfig, {"relative_max_distance": 16}, "relative_max_distance=16 above half of it"),
    (DecoderConfig, {"n_experts": 3, "experts_per_token": 5}, "cannot exceed n_experts=3"),
    (DecoderConfig, {"n_experts": 3, "expert_capacity": 0.0}, "expert_capacity=0.0 must be posit"),
    (DecoderConfig, {"n_experts": 3, "expert_capacity": float("inf")}, "positive and finite"),
    (DecoderConfig, {"norm_eps": 0.0}, "norm_eps=0.0 must be positive"),
    (DecoderConfig, {"norm_eps": float("nan")}, "norm_eps=nan must be positive"),
    (DecoderConfig, {"rope_base": -1.0}, "rope_base=-1.0 must be positive"),
    (
        DecoderConfig,
        {"pad_id": -1},
        "pad_id=-1 is no id of a vocabulary of 29; give an id",
    ),
    (DecoderConfig, {"pad_id": 29}, "pad_id=29 is no id of a vocabulary of 29"),
    (DecoderConfig, {"pad_id": 1.5}, "pad_id=1.5 is no id"),
    (
        EncoderDecoderConfig,
        {"pad_id": 20, "source_vocab_size": 19},
        "pad_id=20 is no id of a vocabulary of 19",
    ),
    (DecoderConfig, {"bias": "no"}, "bias='no' must be True or False"),
    (DecoderConfig, {"tie_embeddings": None}, "tie_embeddings=None must be True or False"),
    (EncoderConfig, {"embedding_norm": 1}, "embedding_norm=1 must be True or False"),
    (DecoderConfig, {"n_heads": 2}, "d_head must be even, but d_model=30 with n_heads=2 gives d_h"),
    (
        DecoderConfig,
        {"d_model": 33, "positions": "sinusoidal"},
        "positions='sinusoidal' fills pairs of numbers, so d_model=33 must be even",
    ),
]


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(("kind", "changes", "message"), ERRORS)
def test_what_cannot_work_says_why(kind, changes, message):
    with pytest.raises(ConfigError) as caught:
        kind(**{**SIZES, **changes})
    assert message in str(caught.value)
    assert isinstance(caught.value, GlassformerError)
    assert isinstance(caught.value, ValueError)


def test_odd_sizes_that_no_position_minds():
    assert DecoderConfig(**{**SIZES, "n_heads": 2}, positions="learned").d_head == 15
    assert DecoderConfig(**{**SIZES, "d_model": 33, "positions": "none"}).d_model == 33


def test_presets():
    assert gpt2_small().d_head == 64
    assert llama_7b().d_head == 128
    paper = transformer_base()
    assert (paper.d_model, paper.n_heads, paper.ff_size, paper.n_layers) == (512, 8, 2048, 6)
    assert transformer_base(97).vocab_size == 97
    for preset in (gpt2_small(), llama_7b(), paper):
        assert config_from_dict(preset.to_dict()) == preset
