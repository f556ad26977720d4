"""The command that tells what a model is and costs.

Book: training
"""

import importlib.metadata
import platform
from typing import Any, get_args

import torch

from glassformer.cli.app import ConfigFile, JsonOutput, MaybeModel, app
from glassformer.cli.folders import load_any
from glassformer.cli.terminal import clean_errors, print_json, print_rows
from glassformer.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    TransformerConfig,
)
from glassformer.costs import forward_flops, kv_cache_bytes, parameter_count
from glassformer.devices import pick_device
from glassformer.training import Recipe, read_record
from glassformer.training.recipe import PresetName

__all__ = ["info"]


@app.command()
@clean_errors
def info(
    model: MaybeModel = None,
    json: JsonOutput = False,
    config: ConfigFile = None,
) -> None:
    """Show versions and the machine, and what a model costs.

    Without `--model` the presets of `glassformer train` are shown. For example:

        glassformer info --model runs/decoder --json
    """
    machine = {
        "glassformer": importlib.metadata.version("glassformer"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(pick_device()),
        "threads": torch.get_num_threads(),
    }
    recipes = {preset: Recipe(preset=preset) for preset in get_args(PresetName)}
    configs: dict[str, TransformerConfig]
    if model is None:
        configs = {f"preset {name}": r.config(r.vocab_size) for name, r in recipes.items()}
    else:
        configs = {"model": load_any(model, "cpu").config}
    run = {} if model is None else _run(read_record(model))
    if json:
        costs = {name: _costs(sizes) for name, sizes in configs.items()}
        print_json({**machine, **costs, **run})
        return
    print_rows({name: str(value) for name, value in machine.items()})
    for name, sizes in configs.items():
        print_rows(_cost_rows(name, sizes))
    print_rows(_run_rows(run))


def _costs(config: TransformerConfig) -> dict[str, Any]:
    """What a model costs, by its config alone."""
    costs: dict[str, Any] = {"config": config.to_dict(), "parameters": parameter_count(config)}
    if isinstance(config, DecoderConfig | EncoderConfig):
        costs["flops_per_token"] = forward_flops(config, 1, config.max_len) // config.max_len
    if not isinstance(config, EncoderConfig):
        costs["cache_bytes_per_token"] = kv_cache_bytes(config, 1, 1)
    return costs


def _cost_rows(name: str, config: TransformerConfig) -> dict[str, str]:
    costs = _costs(config)
    layers = f"{config.n_layers} layers"
    if isinstance(config, EncoderDecoderConfig):
        layers = f"{config.encoder_layers} + {config.n_layers} layers"
    rows = {
        name: f"{costs['parameters']:,} parameters: {layers}, width {config.d_model}, "
        f"{config.n_heads} heads, vocabulary {config.vocab_size}, length {config.max_len}"
    }
    if "flops_per_token" in costs:
        rows["  FLOPs per token"] = f"{costs['flops_per_token']:,} forward, mean over a full window"
    if "cache_bytes_per_token" in costs:
        rows["  cache per token"] = f"{costs['cache_bytes_per_token']:,} bytes"
    return rows


def _run(record: dict[str, Any]) -> dict[str, Any]:
    """How far the training of a folder got; nothing for a model that was only saved."""
    if "step" not in record:
        return {}
    return {
        "step": record["step"],
        "steps": record["settings"]["steps"],
        "best_step": record["best_step"],
        "best_dev_loss": record["best_dev_loss"],
    }


def _run_rows(run: dict[str, Any]) -> dict[str, str]:
    rows = {"trained": f"{run['step']} of {run['steps']} steps"} if run else {}
    if run.get("best_step") is not None:
        rows["dev loss"] = f"{run['best_dev_loss']:.4f} at step {run['best_step']}"
    return rows
