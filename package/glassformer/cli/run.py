"""One training run of the command line, from its recipe to the checkpoint.

Book: training
"""

import dataclasses
import functools
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from glassformer._files import existing_folder
from glassformer.cli.corpora import read_corpus, recipe_of
from glassformer.cli.terminal import interruptible, progress_bar
from glassformer.costs import parameter_count
from glassformer.data import Corpus, ParallelCorpus
from glassformer.errors import CheckpointError
from glassformer.training import (
    PairBatches,
    PairRecipe,
    Recipe,
    ShardedData,
    StepReport,
    Trainer,
    agree,
    load_checkpoint,
    load_tokenizer,
    read_record,
    save_checkpoint,
    tensorboard_writer,
)
from glassformer.training.distributed import rank
from glassformer.training.step import make_scaler

__all__ = [
    "refuse_used",
    "run_training",
    "saved_recipe",
]


def run_training(
    recipe: Recipe | PairRecipe,
    folder: Path,
    device: torch.device,
    *,
    resumed: bool,
    download: bool = False,
    accept_terms: bool = False,
    tensorboard: Path | None = None,
) -> None:
    """Train to the end, or to Ctrl-C, and leave a complete checkpoint in ``folder``.

    Raises:
        GlassformerError: the text, the tokenizer, the device or the folder will not do.
        typer.Exit: with 130, after Ctrl-C.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False, quiet=rank() > 0)
    make_scaler(recipe.precision, device)  # a precision it cannot do is refused before the work
    corpus: Any = read_corpus(recipe, saved=resumed, download=download, accept_terms=accept_terms)
    if isinstance(corpus, ParallelCorpus):
        _describe(console, corpus)
    if resumed:
        tokenizer = load_tokenizer(folder)
    else:
        console.print(f"Training a tokenizer of {recipe.vocab_size} pieces …")
        tokenizer = recipe.tokenizer(corpus)
    trainer = recipe.trainer(corpus, tokenizer, device)
    save = functools.partial(save_checkpoint, folder, trainer, tokenizer, run=recipe.to_dict())
    if resumed:
        load_checkpoint(folder, trainer)
    save()  # a folder that cannot be written shows now, not at the first stop
    data = trainer.data.data if isinstance(trainer.data, ShardedData) else trainer.data
    if isinstance(data, PairBatches) and (n := data.examples.n_too_long):
        console.print(f"{n:,} pairs are longer than {recipe.length} tokens, and left out")
    size = parameter_count(recipe.config(tokenizer.vocab_size))
    console.print(f"{size:,} parameters on {device}, after step {trainer.step}, in {folder}")
    resumed_at = trainer.step if resumed else None
    with _curves(None if rank() else tensorboard, resumed_at) as write:
        stopped = _train(console, trainer, folder, recipe.save_interval, save, write)
    if stopped:
        console.print(f"Stopped after step {trainer.step}; {stopped}. Continue with:")
        console.print(f"  glassformer train --resume {shlex.quote(str(folder))}")
        raise typer.Exit(130)
    if trainer.step < recipe.steps:
        console.print(f"Out of patience after step {trainer.step} of {recipe.steps}.")
    _say_what_is_next(console, folder, trainer.best.loss, corpus)


def _train(
    console: Console,
    trainer: Trainer,
    folder: Path,
    save_interval: int,
    save: Callable[[], None],
    write: Callable[[StepReport], None],
) -> str:
    """Run, save and report; what of it is saved if Ctrl-C came before the end, else nothing."""
    try:
        with interruptible() as stop, progress_bar(console, trainer) as show:
            for report in trainer.run():
                if report.step % save_interval == 0 or trainer.done:
                    save()  # before the report, which may meet a closed pipe
                write(report)
                show(report)
                if agree(stop.is_set(), trainer.device):
                    break
        if not trainer.done:
            save()
            return "all of it is saved"
    except KeyboardInterrupt:  # the second Ctrl-C, which does not wait
        return f"step {read_record(folder)['step']} is saved"
    return ""


def _curves(
    folder: Path | None, resumed_at: int | None
) -> AbstractContextManager[Callable[[StepReport], None]]:
    """What takes the reports of a run to TensorBoard, or nowhere."""
    if folder is None:
        return nullcontext(lambda report: None)
    return tensorboard_writer(folder, resumed_at=resumed_at)


def _describe(console: Console, corpus: ParallelCorpus) -> None:
    sizes = f"{len(corpus.train):,} pairs to train on, {len(corpus.dev):,} to watch the loss on"
    console.print(f"{sizes}, {len(corpus.test):,} to test with; {corpus.n_dropped:,} left out")
    if corpus.attribution:
        console.print(corpus.attribution)


def _say_what_is_next(
    console: Console, folder: Path, loss: float, corpus: Corpus | ParallelCorpus
) -> None:
    name = shlex.quote(str(folder))
    if isinstance(corpus, ParallelCorpus):
        example = shlex.quote(corpus.dev[0][0])
        console.print(f"Best dev loss {loss:.4f} nats per token. Let it translate with:")
        console.print(f"  echo {example} | glassformer translate --model {name}")
    else:
        console.print(f"Best dev loss {loss:.4f} nats per token. Let it write with:")
        console.print(f'  glassformer generate --model {name} --prompt "In the beginning"')


def saved_recipe(folder: Path, typed: dict[str, Any]) -> Recipe | PairRecipe:
    """The recipe of a run; whatever was typed beside ``--resume`` must agree with it.

    Only its texts may have moved: their tokens are compared when the run is loaded.

    Raises:
        CheckpointError: no run in ``folder``, or one that was started otherwise.
    """
    recipe = recipe_of(folder, "train into a new folder")
    saved = {**recipe.filled().to_dict(), "out": str(folder.resolve())}
    texts = [name for name in ("text", "source", "target") if saved.get(name) is not None]
    for name, value in typed.items():
        if name not in texts and value != saved.get(name):
            has = f"has {saved[name]}" if name in saved else "has no such option"
            raise CheckpointError(
                f"--{name.replace('_', '-')} {value} contradicts the run in {folder}, which {has}; "
                "leave it out, or start a new run with --out"
            )
    return dataclasses.replace(recipe, **{name: typed[name] for name in texts if name in typed})


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
