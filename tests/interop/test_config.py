"""Configs of other libraries: every setting is understood or refused by name."""

import dataclasses

import pytest
from glassformer import EncoderConfig
from glassformer.errors import ConfigError
from glassformer.interop import config_from_hugging_face, config_to_hugging_face, weight_table
from interop.configs import BERT, OURS, SIZES


@pytest.mark.parametrize("family", OURS)
def test_there_and_back(family):
    data = config_to_hugging_face(OURS[family], family)
    back = config_from_hugging_face(data)
    # None and the size it stands for mean the same
    resolved = {"n_kv_heads": OURS[family].kv_heads, "head_size": OURS[family].d_head}
    for name, value in OURS[family].to_dict().items():
        assert getattr(back, name) in (value, resolved.get(name)), name


# key, value: what each family cannot have
UNSUPPORTED = {
    "gpt2": {
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
        "add_cross_attention": True,
        "activation_function": "mish",
        "pruned_heads": {"0": [1]},
    },
    "llama": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5},
        "hidden_act": "mish",
        "attention_dropout": 0.1,
        "attention_bias": True,
        "rope_interleaved": True,
        "partial_rotary_factor": 0.5,
        "quantization_config": {"bits": 4},
    },
    "qwen2": {
        "use_sliding_window": True,
        "use_mrope": True,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "phi3": {
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 7,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0]},
    },
    "bert": {
        "position_embedding_type": "relative_key",
        "is_decoder": True,
        "add_cross_attention": True,
        "hidden_act": "mish",
    },
    "roberta": {"pad_token_id": None, "position_embedding_type": "relative_key"},
    "t5": {"feed_forward_proj": "gated-mish", "is_encoder_decoder": False},
    "marian": {
        "scale_embedding": False,
        "normalize_before": True,
        "normalize_embedding": True,
        "add_final_layer_norm": True,
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 31,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 41,
        "encoder_layerdrop": 0.1,
        "activation_function": "mish",
    },
}


@pytest.mark.parametrize(
    ("family", "key"), [(family, key) for family, keys in UNSUPPORTED.items() for key in keys]
)
def test_a_setting_we_lack_is_refused_by_name(family, key):
    data = config_to_hugging_face(OURS[family], family)
    with pytest.raises(ConfigError, match="mlp_bias" if key == "attention_bias" else key):
        config_from_hugging_face({**data, key: UNSUPPORTED[family][key]})


@pytest.mark.parametrize("family", OURS)
def test_an_unknown_key_is_refused_by_name(family):
    data = config_to_hugging_face(OURS[family], family)
    with pytest.raises(ConfigError, match="'logit_softcap'"):
        config_from_hugging_face({**data, "logit_softcap": 30.0})


@pytest.mark.parametrize(
    ("family", "key"),
    [("gpt2", "n_embd"), ("llama", "hidden_size"), ("bert", "vocab_size"), ("t5", "d_kv")],
)
def test_a_missing_size_is_named(family, key):
    data = config_to_hugging_face(OURS[family], family)
    del data[key]
    with pytest.raises(ConfigError, match=f"lacks '{key}'"):
        config_from_hugging_face(data)


@pytest.mark.parametrize("name", [None, "mamba", ["llama"]])
def test_an_unknown_family_is_refused(name):
    with pytest.raises(ConfigError, match="model_type"):
        config_from_hugging_face({"model_type": name})


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("gpt2", OURS["llama"], "activation_function='swiglu' is not supported"),
        ("llama", OURS["gpt2"], "hidden_act='gelu_tanh' is not supported"),
        ("llama", dataclasses.replace(OURS["llama"], norm="layer"), "norm='layer' would become"),
        ("llama", OURS["qwen2"], "qkv_bias=True would become False"),
        ("qwen2", OURS["llama"], "head_size=14 would become 10"),
        ("phi3", OURS["qwen2"], "qkv_bias=True would become False"),
        ("bert", OURS["gpt2"], "EncoderConfig, not DecoderConfig"),
        ("t5", OURS["marian"], "positions='sinusoidal' would become 'relative'"),
        ("marian", OURS["t5"], "activation_function='geglu' is not supported"),
    ],
)
def test_a_config_that_a_family_cannot_have_is_refused(family, config, message):
    for refuse in (config_to_hugging_face, weight_table):
        with pytest.raises(ConfigError, match=message):
            refuse(config, family)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_bert_needs_segments(family):
    config = dataclasses.replace(OURS[family], n_segments=0)
    with pytest.raises(ConfigError, match="n_segments=0; give 1"):
        config_to_hugging_face(config, family)
    with pytest.raises(ConfigError, match="n_segments=0; give 1"):
        weight_table(config, family)


def test_roberta_needs_an_id_of_padding_to_count_from():
    config = EncoderConfig(**SIZES, **BERT, n_segments=1)
    for refuse in (config_to_hugging_face, weight_table):
        with pytest.raises(ConfigError, match="pad_id"):
            refuse(config, "roberta")


def test_old_and_new_spellings_of_rotary_positions_mean_the_same():
    data = config_to_hugging_face(OURS["llama"], "llama")
    assert data["rope_theta"] == 5e4
    del data["rope_theta"]
    new = {**data, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}
    assert config_from_hugging_face(new).rope_base == 5e4
    assert config_from_hugging_face({**data, "rope_scaling": None}).rope_base == 1e4


def test_keys_of_older_files_are_understood():
    """As the first public BERT, GPT-2, T5 and Marian files have them."""
    older = {
        "bert": {"attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False},
        "gpt2": {"n_ctx": 23, "task_specific_params": {}, "summary_type": "cls_index"},
        "t5": {"n_positions": 512, "output_past": True, "num_beams": 4},
        "marian": {"static_position_embeddings": True, "bad_words_ids": [[28]], "num_beams": 6},
    }
    for family, keys in older.items():
        data = config_to_hugging_face(OURS[family], family)
        assert config_from_hugging_face({**data, **keys}).kind == OURS[family].kind


def test_t5_is_tied_as_either_version_of_their_library_says():
    data = config_to_hugging_face(OURS["t5"], "t5")
    assert not config_from_hugging_face(data).tie_embeddings
    later = {**data, "tie_word_embeddings": True, "scale_decoder_outputs": False}
    assert not config_from_hugging_face(later).tie_embeddings
    assert config_from_hugging_face({**data, "tie_word_embeddings": True}).tie_embeddings
