"""The command that trains.

Book: training
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.cli.app import AcceptTerms, ConfigFile, DeviceName, Download, app
from glassformer.cli.run import refuse_used, run_training, saved_recipe
from glassformer.cli.terminal import clean_errors
from glassformer.errors import ConfigError
from glassformer.training import PairRecipe, Recipe, process_group, sole_run
from glassformer.training.loop import Schedule
from glassformer.training.pair_recipe import DataSetName
from glassformer.training.recipe import PresetName
from glassformer.training.step import Precision

__all__ = ["train"]


@app.command()
@clean_errors
def train(
    context: typer.Context,
    text: Annotated[
        Path | None,
        typer.Option(help="A UTF-8 text, one sentence a line. Default: King James Bible."),
    ] = None,
    data: Annotated[
        DataSetName | None, typer.Option(help="Translate: a data set of pairs, into English.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Translate: a UTF-8 text, one sentence a line.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="Translate: what each line of `--source` becomes.")
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder for the model.")] = Path("runs/decoder"),
    resume: Annotated[Path | None, typer.Option(help="Folder of a run to continue.")] = None,
    preset: Annotated[PresetName, typer.Option(help="Size of the model.")] = "small",
    vocab_size: Annotated[int, typer.Option(help="Pieces of the tokenizer; pairs: 4096.")] = 2048,
    length: Annotated[int, typer.Option(help="Tokens the model can see, of each side.")] = 128,
    stride: Annotated[int | None, typer.Option(help="Window step; default: length.")] = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps; pairs: 2000.")] = 1000,
    batch_size: Annotated[int, typer.Option(help="Windows of text per micro-batch.")] = 16,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens of pairs per micro-batch; default: 4096.")
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per step.")] = 1,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: by size.")] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Default: a twentieth of the steps; pairs: a tenth.")
    ] = None,
    schedule: Annotated[
        Schedule | None, typer.Option(help="Of the rate; default: cosine; pairs: inverse_sqrt.")
    ] = None,
    dropout: Annotated[
        float, typer.Option(help="Share of values dropped in training; pairs: 0.1.")
    ] = 0.0,
    label_smoothing: Annotated[
        float | None, typer.Option(help="Share for the other tokens; default: 0; pairs: 0.1.")
    ] = None,
    precision: Annotated[Precision, typer.Option(help="Of the matrix products.")] = "float32",
    checkpoint_blocks: Annotated[
        bool, typer.Option("--checkpoint-blocks", help="Less memory, more time.")
    ] = False,
    average: Annotated[
        int, typer.Option(help="Keep the mean of the weights at this many evaluations.")
    ] = 1,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many evaluations without a better one.")
    ] = None,
    eval_every: Annotated[int | None, typer.Option(help="Default: a tenth of the steps.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Default: as eval-every.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, dropout and order.")] = 0,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write curves for TensorBoard into this folder.")
    ] = None,
    device: DeviceName = "auto",
    download: Download = False,
    accept_terms: AcceptTerms = False,
    config: ConfigFile = None,
) -> None:
    """Train a tokenizer and a model: a decoder on a text, or a translator on pairs.

    `--data`, or `--source` and `--target`, makes it a translator, for which some defaults differ.
    Ctrl-C finishes the step, saves, and prints the command that goes on bit for bit. Options may
    stand in a file, as in `preset: tiny` and `steps: 500`. For example:

        glassformer train --text letters.txt --out runs/letters --preset tiny

        glassformer train --data tatoeba-deu-eng --download --out runs/translator

        glassformer train --source train.de --target train.en --out runs/translator

        glassformer train --config run.yaml --seed 1 --out runs/second

        glassformer train --resume runs/letters

        torchrun --nproc-per-node 2 -m glassformer train --preset base
    """
    given = {
        name: str(value.resolve()) if isinstance(value, Path) else value
        for name, value in context.params.items()
        if (where := context.get_parameter_source(name)) and where.name != "DEFAULT"
    }
    if tensorboard is not None:
        _refuse_file(tensorboard)
    typed = {
        name: given[name] for name in given if name in {*_fields(Recipe), *_fields(PairRecipe)}
    }
    if resume is None:
        recipe, folder = _recipe(typed), out
        refuse_used(out)
    else:
        typed |= {"out": given["out"]} if "out" in given else {}
        recipe, folder = saved_recipe(resume, typed), resume
    with process_group(device, given_as="--device") as chosen, sole_run(folder):
        run_training(
            recipe,
            folder,
            chosen,
            resumed=resume is not None,
            download=download,
            accept_terms=accept_terms,
            tensorboard=tensorboard,
        )


def _refuse_file(tensorboard: Path) -> None:
    """Curves go into a folder; that it cannot be made shows before the work.

    Raises:
        ConfigError: a file is where the folder would be.
    """
    there = next(path for path in (tensorboard, *tensorboard.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"--tensorboard {tensorboard}: {there} is a file; give a folder")


def _fields(kind: type[Recipe] | type[PairRecipe]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _recipe(typed: dict[str, Any]) -> Recipe | PairRecipe:
    """The recipe of whichever kind the options ask for; what is not typed is its own default.

    Raises:
        ConfigError: options of the other kind, or values that make no sense.
    """
    pairs = any(name in typed for name in ("data", "source", "target"))
    kind: type[Recipe] | type[PairRecipe] = PairRecipe if pairs else Recipe
    for name in typed:
        if name not in _fields(kind):
            this, other = ("pairs", "a text") if pairs else ("a text", "pairs")
            raise ConfigError(
                f"--{name.replace('_', '-')} is for {other}, and this run trains on {this}; leave "
                "it out"
            )
    return kind(**typed)
