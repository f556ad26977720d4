"""Quantised models and adapters as files.

Book: adaptation
"""

import copy
import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer._files import (
    existing_folder,
    read_file,
    read_tensors,
    replace_folder,
    to_json,
    to_safetensors,
)
from glassformer.config import TransformerConfig, config_from_dict
from glassformer.errors import CheckpointError, ConfigError, ShapeError
from glassformer.models import Decoder, Encoder, EncoderDecoder, build_model
from glassformer.quantization.linear import QuantizedLinear
from glassformer.quantization.lora import LoRALinear, adapters, add_lora, lora_state_dict
from glassformer.training import load_weights
from glassformer.training._wrappers import unwrap

__all__ = ["load_lora", "load_quantized", "save_lora", "save_quantized"]

M = TypeVar("M", bound=nn.Module)

MODEL, CONFIG, LAYERS = "model.safetensors", "config.json", "quantization.json"
ADAPTERS, SETTINGS = "adapters.safetensors", "adapters.json"


def save_quantized(folder: str | Path, model: nn.Module) -> None:
    """Write a quantised model, codes as codes, for :func:`load_quantized`.

    What an earlier call wrote into ``folder`` is replaced at the very end, in one move.

    Args:
        folder: made if it is missing.
        model: from ``quantize(…, backend="own")``, also wrapped. torchao keeps its tensors in forms
            of its own: save the model from before and quantise it again after loading.

    Raises:
        CheckpointError: a model that is not quantised, has no config or has adapters, or a folder
            that cannot be written or holds other files.

    Book: adaptation
    """
    model = unwrap(model)
    config = getattr(model, "config", None)
    layers = {
        name: {"scheme": module.scheme, "group_size": module.group_size}
        for name, module in model.named_modules()
        if isinstance(module, QuantizedLinear)
    }
    if not layers or not isinstance(config, TransformerConfig):
        raise CheckpointError(
            f"{type(model).__name__} has {len(layers)} quantised layers of this package and "
            f"{'a' if isinstance(config, TransformerConfig) else 'no'} config; save what "
            "quantize(…, backend='own') gives, and other models with training.save_model"
        )
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise CheckpointError(
            "this model has adapters; save them apart with save_lora, and here the quantised "
            "model from before add_lora"
        )
    files = {
        MODEL: to_safetensors(model.state_dict()),
        CONFIG: to_json(config.to_dict()),
        LAYERS: to_json(layers),
    }
    replace_folder(folder, files, known=files)


def load_quantized(
    folder: str | Path, *, device: str | torch.device = "cpu"
) -> Decoder | Encoder | EncoderDecoder:
    """The model that :func:`save_quantized` wrote, in evaluation mode.

    Raises:
        CheckpointError: no such folder, or files that are missing, damaged or do not fit together.

    Book: adaptation
    """
    config_data, layers = _read_json(folder, CONFIG), _read_json(folder, LAYERS)
    tensors = _read_tensors(folder, MODEL)
    with torch.random.fork_rng(devices=[]):
        try:
            model = build_model(config_from_dict(config_data))
            memo: dict[int, Any] = {}
            for name, kind in layers.items():
                layer = model.get_submodule(name)
                memo[id(layer)] = QuantizedLinear(layer, **kind)  # type: ignore[arg-type]
        except (AttributeError, ConfigError, ShapeError, TypeError) as error:
            raise CheckpointError(f"{folder}: no quantised model ({error})") from error
    quantized = copy.deepcopy(model, memo)
    load_weights(quantized, tensors)
    return quantized.to(device).eval()


def save_lora(folder: str | Path, model: nn.Module) -> None:
    """Write the adapters of a model, without the model, for :func:`load_lora`.

    What an earlier call wrote into ``folder`` is replaced at the very end, in one move.

    Raises:
        ConfigError: the model has no adapters.
        CheckpointError: the folder cannot be written, or holds other files.

    Book: adaptation
    """
    model = unwrap(model)
    layers = adapters(model)
    first = next(iter(layers.values()))
    settings = {
        "rank": first.rank,
        "alpha": first.alpha,
        "dropout": first.dropout.p,
        "targets": list(layers),
    }
    files = {
        ADAPTERS: to_safetensors(lora_state_dict(model)),
        SETTINGS: to_json(settings),
    }
    replace_folder(folder, files, known=files)


def load_lora(folder: str | Path, model: M) -> M:
    """``add_lora(model)`` with the adapters that :func:`save_lora` wrote.

    Args:
        folder: of the adapters.
        model: the one that they learnt on, plain or quantised; left untouched.

    Raises:
        CheckpointError: files that are missing or damaged, or adapters that do not fit the model.

    Book: adaptation
    """
    settings, tensors = _read_json(folder, SETTINGS), _read_tensors(folder, ADAPTERS)
    with torch.random.fork_rng(devices=[]):
        try:
            adapted = add_lora(model, **settings)
        except (ConfigError, TypeError) as error:
            raise CheckpointError(
                f"{folder}: these adapters do not fit the model: {error}"
            ) from error
    wanted = lora_state_dict(adapted)
    unfit = [
        name
        for name in sorted(wanted.keys() | tensors.keys())
        if name not in wanted or name not in tensors or wanted[name].shape != tensors[name].shape
    ]
    if unfit:
        raise CheckpointError(
            f"{folder}: these adapters do not fit the model: {', '.join(unfit[:3])} missing, "
            "unknown or of another shape; load them onto the model that they learnt on"
        )
    for name, tensor in wanted.items():
        tensor.copy_(tensors[name])
    return adapted


def _read_json(folder: str | Path, name: str) -> dict[str, Any]:
    try:
        data = json.loads(read_file(existing_folder(folder) / name))
        if not isinstance(data, dict):
            raise TypeError("it is no object with names")
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise CheckpointError(
            f"{Path(folder) / name}: no JSON of ours ({error}); copy the whole folder again"
        ) from error
    return data


def _read_tensors(folder: str | Path, name: str) -> dict[str, Tensor]:
    path = existing_folder(folder) / name
    return read_tensors(path, read_file(path))
