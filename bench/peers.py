"""Other libraries' models with the weights of ours."""

import copy
import importlib.util
import logging
import tempfile
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from glassformer import Decoder, DecoderConfig, EncoderDecoder, EncoderDecoderConfig, build_model
from glassformer.interop import mask_to_torch, save_hugging_face, transformer_to_torch
from torch import Tensor, nn

GPT2 = {"positions": "learned", "activation": "gelu_tanh"}
LLAMA = {"norm": "rms", "activation": "swiglu", "bias": False}
PAPER = {
    "positions": "sinusoidal",
    "norm_position": "post",
    "activation": "relu",
    "pad_id": 0,
    "head_bias": True,
}

SIZES: dict[str, dict[str, int]] = {
    "toy": {"vocab_size": 211, "max_len": 97, "d_model": 32, "n_heads": 4, "n_layers": 2},
    "full": {"vocab_size": 8000, "max_len": 1024, "d_model": 256, "n_heads": 4, "n_layers": 6},
}


def language_model(size: str, family: str) -> Decoder:
    """Ours, with GPT-2's or LLaMA's choices; the parameter counts are nearly equal."""
    torch.manual_seed(0)
    sizes = SIZES[size]
    choices = GPT2 if family == "gpt2" else {**LLAMA, "d_ff": sizes["d_model"] * 8 // 3}
    return build_model(DecoderConfig(**sizes, **choices))


def translator(size: str) -> EncoderDecoder:
    """Ours, the model of Vaswani et al. 2017 at half the depth of the language models."""
    torch.manual_seed(0)
    sizes = {**SIZES[size], "n_layers": SIZES[size]["n_layers"] // 2}
    return build_model(EncoderDecoderConfig(**sizes, **PAPER))


def hugging_face(model: Decoder | EncoderDecoder, family: str) -> Any:
    """Their model, or None where their library is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        logging.getLogger("transformers").setLevel(logging.ERROR)
        transformers.utils.logging.disable_progress_bar()
        names = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "marian": "MarianMTModel"}
        with tempfile.TemporaryDirectory() as folder:
            save_hugging_face(folder, model, family=family)
            theirs = getattr(transformers, names[family]).from_pretrained(folder)
    settings = theirs.generation_config
    settings.eos_token_id = settings.forced_eos_token_id = settings.bad_words_ids = None
    settings.pad_token_id = 0
    return theirs.float()


class TorchTransformer(nn.Module):
    """``nn.Transformer`` between an embedding and an output layer like ours."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.embedding = copy.deepcopy(model.embedding)
        self.head_bias = copy.deepcopy(model.head_bias)
        self.layers = transformer_to_torch(model.encoder, model.decoder)

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor) -> Tensor:
        places = torch.arange(max(source.shape[1], target.shape[1]))
        hidden = mask_to_torch(source_mask)
        length = target.shape[1]
        decoded = self.layers(
            self.embedding(source, places[: source.shape[1]]),
            self.embedding(target, places[:length]),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length) < 0,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return F.linear(decoded, self.embedding.tokens.weight, self.head_bias)
