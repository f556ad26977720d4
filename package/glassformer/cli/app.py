"""The program itself, and the options that several commands share.

Book: training
"""

from pathlib import Path
from typing import Annotated

import typer

from glassformer.cli.config_file import read_defaults

__all__ = [
    "AcceptTerms",
    "ConfigFile",
    "DeviceName",
    "Download",
    "JsonOutput",
    "ModelFolder",
    "app",
]

app = typer.Typer(
    name="glassformer",
    help="Train small Transformers on text, let them write and translate, and measure them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

ModelFolder = Annotated[Path, typer.Option(help="Folder that `glassformer train` wrote.")]
DeviceName = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="YAML or TOML file of options, named as here; what is typed wins.",
        is_eager=True,
        callback=read_defaults,
    ),
]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data set if it is missing.")]
AcceptTerms = Annotated[
    bool, typer.Option("--accept-terms", help="You may use Multi30k under its terms.")
]
