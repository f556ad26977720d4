"""The command ``glassformer``: train, generate, evaluate, info.

Book: training
"""

import importlib.metadata
import platform
import secrets
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
import typer

from glassformer.cli.run import read_corpus, refuse_used, run_training, saved_recipe
from glassformer.cli.terminal import clean_errors, print_rows
from glassformer.config import DecoderConfig
from glassformer.costs import forward_flops, kv_cache_bytes, parameter_count
from glassformer.data import Tokenizer
from glassformer.devices import pick_device
from glassformer.errors import CheckpointError, ConfigError
from glassformer.evaluation import evaluate_nll
from glassformer.generation import sampler, stream
from glassformer.models import Decoder
from glassformer.training import Recipe, load_model, load_tokenizer, read_record
from glassformer.training.recipe import PresetName
from glassformer.training.step import Precision

__all__ = ["app"]

app = typer.Typer(
    name="glassformer",
    help="Train a small Transformer on text, let it write, and measure it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


TextFile = Annotated[
    Path | None, typer.Option(help="A UTF-8 text, one sentence a line. Default: King James Bible.")
]
OtherTextFile = Annotated[
    Path | None, typer.Option(help="A UTF-8 text. Default: the one the model was trained on.")
]
ModelFolder = Annotated[Path, typer.Option(help="Folder that `glassformer train` wrote.")]
DeviceName = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]


@app.command()
@clean_errors
def train(
    context: typer.Context,
    text: TextFile = None,
    out: Annotated[Path, typer.Option(help="New folder for the model.")] = Path("runs/decoder"),
    resume: Annotated[Path | None, typer.Option(help="Folder of a run to continue.")] = None,
    preset: Annotated[PresetName, typer.Option(help="Size of the model.")] = "small",
    vocab_size: Annotated[int, typer.Option(help="Pieces of the tokenizer.")] = 2048,
    length: Annotated[int, typer.Option(help="Tokens the model can see.")] = 128,
    stride: Annotated[int | None, typer.Option(help="Window step; default: length.")] = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1000,
    batch_size: Annotated[int, typer.Option(help="Windows per micro-batch.")] = 16,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per step.")] = 1,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: by size.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Default: a twentieth of the steps.")] = None,
    dropout: Annotated[float, typer.Option(help="Share of values dropped in training.")] = 0.0,
    precision: Annotated[Precision, typer.Option(help="Of the matrix products.")] = "float32",
    checkpoint_blocks: Annotated[
        bool, typer.Option("--checkpoint-blocks", help="Less memory, more time.")
    ] = False,
    eval_every: Annotated[int | None, typer.Option(help="Default: a tenth of the steps.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Default: as eval-every.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, dropout and order.")] = 0,
    device: DeviceName = "auto",
) -> None:
    """Train a tokenizer and a decoder on a text.

    Ctrl-C finishes the step, saves, and prints the command that goes on bit for bit.
    """
    recipe = Recipe(
        text=None if text is None else str(text.resolve()),
        preset=preset,
        vocab_size=vocab_size,
        length=length,
        stride=stride,
        steps=steps,
        batch_size=batch_size,
        accumulate=accumulate,
        lr=lr,
        warmup=warmup,
        dropout=dropout,
        precision=precision,
        checkpoint_blocks=checkpoint_blocks,
        eval_every=eval_every,
        save_every=save_every,
        seed=seed,
    )
    where = pick_device(device, given_as="--device")
    if resume is None:
        refuse_used(out)
        run_training(recipe, out, where, resumed=False)
    else:
        typed = {
            name: value
            for name, value in {**recipe.to_dict(), "out": str(out.resolve())}.items()
            if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
        }
        run_training(
            saved_recipe(resume, typed),
            resume,
            pick_device(device, given_as="--device"),
            resumed=True,
        )


@app.command()
@clean_errors
def generate(
    model: ModelFolder,
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Default: as many as fit, at most 100.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy; above 1 is wild.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep this much probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeats a sample exactly.")] = None,
    device: DeviceName = "auto",
) -> None:
    """Continue a prompt; the text appears as it is written."""
    decoder, tokenizer = _load(model, device)
    ids = tokenizer.encode(prompt) or [tokenizer.eos_id]  # the end of a line begins the next
    if max_new_tokens is None:
        max_new_tokens = max(1, min(100, decoder.config.max_len - len(ids)))
    choose = sampler(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=secrets.randbits(32) if seed is None else seed,
    )
    written = stream(
        decoder,
        ids,
        max_new_tokens=max_new_tokens,
        choose=choose,
        stop_ids=[tokenizer.eos_id],
    )
    shown = prompt
    typer.echo(shown, nl=False)
    for step in written:
        ids.append(step.token)
        full = tokenizer.decode(ids)
        if not full.endswith("\N{REPLACEMENT CHARACTER}"):  # the middle of a character
            typer.echo(full[len(shown) :], nl=False)
            shown = full
    typer.echo(tokenizer.decode(ids)[len(shown) :])


@app.command()
@clean_errors
def evaluate(
    model: ModelFolder,
    text: OtherTextFile = None,
    split: Annotated[Literal["dev", "test"], typer.Option(help="Part of the text.")] = "dev",
    window: Annotated[int | None, typer.Option(help="Default: what the model can see.")] = None,
    stride: Annotated[int | None, typer.Option(help="Window step; default: window.")] = None,
    device: DeviceName = "auto",
) -> None:
    """Measure how well a model predicts a text, every token once."""
    decoder, tokenizer = _load(model, device)
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
    print_rows(
        {
            "text": f"{source or 'King James Bible'}, {split}",
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
) -> None:
    """Show versions and the machine, and what a model costs."""
    print_rows(
        {
            "glassformer": importlib.metadata.version("glassformer"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": str(pick_device()),
            "threads": str(torch.get_num_threads()),
        }
    )
    if model is None:
        for preset in get_args(PresetName):
            recipe = Recipe(preset=preset)
            print_rows(_costs(recipe.config(recipe.vocab_size), f"preset {preset}"))
        return
    record = read_record(model)
    costs = _costs(_load(model, "cpu")[0].config, "model")
    if "step" in record:
        costs["trained"] = f"{record['step']} of {record['settings']['steps']} steps"
    if record.get("best_step") is not None:
        costs["dev loss"] = f"{record['best_dev_loss']:.4f} at step {record['best_step']}"
    print_rows(costs)


def _load(folder: Path, device: str) -> tuple[Decoder, Tokenizer]:
    model = load_model(folder, device=pick_device(device, given_as="--device"))
    if not isinstance(model, Decoder):
        raise CheckpointError(f"{folder}: holds a {type(model).__name__}; this needs a Decoder")
    return model, load_tokenizer(folder)


def _costs(config: DecoderConfig, name: str) -> dict[str, str]:
    flops = forward_flops(config, 1, config.max_len) // config.max_len
    return {
        name: f"{parameter_count(config):,} parameters: {config.n_layers} layers, width "
        f"{config.d_model}, {config.n_heads} heads, vocabulary {config.vocab_size}, length "
        f"{config.max_len}",
        "  FLOPs per token": f"{flops:,} forward, mean over a full window",
        "  cache per token": f"{kv_cache_bytes(config, 1, 1):,} bytes",
    }
