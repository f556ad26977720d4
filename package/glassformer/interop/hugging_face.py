"""Hugging Face models: their configs and their weights, in both directions.

A folder holds ``config.json`` and safetensors files, in one piece or in shards. Nothing is ever
unpickled, nothing is downloaded, and their library is not needed.

Book: evolution
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from glassformer._files import replace_folder, to_json, to_safetensors
from glassformer.config import TransformerConfig
from glassformer.errors import CheckpointError, ConfigError
from glassformer.interop._bert import BERT, ROBERTA
from glassformer.interop._family import Family
from glassformer.interop._files import CONFIG, WEIGHTS, read_json, read_tensors
from glassformer.interop._gpt2 import GPT2
from glassformer.interop._llama import LLAMA, PHI3, QWEN2
from glassformer.interop._marian import MARIAN
from glassformer.interop._settings import HARMLESS, Settings
from glassformer.interop._t5 import T5
from glassformer.interop._tables import Table, to_theirs
from glassformer.interop._weights import known_names, model_with, skeleton
from glassformer.models import Decoder, Encoder, EncoderDecoder
from glassformer.training._wrappers import unwrap

__all__ = [
    "FamilyName",
    "config_from_hugging_face",
    "config_to_hugging_face",
    "load_hugging_face",
    "save_hugging_face",
    "weight_table",
]

FamilyName = Literal["bert", "gpt2", "llama", "marian", "phi3", "qwen2", "roberta", "t5"]
_FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "marian": MARIAN,
    "phi3": PHI3,
    "qwen2": QWEN2,
    "roberta": ROBERTA,
    "t5": T5,
}
# what acts in training only, or on the gradient of one row only
_NOT_COMPARED = ("dropout", "layer_drop", "pad_id")


def config_from_hugging_face(data: Mapping[str, Any]) -> TransformerConfig:
    """Our config for the content of a ``config.json``.

    ``model_type`` names the family. Their rates of dropout, one per place, become our one: that of
    the sublayers' output. T5 knows no longest sequence: ``max_len`` is its ``n_positions``, or 512.

    Raises:
        ConfigError: another family, a setting that our models do not have, or an unknown key. The
            key is named.

    Book: evolution
    """
    family = _family(data.get("model_type"))
    settings = Settings(data)
    config = family.read(settings)
    settings.done(family.harmless)
    return config


def config_to_hugging_face(config: TransformerConfig, family: FamilyName) -> dict[str, Any]:
    """The ``config.json`` of a model of ours, for their class of that family.

    Raises:
        ConfigError: the family cannot express the config; every field that differs is named.

    Book: evolution
    """
    known = _family(family)
    if not isinstance(config, known.config):
        raise ConfigError(
            f"{family} models go with {known.config.__name__}, not {type(config).__name__}"
        )
    data = {
        "model_type": family,
        "architectures": [known.architecture],
        **known.write(config),
    }
    back, wanted = _resolved(config_from_hugging_face(data)), _resolved(config)
    problems = [
        f"{name}={value!r} would become {back.get(name)!r}"
        for name, value in wanted.items()
        if name not in _NOT_COMPARED and back.get(name) != value
    ]
    if problems:
        raise ConfigError(f"no {family} model has this config: {'; '.join(problems)}")
    return data


def weight_table(config: TransformerConfig, family: FamilyName) -> Table:
    """The table between our weights and those of a family, for models of ``config``.

    Raises:
        ConfigError: an unknown family, or a config that it cannot express.

    Book: evolution
    """
    config_to_hugging_face(config, family)
    return _family(family).table(config)


def load_hugging_face(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> Decoder | Encoder | EncoderDecoder:
    """Our model with their weights, in evaluation mode.

    Every tensor is accounted for: a name that is missing, unknown, of another shape, or a copy
    that should equal another tensor and does not, is an error. Passed over are only buffers that
    are computed anyway (masks, position ids, sinusoids, rotary frequencies), BERT's pooler and the
    heads of its pretraining. The row of padding is what the file says, zeros or not.

    Args:
        folder: with ``config.json`` and ``model.safetensors``, or shards and their index.
        dtype: of the model, whatever the files hold.
        device: where the model goes.

    Raises:
        CheckpointError: a file is missing or damaged, or its tensors are not those of the config.
        ConfigError: as :func:`config_from_hugging_face`.

    Book: evolution
    """
    data = read_json(Path(folder) / CONFIG)
    config = config_from_hugging_face(data)
    family = _family(data["model_type"])
    given = known_names(read_tensors(Path(folder)), family, config)
    model = model_with(config, family.table(config), given, dtype=dtype, source=str(folder))
    return model.to(device)


def save_hugging_face(
    folder: str | Path,
    model: nn.Module,
    *,
    family: FamilyName,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a model so that their library loads it and computes the same.

    Earlier files of a model in ``folder`` are replaced at the very end, in one move.

    Args:
        folder: made if it is missing.
        model: of ours, of a config that the family can express.
        family: which of their classes shall load it.
        extra: keys for ``config.json`` that change nothing in the model, such as ``eos_token_id``.

    Raises:
        ConfigError: the family cannot express the config, or ``extra`` would change the model.
        CheckpointError: the model has other weights than its config says, or ``folder`` cannot be
            written or holds other files.

    Book: evolution
    """
    plain = unwrap(model)
    if not isinstance(plain, Decoder | Encoder | EncoderDecoder):
        raise CheckpointError(f"{type(plain).__name__} is none of our models; give one of them")
    data = config_to_hugging_face(plain.config, family)
    harmless = HARMLESS | _family(family).harmless
    for key in extra or {}:
        if key not in harmless:
            raise ConfigError(f"extra key {key!r} may change the model; extra is for harmless keys")
    weights = plain.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != {name: tuple(t.shape) for name, t in skeleton(plain.config).state_dict().items()}:
        raise CheckpointError(
            "the weights are not those of the model's config (parts were added or removed); "
            "merge or undo what changed them, then save again"
        )
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    tensors = to_theirs(weights, _family(family).table(plain.config))
    files = {
        CONFIG: to_json({**data, "dtype": dtype, **(extra or {})}),
        WEIGHTS: to_safetensors(tensors, {"format": "pt"}),
    }
    replace_folder(folder, files, known=tuple(files))


def _family(name: Any) -> Family:
    if name not in get_args(FamilyName):
        known = ", ".join(get_args(FamilyName))
        raise ConfigError(f"model_type={name!r} is no family we know; it may be {known}")
    return _FAMILIES[name]


def _resolved(config: TransformerConfig) -> dict[str, Any]:
    """The fields of a config, with the meaning of every ``None`` written out."""
    fields = {
        **config.to_dict(),
        "n_kv_heads": config.kv_heads,
        "head_size": config.d_head,
        "d_ff": config.ff_size,
        "qkv_bias": config.bias if config.qkv_bias is None else config.qkv_bias,
        "dropped_layers": (),  # says what the model was; n_layers says what it is
    }
    if "n_encoder_layers" in fields:
        fields["n_encoder_layers"] = fields["n_encoder_layers"] or config.n_layers
    return fields
