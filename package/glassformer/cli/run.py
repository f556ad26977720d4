"""One training run of the command line, from its recipe to the checkpoint.

Book: training
"""

import dataclasses
import functools
import shlex
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from glassformer.cli.terminal import interruptible, progress_bar
from glassformer.costs import parameter_count
from glassformer.data import Corpus, train_tokenizer
from glassformer.errors import CheckpointError, ConfigError, DataError
from glassformer.training import (
    Recipe,
    load_checkpoint,
    load_tokenizer,
    read_record,
    save_checkpoint,
)
from glassformer.training._folder import existing_folder
from glassformer.training.step import make_scaler

__all__ = ["read_corpus", "refuse_used", "run_training", "saved_recipe"]


def run_training(recipe: Recipe, folder: Path, device: torch.device, *, resumed: bool) -> None:
    """Train to the end, or to Ctrl-C, and leave a complete checkpoint in ``folder``.

    Raises:
        GlassformerError: the text, the tokenizer, the device or the folder will not do.
        typer.Exit: with 130, after Ctrl-C.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    make_scaler(recipe.precision, device)  # a precision it cannot do is refused before the work
    corpus = read_corpus(recipe, saved=resumed)
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
        with interruptible() as stop, progress_bar(console, trainer) as show:
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


def saved_recipe(folder: Path, typed: dict[str, Any]) -> Recipe:
    """The recipe of a run; whatever was typed beside ``--resume`` must agree with it.

    Only the text may have moved: its tokens are compared when the run is loaded.

    Raises:
        CheckpointError: no run in ``folder``, or one that was started otherwise.
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


def read_corpus(recipe: Recipe, *, saved: bool) -> Corpus:
    """The text of a recipe; one that a run was ``saved`` with may have moved since.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return recipe.corpus()
    except DataError as error:
        if not saved or recipe.text is None or Path(recipe.text).exists():
            raise
        raise DataError(f"{error}; if the text has moved, say where with --text") from error


def refuse_used(out: Path) -> None:
    """A new run takes no folder in which something lies.

    Raises:
        CheckpointError: ``out`` is not empty.
    """
    try:
        used = any(existing_folder(out).iterdir())
    except CheckpointError:
        return
    if used:
        raise CheckpointError(
            f"{out}: is not empty; continue its run with --resume {shlex.quote(str(out))}, or give "
            "a new folder with --out"
        )
