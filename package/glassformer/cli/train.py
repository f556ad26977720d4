"""The command that trains.

Book: training
"""

from pathlib import Path
from typing import Annotated

import typer

from glassformer.cli.app import ConfigFile, DeviceName, app
from glassformer.cli.run import refuse_used, run_training, saved_recipe
from glassformer.cli.terminal import clean_errors
from glassformer.devices import pick_device
from glassformer.training import Recipe
from glassformer.training.recipe import PresetName
from glassformer.training.step import Precision

__all__ = ["train"]

TextFile = Annotated[
    Path | None, typer.Option(help="A UTF-8 text, one sentence a line. Default: King James Bible.")
]


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
    config: ConfigFile = None,
) -> None:
    """Train a tokenizer and a decoder on a text.

    Ctrl-C finishes the step, saves, and prints the command that goes on bit for bit. Options may
    stand in a file, as in `preset: tiny` and `steps: 500`. For example:

        glassformer train --text letters.txt --out runs/letters --preset tiny

        glassformer train --config run.yaml --seed 1 --out runs/second

        glassformer train --resume runs/letters
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
            if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"
        }
        run_training(
            saved_recipe(resume, typed),
            resume,
            pick_device(device, given_as="--device"),
            resumed=True,
        )
