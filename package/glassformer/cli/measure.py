"""The commands that measure: evaluate and info.

Book: training
"""

import importlib.metadata
import platform
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import typer

from glassformer.cli.app import ConfigFile, DeviceName, JsonOutput, ModelFolder, app
from glassformer.cli.folders import load_any, load_decoder
from glassformer.cli.run import read_corpus
from glassformer.cli.terminal import clean_errors, print_json, print_rows
from glassformer.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    TransformerConfig,
)
from glassformer.costs import forward_flops, kv_cache_bytes, parameter_count
from glassformer.devices import pick_device
from glassformer.errors import ConfigError
from glassformer.evaluation import evaluate_nll
from glassformer.training import Recipe, read_record
from glassformer.training.recipe import PresetName

__all__ = ["evaluate", "info"]


OtherTextFile = Annotated[
    Path | None, typer.Option(help="A UTF-8 text. Default: the one the model was trained on.")
]


@app.command()
@clean_errors
def evaluate(
    model: ModelFolder,
    text: OtherTextFile = None,
    split: Annotated[Literal["dev", "test"], typer.Option(help="Part of the text.")] = "dev",
    window: Annotated[int | None, typer.Option(help="Default: what the model can see.")] = None,
    stride: Annotated[int | None, typer.Option(help="Window step; default: window.")] = None,
    device: DeviceName = "auto",
    json: JsonOutput = False,
    config: ConfigFile = None,
) -> None:
    """Measure how well a model predicts a text, every token once.

    Perplexities of different tokenizers are not comparable; bits per character are. A stride
    below the window gives each token more to go by, and takes longer. For example:

        glassformer evaluate --model runs/decoder --split test --stride 32

        glassformer evaluate --model runs/decoder --text letters.txt --json
    """
    decoder, tokenizer = load_decoder(model, device)
    source = read_record(model).get("run", {}).get("text") if text is None else str(text)
    longest = decoder.config.max_len
    window = longest if window is None else window
    if not 1 <= window <= longest:
        raise ConfigError(f"--window {window} must be from 1 to {longest}, all this model can see")
    lines = getattr(read_corpus(Recipe(text=source), saved=text is None), split)
    score = evaluate_nll(
        decoder,
        tokenizer.encode_stream(lines),
        window=window,
        stride=stride,
        n_chars=sum(len(line) + 1 for line in lines),
    )
    name = source or "King James Bible"
    if json:
        print_json(
            {
                "text": name,
                "split": split,
                "tokens": score.n_tokens,
                "nats_per_token": score.nll,
                "perplexity": score.perplexity,
                "bits_per_character": score.bits_per_character,
            }
        )
        return
    print_rows(
        {
            "text": f"{name}, {split}",
            "tokens": f"{score.n_tokens:,}",
            "nats per token": f"{score.nll:.4f}",
            "perplexity": f"{score.perplexity:.2f}",
            "bits per character": f"{score.bits_per_character:.4f}",
        }
    )


@app.command()
@clean_errors
def info(
    model: Annotated[Path | None, typer.Option(help="Folder of a model.")] = None,
    json: JsonOutput = False,
    config: ConfigFile = None,
) -> None:
    """Show versions and the machine, and what a model costs.

    Without --model the presets of `glassformer train` are shown. For example:

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
