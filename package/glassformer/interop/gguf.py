"""LLaMA-type models in one GGUF file, as llama.cpp reads them: sizes, weights and tokenizer.

The weights are dequantised to plain numbers by the reference code of the format.

Book: evolution
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from glassformer.config import DecoderConfig
from glassformer.errors import CheckpointError, ConfigError, TokenizerError, optional
from glassformer.interop._tables import Link, Table, half_split, layers
from glassformer.interop._weights import model_with
from glassformer.models import Decoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["gguf_table", "load_gguf"]

_SIZES = {
    "vocab_size": "vocab_size",
    "context_length": "max_len",
    "embedding_length": "d_model",
    "feed_forward_length": "d_ff",
    "block_count": "n_layers",
    "attention.head_count": "n_heads",
    "attention.head_count_kv": "n_kv_heads",
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "rope.freq_base": "rope_base",
    "rope.dimension_count": "head_size",
}
_ORDINARY, _CONTROL, _USER_DEFINED = 1, 3, 4


def load_gguf(
    path: str | Path, *, dtype: torch.dtype = torch.float32
) -> "tuple[Decoder, Tokenizer]":
    """The model in a GGUF file, in evaluation mode, and its tokenizer.

    llama.cpp turns neighbouring pairs in its rotary positions, ours the two halves of a head:
    queries and keys are put into our order.

    Args:
        path: a ``.gguf`` file of architecture ``llama`` with a byte-level BPE tokenizer.
        dtype: of the model's weights.

    Raises:
        CheckpointError: no GGUF file, a damaged one, or other tensors than its sizes say.
        ConfigError: another architecture, or a setting that our models do not have.
        TokenizerError: another kind of tokenizer.

    Book: evolution
    """
    facts, tensors = _read(Path(path))
    config = _config(facts, tied="output.weight" not in tensors)
    model = model_with(config, gguf_table(config), tensors, dtype=dtype, source=str(path))
    return cast(Decoder, model), _tokenizer(facts)


def gguf_table(config: DecoderConfig) -> Table:
    """Names and layouts of a LLaMA's weights in a GGUF file. Book: evolution"""
    layer = [
        Link("self_attn_norm.weight", "attn_norm.weight"),
        Link("self_attn.q_proj.weight", "attn_q.weight", (half_split(config.n_heads),)),
        Link("self_attn.k_proj.weight", "attn_k.weight", (half_split(config.kv_heads),)),
        Link("self_attn.v_proj.weight", "attn_v.weight"),
        Link("self_attn.o_proj.weight", "attn_output.weight"),
        Link("feed_forward_norm.weight", "ffn_norm.weight"),
        *(
            Link(f"feed_forward.{name}_proj.weight", f"ffn_{name}.weight")
            for name in ("gate", "up", "down")
        ),
    ]
    head = [] if config.tie_embeddings else [Link("lm_head.weight", "output.weight")]
    return [
        Link("embedding.tokens.weight", "token_embd.weight"),
        *layers("decoder.blocks.{i}", "blk.{i}", config.n_layers, layer),
        Link("decoder.norm.weight", "output_norm.weight"),
        *head,
    ]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with optional("GGUF files need gguf", '"glassformer[interop]"', CheckpointError):
        import gguf
    try:
        reader = gguf.GGUFReader(path)
        facts = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {
            tensor.name: torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
            for tensor in reader.tensors
        }
    except (OSError, ValueError, IndexError, KeyError, NotImplementedError) as error:
        raise CheckpointError(f"{path}: no readable GGUF file ({error}); copy it again") from error
    return facts, tensors


def _config(facts: dict[str, Any], *, tied: bool) -> DecoderConfig:
    architecture = facts.get("general.architecture")
    if architecture != "llama":
        raise ConfigError(f"general.architecture={architecture!r} is not supported, only 'llama'")
    fields: dict[str, Any] = {"vocab_size": len(facts.get("tokenizer.ggml.tokens", []))}
    for key, value in facts.items():
        name = key.removeprefix("llama.")
        if name in _SIZES:
            fields[_SIZES[name]] = value
        elif name != key:
            raise ConfigError(f"{key}={value!r} is not supported; choose a plain LLaMA")
    missing = sorted(
        set(_SIZES.values()) - fields.keys() - {"rope_base", "n_kv_heads", "head_size"}
    )
    if missing:
        raise ConfigError(f"the file does not say {', '.join(missing)}; convert the model again")
    return DecoderConfig(**fields, activation="swiglu", norm="rms", bias=False, tie_embeddings=tied)


def _tokenizer(facts: dict[str, Any]) -> "Tokenizer":
    """The byte-level BPE that the file describes: GPT-2's, with every digit on its own."""
    with optional("this tokenizer needs tokenizers", '"glassformer[interop]"', TokenizerError):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    given = {name: facts.get(f"tokenizer.ggml.{name}") for name in ("model", "pre")}
    if given != {"model": "gpt2", "pre": "smollm"} or facts.get("tokenizer.ggml.add_bos_token"):
        raise TokenizerError(
            f"a tokenizer of kind {given} is not supported, only model='gpt2' with pre='smollm' "
            "and no added bos"
        )
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    if set(kinds) - {_ORDINARY, _CONTROL, _USER_DEFINED}:
        raise TokenizerError(f"token types {sorted(set(kinds))} are not supported, only 1, 3, 4")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind != _ORDINARY:
            added = AddedToken(token, special=kind == _CONTROL, normalized=False)
            (tokenizer.add_special_tokens if kind == _CONTROL else tokenizer.add_tokens)([added])
    return tokenizer
