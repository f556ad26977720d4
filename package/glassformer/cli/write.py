"""The commands that write: generate and translate.

Book: training
"""

import codecs
import secrets
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.cli.app import ConfigFile, DeviceName, JsonOutput, ModelFolder, app
from glassformer.cli.folders import load_decoder
from glassformer.cli.terminal import clean_errors, print_json
from glassformer.data import Tokenizer
from glassformer.devices import pick_device
from glassformer.errors import ConfigError, DataError
from glassformer.generation import StreamStep, sampler, stream
from glassformer.translation import Translation, load_translator

__all__ = ["generate", "translate"]


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
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens of the text so far less likely.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Repeats a sample exactly.")] = None,
    device: DeviceName = "auto",
    json: JsonOutput = False,
    config: ConfigFile = None,
) -> None:
    """Continue a prompt; the text appears as it is written.

    With `--json` it comes at the end, with the probability that the model gave to each token. For
    example, a careful continuation, and a wild one that can be repeated:

        glassformer generate --model runs/decoder --prompt "In the beginning" --temperature 0

        glassformer generate --model runs/decoder --prompt "And" --temperature 1.2 --seed 7
    """
    decoder, tokenizer = load_decoder(model, device)
    ids = tokenizer.encode(prompt) or [tokenizer.eos_id]  # the end of a line begins the next
    if max_new_tokens is None:
        max_new_tokens = max(1, min(100, decoder.config.max_len - len(ids)))
    choose = sampler(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        seed=secrets.randbits(32) if seed is None else seed,
    )
    written = stream(
        decoder,
        ids,
        max_new_tokens=max_new_tokens,
        choose=choose,
        stop_ids=[tokenizer.eos_id],
    )
    if json:
        steps = list(written)
        text = tokenizer.decode(ids + [step.token for step in steps])
        tokens = [{"id": step.token, "confidence": step.confidence} for step in steps]
        print_json({"prompt": prompt, "text": text, "tokens": tokens})
    else:
        _show(prompt, ids, written, tokenizer)


def _show(prompt: str, ids: list[int], written: Iterator[StreamStep], tokenizer: Tokenizer) -> None:
    """Print the prompt, and behind it each character as soon as it is whole."""
    typer.echo(prompt, nl=False)
    shown = tokenizer.decode(ids)  # not the prompt, where characters are unknown
    for step in written:
        ids.append(step.token)
        full = tokenizer.decode(ids)
        if not full.endswith("\N{REPLACEMENT CHARACTER}"):  # the middle of a character
            typer.echo(full[len(shown) :], nl=False)
            shown = full
    typer.echo(tokenizer.decode(ids)[len(shown) :])


@app.command()
@clean_errors
def translate(
    model: ModelFolder = Path("tatoeba-de-en"),
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="UTF-8 texts, one sentence a line; none or `-`: standard input."),
    ] = None,
    beams: Annotated[int, typer.Option(help="Texts kept at every step; 1 is greedy.")] = 4,
    n_best: Annotated[int, typer.Option(help="Translations of each line to print.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Above 1 favours longer texts.")] = 1.0,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Of a translation; default: as many as fit.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Lines read before any is answered; default: 64, at a keyboard 1."),
    ] = None,
    device: DeviceName = "auto",
    json: JsonOutput = False,
    config: ConfigFile = None,
) -> None:
    """Translate line by line: line n of the output belongs to line n of the input.

    Without `--model` the package's own translator turns German into English. An empty line stays
    empty. A line with more tokens than the model reads ends the command with an error; the lines of
    the batches before it are out by then. An alphabet that the model was not trained on is no
    error, and its translation a guess. With `--n-best` above 1 each translation is a line of
    its own: the number of its sentence from 0, its score and its text, with tabs between. With
    `--json` every sentence is one line of JSON. For example:

        echo "Das Wetter ist schön." | glassformer translate

        glassformer translate --model runs/translator news.de --beams 8 > news.en

        glassformer translate --model runs/translator news.de --n-best 3 --json
    """
    if not 1 <= n_best <= beams:
        raise ConfigError(f"--n-best {n_best} needs at least as many beams, and --beams is {beams}")
    size = (1 if _at_keyboard(files) else 64) if batch_size is None else batch_size
    if size < 1:
        raise ConfigError(f"--batch-size {size} must be at least 1")
    translator = load_translator(model, device=pick_device(device, given_as="--device"))
    number = 0
    for lines in _batches(files or [Path("-")], size):
        results = translator.n_best(
            lines,
            n_best=n_best,
            n_beams=beams,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
        )
        for line, translations in zip(lines, results, strict=True):
            _print_translations(number, line, translations, n_best, json)
            number += 1


def _at_keyboard(files: list[Path] | None) -> bool:
    """Whether somebody types the lines and waits for answers."""
    return not files and sys.stdin.isatty()


def _print_translations(
    number: int, line: str, translations: list[Translation], n_best: int, json: bool
) -> None:
    if json:
        found: list[dict[str, Any]] = [{"text": t.text, "score": t.score} for t in translations]
        print_json({"source": line, "translations": found})
        return
    for translation in translations:
        text = " ".join(translation.text.splitlines())  # one line each, whatever the model writes
        typer.echo(text if n_best == 1 else f"{number}\t{translation.score:.4f}\t{text}")


def _batches(files: list[Path], size: int) -> Iterator[list[str]]:
    """Lines in groups, the last one as large as what is left."""
    lines: list[str] = []
    for line in _lines(files):
        lines.append(line)
        if len(lines) == size:
            yield lines
            lines = []
    if lines:
        yield lines


def _lines(files: list[Path]) -> Iterator[str]:
    """The lines of files, each as soon as it is there; only a line feed ends one.

    Raises:
        DataError: a line is no UTF-8, or a file cannot be read.
    """
    for path in files:
        name = "standard input" if str(path) == "-" else str(path)
        try:
            with path.open("rb") if str(path) != "-" else nullcontext(sys.stdin.buffer) as file:
                for number, raw in enumerate(file, start=1):
                    raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                    yield raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: no UTF-8 (byte {error.object[error.start]:#04x}); "
                "convert the text first"
            ) from error
        except OSError as error:
            raise DataError(f"{name}: cannot be read ({error.strerror}); check the path") from error
