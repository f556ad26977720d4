"""Save and load models and runs, so that no crash and no mix-up can cost more than a few steps.

A checkpoint is a folder. ``model.safetensors``, ``config.json`` and ``tokenizer.model`` are the
model as one uses it; ``training_state.pt`` is what a run needs to go on; ``record.json`` says how
the model came about and holds a hash of every other file. No file is ever unpickled freely.

Book: training
"""

import hashlib
import io
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer._files import (
    existing_folder,
    read_file,
    read_json,
    read_tensors,
    replace_folder,
    to_json,
    to_safetensors,
)
from glassformer.config import TransformerConfig, config_from_dict
from glassformer.data import Tokenizer
from glassformer.errors import CheckpointError, ConfigError, TokenizerError
from glassformer.models import Decoder, Encoder, EncoderDecoder, build_model
from glassformer.training._compact import compact, expand
from glassformer.training._ranks import rank, wait_for_all, whole
from glassformer.training._wrappers import plain_name, unwrap
from glassformer.training.averaging import mean_weights
from glassformer.training.loop import Trainer

__all__ = [
    "average_checkpoints",
    "load_checkpoint",
    "load_model",
    "load_tokenizer",
    "load_weights",
    "read_record",
    "save_checkpoint",
    "save_model",
]

MODEL, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.model"
STATE, RECORD = "training_state.pt", "record.json"
FILES = (MODEL, CONFIG, TOKENIZER, STATE, RECORD)


def save_model(
    folder: str | Path,
    model: nn.Module,
    tokenizer: Tokenizer | None = None,
    *,
    run: dict[str, Any] | None = None,
    small: bool = False,
) -> None:
    """Write a model, perhaps with its tokenizer, for :func:`load_model`.

    An earlier checkpoint in ``folder`` is replaced at the very end, in one move.

    Args:
        folder: made if it is missing.
        model: any model with a config, also one that is wrapped.
        tokenizer: saved along if given.
        run: more for the record, as JSON data, such as where its text came from.
        small: write every matrix as 8-bit codes, a quarter of the bytes, for a model that travels.
            It is loaded as float32 again, each weight off by at most 0.5 % of the largest one of
            its row.

    Raises:
        CheckpointError: the folder cannot be written, or holds files that are no checkpoint's, or
            the model has other weights than its config says, so that it could not be loaded.

    Book: training
    """
    record: dict[str, Any] = {} if run is None else {"run": run}
    weights = whole(unwrap(model).state_dict())
    _refuse_changed(unwrap(model), weights)
    if small:
        weights, record["small"] = compact(weights), True
    _save(folder, model, weights, tokenizer, {}, record)


def save_checkpoint(
    folder: str | Path,
    trainer: Trainer,
    tokenizer: Tokenizer | None = None,
    *,
    run: dict[str, Any] | None = None,
) -> None:
    """Write a run: the model one would use now, and all that is needed to go on.

    ``model.safetensors`` gets the weights with the lowest dev loss so far, or the current ones if
    there was no evaluation. An earlier checkpoint in ``folder`` is replaced at the very end, in
    one move: whenever the process dies, the old one or the new one is there, complete. With several
    processes all must call this; the first one writes, and none goes on before it is done.

    Args:
        folder: made if it is missing.
        trainer: between two steps.
        tokenizer: saved along if given.
        run: more for the record, as JSON data, such as where the text came from.

    Raises:
        CheckpointError: the folder cannot be written, or holds files that are no checkpoint's.

    Book: training
    """
    state = trainer.state_dict()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    record = {
        "step": trainer.step,
        "best_step": trainer.best.step,
        "best_dev_loss": trainer.best.loss if trainer.best.step is not None else None,
        "settings": state["settings"],
        "data": state["data"],
        "run": run or {},
    }
    weights = trainer.best.weights or state["model"]
    _save(folder, trainer.model, weights, tokenizer, {STATE: buffer.getvalue()}, record)


def load_checkpoint(folder: str | Path, trainer: Trainer) -> None:
    """Put ``trainer`` where the run in ``folder`` stopped; on the CPU it goes on bit for bit.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of another model, other settings or
            other data. The trainer is unchanged then.

    Book: training
    """
    data = _read(folder, STATE)
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{Path(folder) / STATE}: no training state ({error})") from error
    trainer.load_state_dict(state)


def load_model(
    folder: str | Path, *, device: str | torch.device = "cpu"
) -> Decoder | Encoder | EncoderDecoder:
    """Build the model saved in ``folder``, in evaluation mode, leaving random numbers alone.

    Raises:
        CheckpointError: no checkpoint, or a damaged one; the file is named.

    Book: training
    """
    config = _read_config(folder)
    tensors = read_tensors(Path(folder) / MODEL, _read(folder, MODEL))
    if read_record(folder).get("small"):
        tensors = expand(tensors)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config)
    load_weights(model, tensors)
    return model.to(device).eval()


