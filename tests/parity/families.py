"""Small random Hugging Face models, one or more of each family; nothing is downloaded."""

import pytest
import torch
from glassformer.interop import load_hugging_face

transformers = pytest.importorskip("transformers")

V, L, D, H, N, F = 29, 23, 30, 3, 2, 37
# "eager" is their plain implementation; no special tokens, so that nothing ends early
_COMMON = {"attn_implementation": "eager", "bos_token_id": None, "eos_token_id": None}
_SIZES = {
    "vocab_size": V,
    "max_position_embeddings": L,
    "hidden_size": D,
    "num_attention_heads": H,
    "num_hidden_layers": N,
    "intermediate_size": F,
    **_COMMON,
}
_BERT = {**_SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ROPE = {"rope_theta": 5e4, "rope_type": "default"}
_LLAMA = {**_SIZES, "num_key_value_heads": 1, "rope_parameters": _ROPE}
_T5 = {
    "vocab_size": V,
    "d_model": D,
    "d_kv": 7,
    "d_ff": F,
    "num_heads": H,
    "num_layers": N,
    "num_decoder_layers": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 11,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    **_COMMON,
}
_MARIAN = {
    "vocab_size": V,
    "decoder_vocab_size": V,
    "max_position_embeddings": L,
    "d_model": D,
    "encoder_layers": N,
    "decoder_layers": 3,
    "encoder_attention_heads": H,
    "decoder_attention_heads": H,
    "encoder_ffn_dim": F,
    "decoder_ffn_dim": F,
    "activation_function": "swish",
    "dropout": 0.0,
    "scale_embedding": True,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
    **_COMMON,
}
_GPT2 = {
    "vocab_size": V,
    "n_positions": L,
    "n_embd": D,
    "n_head": H,
    "n_layer": N,
    "n_inner": F,
    **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0),
    **_COMMON,
}

# name -> (their class, its config, what the config says)
MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _LLAMA),
    "llama-wide": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            **_LLAMA,
            "num_key_value_heads": H,
            "head_dim": 14,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _LLAMA),
    "phi3": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {**_LLAMA, "original_max_position_embeddings": L, "pad_token_id": 0, "sliding_window": 5},
    ),
    "bert": ("BertModel", "BertConfig", {**_BERT, "hidden_act": "gelu"}),
    "roberta": (
        "RobertaModel",
        "RobertaConfig",
        {**_BERT, "max_position_embeddings": L + 2, "type_vocab_size": 1, "pad_token_id": 1},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", _T5),
    "t5-v1.1": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "marian": ("MarianMTModel", "MarianConfig", _MARIAN),
}
DECODERS = ["gpt2", "llama", "llama-wide", "qwen2", "phi3"]
ENCODERS = ["bert", "roberta"]
TRANSLATORS = ["t5", "t5-v1.1", "marian"]


def family_of(name):
    return name.split("-")[0]


@torch.no_grad()
def oracle(name, **changes):
    """Their model: every weight is random, so that a norm or a bias left out is seen."""
    kind, config, settings = MODELS[name]
    config = getattr(transformers, config)(**{**settings, **changes})
    model = getattr(transformers, kind)(config).eval()
    if name == "t5-v1.1":  # since their version 5 it is untied by weights that differ
        model.lm_head.weight = torch.nn.Parameter(torch.randn(V, D) * 0.1)
    for parameter in model.parameters():
        if parameter.requires_grad:  # sinusoids are not
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if name == "marian":
        model.final_logits_bias.normal_()
    return model


def pair(name, folder, **changes):
    """Ours, read from the files that theirs wrote, and theirs."""
    torch.manual_seed(0)
    theirs = oracle(name, **changes)
    theirs.save_pretrained(folder)
    return load_hugging_face(folder), theirs
