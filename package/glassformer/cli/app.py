"""The program itself, and the options that several commands share.

Book: training
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.cli.config_file import read_defaults
from glassformer.cli.terminal import clean_errors
from glassformer.errors import ConfigError
from glassformer.pretrained import PRETRAINED, pretrained_folder

__all__ = [
    "AcceptTerms",
    "ConfigFile",
    "DeviceName",
    "Download",
    "JsonOutput",
    "MaybeModel",
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


@clean_errors
def _model_folder(given: str | Path) -> Path:
    """A folder, or the name of a model of the package where no such folder is.

    Raises:
        ConfigError: an empty name, which would mean the current folder.
    """
    if not str(given):
        raise ConfigError("--model '' is empty; give a folder, and `.` for the current one")
    folder = Path(given)
    named = str(given) in PRETRAINED and not folder.exists()
    return pretrained_folder(str(given)) if named else folder


_model: Any = typer.Option(
    help=f"Folder of a trained model, or one of the package: {', '.join(PRETRAINED)}.",
    parser=_model_folder,
    metavar="FOLDER|NAME",
)
ModelFolder = Annotated[Path, _model]
MaybeModel = Annotated[Path | None, _model]
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