def average_checkpoints(folders: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of the weights saved in several folders, for :func:`load_weights`.

    Raises:
        CheckpointError: no folders, damaged ones, or models of different configs.

    Source: Vaswani et al. 2017, section 6.1. Book: training
    """
    models = [load_model(folder) for folder in folders]
    if any(model.config != models[0].config for model in models):
        raise CheckpointError(
            f"the models in {', '.join(map(str, folders))} have different configs; average "
            "checkpoints of one run"
        )
    return mean_weights([model.state_dict() for model in models])


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer that was saved with a model.

    Raises:
        CheckpointError: no checkpoint, one without a tokenizer, or a damaged one.

    Book: training
    """
    data = _read(folder, TOKENIZER)
    try:
        return Tokenizer(data)
    except TokenizerError as error:
        raise CheckpointError(f"{Path(folder) / TOKENIZER}: {error}") from error


def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy tensors into a model by name; every name must fit, and every weight get its tensor.

    Prefixes of wrappers (``module.``, ``_orig_mod.``) are dropped from the names on both sides.

    Raises:
        CheckpointError: names that are unknown, missing or double, or shapes that differ, all of
            them named. The model is unchanged then.

    Book: training
    """
    given: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if plain_name(name) in given:
            raise CheckpointError(f"two tensors are both named {plain_name(name)!r}; remove one")
        given[plain_name(name)] = tensor
    wanted = {plain_name(name): tensor for name, tensor in model.state_dict().items()}
    problems = _name_problems(unwrap(model), given, wanted)
    problems += [
        f"{name} has shape {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    if problems:
        raise CheckpointError(
            f"these weights do not fit the model: {'; '.join(problems)}; load them into a model "
            "of the config they were saved with"
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])


def read_record(folder: str | Path) -> dict[str, Any]:
    """How the model came about: step, losses, settings, and what the caller added.

    Raises:
        CheckpointError: no checkpoint, or a damaged one.

    Book: training
    """
    path = existing_folder(folder) / RECORD
    try:
        record = json.loads(path.read_bytes())
        if not isinstance(record["files"], dict):
            raise TypeError("files")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: is missing or damaged, so this is no checkpoint; use another, or save again"
        ) from error
    return dict(record)


def _name_problems(
    model: nn.Module, given: dict[str, Tensor], wanted: dict[str, Tensor]
) -> list[str]:
    problems = [f"{name} is missing" for name in wanted if name not in given]
    tied = isinstance(model, Decoder | EncoderDecoder) and model.lm_head is None
    for name in given:
        if name == "lm_head.weight" and tied:
            problems.append(
                f"{name} is a second matrix beside embedding.tokens.weight, but the model ties the "
                "two (tie_embeddings=True)"
            )
        elif name not in wanted:
            problems.append(f"{name} is unknown")
    return problems


def _refuse_changed(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Refuse weights that :func:`load_model` could not put into a model of the same config."""
    config = getattr(model, "config", None)
    if not isinstance(config, TransformerConfig):
        return  # refused for that
    with torch.device("meta"):
        wanted = build_model(config).state_dict()
    shapes = {plain_name(name): tensor.shape for name, tensor in weights.items()}
    unfit = sorted(
        name
        for name in wanted.keys() | shapes.keys()
        if name not in wanted or shapes.get(name) != wanted[name].shape
    )
    if unfit:
        raise CheckpointError(
            f"this {type(model).__name__} has other weights than its config says "
            f"({len(unfit)} of them, such as {unfit[0]}), and could not be loaded again; save "
            "adapters with quantization.save_lora and codes with quantization.save_quantized, or "
            "merge the adapters first"
        )


def _save(
    folder: str | Path,
    model: nn.Module,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer | None,
    files: dict[str, bytes],
    record: dict[str, Any],
) -> None:
    config = getattr(unwrap(model), "config", None)
    if not isinstance(config, TransformerConfig):
        raise CheckpointError(f"{type(unwrap(model)).__name__} has no config to build it from")
    if rank() == 0:
        _write(folder, model, config, weights, tokenizer, files, record)
    wait_for_all()


def _write(
    folder: str | Path,
    model: nn.Module,
    config: TransformerConfig,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer | None,
    files: dict[str, bytes],
    record: dict[str, Any],
) -> None:
    files = {
        MODEL: to_safetensors({plain_name(name): tensor for name, tensor in weights.items()}),
        CONFIG: to_json(config.to_dict()),
        **({} if tokenizer is None else {TOKENIZER: tokenizer.to_bytes()}),
        **files,
    }
    record = {
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        **record,
        "files": {name: _hash(data) for name, data in files.items()},
    }
    replace_folder(folder, {**files, RECORD: to_json(record)}, known=FILES)


def _read(folder: str | Path, name: str) -> bytes:
    """The bytes of one file, checked against the record."""
    files = read_record(folder)["files"]
    path = existing_folder(folder) / name
    if name not in files:
        raise CheckpointError(
            f"{path}: was not saved in this checkpoint; it has {', '.join(files)}"
        )
    data = read_file(path)
    if _hash(data) != files[name]:
        raise CheckpointError(
            f"{path}: {len(data)} bytes that are not the ones saved; the file is cut short or "
            "changed; copy the whole folder again, or use an earlier checkpoint"
        )
    return data


def _read_config(folder: str | Path) -> TransformerConfig:
    path = Path(folder) / CONFIG
    data = read_json(path, _read(folder, CONFIG))
    try:
        return config_from_dict(data)
    except ConfigError as error:
        raise CheckpointError(f"{path}: no config of a model ({error})") from error


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
