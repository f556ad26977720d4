"""What every command does with the terminal: errors in one line, progress, Ctrl-C.

Book: training
"""

import codecs
import errno
import functools
import io
import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

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

from glassformer.errors import GlassformerError
from glassformer.training import StepReport, Trainer

__all__ = [
    "clean_errors",
    "interruptible",
    "print_json",
    "print_rows",
    "progress_bar",
    "write_anything",
]

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def clean_errors(command: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """One line on stderr and exit code 2 for what the user can mend; 130 for Ctrl-C."""

    @functools.wraps(command)
    def wrapped(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        write_anything()
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


def write_anything() -> None:
    """Let no character stop a run: a terminal without it shows ``?``; odd paths pass unchanged."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            utf_8 = codecs.lookup(output.encoding).name == "utf-8"
            output.reconfigure(errors="surrogateescape" if utf_8 else "replace")


@contextmanager
def interruptible() -> Iterator[threading.Event]:
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
def progress_bar(console: Console, trainer: Trainer) -> Iterator[Callable[[StepReport], None]]:
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


def print_rows(rows: dict[str, str]) -> None:
    """A name and its value on each line, the values below each other."""
    for name, value in rows.items():
        typer.echo(f"{name:<20} {value}")


def print_json(data: Any) -> None:
    """One line of JSON on stdout. A number that JSON cannot say, such as infinity, is null."""
    typer.echo(json.dumps(_sayable(data), ensure_ascii=False, allow_nan=False))


def _sayable(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _sayable(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_sayable(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
