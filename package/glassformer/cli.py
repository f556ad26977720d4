"""The command ``glassformer``: train, generate, evaluate, info.

Book: training
"""

import codecs
import dataclasses
import errno
import functools
import importlib.metadata
import io
import platform
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import torch
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from glassformer.config import DecoderConfig
from glassformer.costs import forward_flops, kv_cache_bytes, parameter_count
from glassformer.data import Corpus, Tokenizer, train_tokenizer
from glassformer.errors import CheckpointError, ConfigError, DataError, GlassformerError
from glassformer.evaluation import evaluate_nll
from glassformer.generation import sampler, stream
from glassformer.models import Decoder
from glassformer.training import (
    Recipe,
    StepReport,
    Trainer,
    load_checkpoint,
    load_model,
    load_tokenizer,
    read_record,
    save_checkpoint,
)
from glassformer.training.folder import existing_folder
from glassformer.training.step import make_scaler

__all__ = ["app"]

app = typer.Typer(
    name="glassformer",
    help="Train a small Transformer on text, let it write, and measure it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


class Preset(StrEnum):
    """Sizes to choose from."""

    tiny = "tiny"
    small = "small"
    base = "base"


class PrecisionName(StrEnum):
    """What matrix products are computed in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class SplitName(StrEnum):
    """The parts of a text that no training has seen."""

    dev = "dev"
    test = "test"


TextFile = Annotated[
    Path | None, typer.Option(help="A UTF-8 text, one sentence a line. Default: King James Bible.")
]
OtherTextFile = Annotated[
    Path | None, typer.Option(help="A UTF-8 text. Default: the one the model was trained on.")
]
ModelFolder = Annotated[Path, typer.Option(help="Folder that `glassformer train` wrote.")]
DeviceName = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]


def _clean_errors(command: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """One line on stderr and exit code 2 for what the user can mend; 130 for Ctrl-C."""

    @functools.wraps(command)
    def wrapped(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        _write_anything()
        try:
            return command(*args, **kwargs)
        except (GlassformerError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader, such as `head`, has had enough: typer ends quietly
            typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(130) from error

    return wrapped


def _write_anything() -> None:
    """Let no character stop a run: a terminal without it shows ``?``; odd paths pass unchanged."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            utf_8 = codecs.lookup(output.encoding).name == "utf-8"
            output.reconfigure(errors="surrogateescape" if utf_8 else "replace")


@app.command()
@_clean_errors
def train(
    context: typer.Context,
    text: TextFile = None,
    out: Annotated[Path, typer.Option(help="New folder for the model.")] = Path("runs/decoder"),
    resume: Annotated[Path | None, typer.Option(help="Folder of a run to continue.")] = None,
    preset: Annotated[Preset, typer.Option(help="Size of the model.")] = Preset.small,
    vocab_size: Annotated[int, typer.Option(help="Pieces of the tokenizer.")] = 2048,
    length: Annotated[int, typer.Option(help="Tokens the model can see.")] = 128,
    stride: Annotated[int | None, typer.Option(help="Window step; default: length.")] = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1000,
    batch_size: Annotated[int, typer.Option(help="Windows per micro-batch.")] = 16,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per step.")] = 1,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: by size.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Default: a twentieth of the steps.")] = None,
    dropout: Annotated[float, typer.Option(help="Share of values dropped in training.")] = 0.0,
    precision: Annotated[
        PrecisionName, typer.Option(help="Of the matrix products.")
    ] = PrecisionName.float32,
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
        preset=preset.value,
        vocab_size=vocab_size,
        length=length,
        stride=stride,
        steps=steps,
        batch_size=batch_size,
        accumulate=accumulate,
        lr=lr,
        warmup=warmup,
        dropout=dropout,
        precision=precision.value,
        checkpoint_blocks=checkpoint_blocks,
        eval_every=eval_every,
        save_every=save_every,
        seed=seed,
    )
    if resume is None:
        _refuse_used(out)
        _train(recipe, out, _device(device), resumed=False)
    else:
        typed = {
            name: value
            for name, value in {**recipe.to_dict(), "out": str(out.resolve())}.items()
            if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
        }
        _train(_saved_recipe(resume, typed), resume, _device(device), resumed=True)


@app.command()
@_clean_errors
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
@_clean_errors
def evaluate(
    model: ModelFolder,
    text: OtherTextFile = None,
    split: Annotated[SplitName, typer.Option(help="Part of the text.")] = SplitName.dev,
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
    lines = getattr(_corpus(Recipe(text=source), saved=text is None), split.value)
    score = evaluate_nll(
        decoder,
        tokenizer.encode_stream(lines),
        window=window,
        stride=stride,
        n_chars=sum(len(line) + 1 for line in lines),
    )
    _show(
        {
            "text": f"{source or 'King James Bible'}, {split.value}",
            "tokens": f"{score.n_tokens:,}",
            "nats per token": f"{score.nll:.4f}",
            "perplexity": f"{score.perplexity:.2f}",
            "bits per character": f"{score.bits_per_character:.4f}",
        }
    )


@app.command()
@_clean_errors
def info(
    model: Annotated[Path | None, typer.Option(help="Folder of a model.")] = None,
) -> None:
    """Show versions and the machine, and what a model costs."""
    _show(
        {
            "glassformer": importlib.metadata.version("glassformer"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": str(_device("auto")),
            "threads": str(torch.get_num_threads()),
        }
    )
    if model is None:
        for preset in Preset:
            recipe = Recipe(preset=preset.value)
            _show(_costs(recipe.config(recipe.vocab_size), f"preset {preset.value}"))
        return
    record = read_record(model)
    costs = _costs(_load(model, "cpu")[0].config, "model")
    if "step" in record:
        costs["trained"] = f"{record['step']} of {record['settings']['steps']} steps"
    if record.get("best_step") is not None:
        costs["dev loss"] = f"{record['best_dev_loss']:.4f} at step {record['best_step']}"
    _show(costs)


def _train(recipe: Recipe, folder: Path, device: torch.device, *, resumed: bool) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    make_scaler(recipe.precision, device)  # a precision it cannot do is refused before the work
    corpus = _corpus(recipe, saved=resumed)
    if resumed:
        tokenizer = load_tokenizer(folder)
    else:
        console.print(f"Training a tokenizer of {recipe.vocab_size} pieces …")
        tokenizer = train_tokenizer(corpus.train, recipe.vocab_size)
    trainer = recipe.trainer(corpus, tokenizer, device)
    save = functools.partial(save_checkpoint, folder, trainer, tokenizer, run=recipe.to_dict())
    if resumed:
        load_checkpoint(folder, trainer)
    save()  # a folder that cannot be written shows now, not at the first stop
    size = parameter_count(recipe.config(tokenizer.vocab_size))
    console.print(f"{size:,} parameters on {device}, after step {trainer.step}, in {folder}")
    name = shlex.quote(str(folder))
    stopped = ""
    try:
        with _interrupt() as stop, _progress(console, trainer) as show:
            for report in trainer.run():
                if report.step % recipe.save_interval == 0 or report.step == recipe.steps:
                    save()  # before the report, which may meet a closed pipe
                show(report)
                if stop.is_set():
                    break
        if trainer.step < recipe.steps:
            save()
            stopped = "all of it is saved"
    except KeyboardInterrupt:  # the second Ctrl-C, which does not wait
        stopped = f"step {read_record(folder)['step']} is saved"
    if stopped:
        console.print(f"Stopped after step {trainer.step}; {stopped}. Continue with:")
        console.print(f"  glassformer train --resume {name}")
        raise typer.Exit(130)
    console.print(f"Best dev loss {trainer.best.loss:.4f} nats per token. Let it write with:")
    console.print(f'  glassformer generate --model {name} --prompt "In the beginning"')


def _saved_recipe(folder: Path, typed: dict[str, Any]) -> Recipe:
    """The recipe of a run; whatever was typed beside ``--resume`` must agree with it.

    Only the text may have moved: its tokens are compared when the run is loaded.
    """
    try:
        recipe = Recipe.from_dict(read_record(folder).get("run", {}))
    except ConfigError as error:
        raise CheckpointError(
            f"{folder}: holds a model but no run of `glassformer train`; train into a new folder"
        ) from error
    text = typed.pop("text", recipe.text)
    saved = {**recipe.filled().to_dict(), "out": str(folder.resolve())}
    for name, value in typed.items():
        if value != saved[name]:
            raise CheckpointError(
                f"--{name.replace('_', '-')} {value} contradicts the run in {folder}, which has "
                f"{saved[name]}; leave it out, or start a new run with --out"
            )
    return dataclasses.replace(recipe, text=text)


def _corpus(recipe: Recipe, *, saved: bool) -> Corpus:
    try:
        return recipe.corpus()
    except DataError as error:
        if not saved or recipe.text is None or Path(recipe.text).exists():
            raise
        raise DataError(f"{error}; if the text has moved, say where with --text") from error


def _refuse_used(out: Path) -> None:
    try:
        used = any(existing_folder(out).iterdir())
    except CheckpointError:
        return
    if used:
        raise CheckpointError(
            f"{out}: is not empty; continue its run with --resume {shlex.quote(str(out))}, or give "
            "a new folder with --out"
        )


def _load(folder: Path, device: str) -> tuple[Decoder, Tokenizer]:
    model = load_model(folder, device=_device(device))
    if not isinstance(model, Decoder):
        raise CheckpointError(f"{folder}: holds a {type(model).__name__}; this needs a Decoder")
    return model, load_tokenizer(folder)


def _device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" makes tensors, but they hold nothing
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"--device {name} is no device of this machine; use auto, cpu, cuda, cuda:<number> "
            "or mps"
        ) from error
    return device


@contextmanager
def _interrupt() -> Iterator[threading.Event]:
    """Ctrl-C sets an event; a second one stops at once."""
    stop = threading.Event()

    def on_signal(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(console: Console, trainer: Trainer) -> Iterator[Callable[[StepReport], None]]:
    """A bar on a terminal; elsewhere a line whenever the dev loss is known."""
    total = trainer.settings.steps
    bar = Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task("train", total=total, completed=trainer.step, numbers="")
    dev = ""

    def show(report: StepReport) -> None:
        nonlocal dev
        recent = trainer.history[-20:]
        speed = sum(r.n_tokens for r in recent) / sum(r.seconds for r in recent)
        if report.dev_loss is not None:
            dev = f"  dev {report.dev_loss:.3f}"
        numbers = f"loss {report.loss:.3f}{dev}  {speed:,.0f} tokens/s"
        bar.update(task, completed=report.step, numbers=numbers)
        if not console.is_terminal and report.dev_loss is not None:
            left = (total - report.step) * sum(r.seconds for r in recent) / len(recent)
            console.print(f"step {report.step}/{total}  {numbers}  {left:.0f} s left")

    with bar if console.is_terminal else nullcontext():
        yield show


def _costs(config: DecoderConfig, name: str) -> dict[str, str]:
    flops = forward_flops(config, 1, config.max_len) // config.max_len
    return {
        name: f"{parameter_count(config):,} parameters: {config.n_layers} layers, width "
        f"{config.d_model}, {config.n_heads} heads, vocabulary {config.vocab_size}, length "
        f"{config.max_len}",
        "  FLOPs per token": f"{flops:,} forward, mean over a full window",
        "  cache per token": f"{kv_cache_bytes(config, 1, 1):,} bytes",
    }


def _show(rows: dict[str, str]) -> None:
    for name, value in rows.items():
        typer.echo(f"{name:<20} {value}")
