"""The command that makes a smaller model of a trained one.

Book: pruning
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from torch import nn

from glassformer.cli.app import (
    AcceptTerms,
    ConfigFile,
    DeviceName,
    Download,
    JsonOutput,
    ModelFolder,
    app,
)
from glassformer.cli.corpora import Texts, texts_of
from glassformer.cli.folders import load_writer
from glassformer.cli.run import refuse_used
from glassformer.cli.terminal import clean_errors, print_json, print_rows
from glassformer.data import Tokenizer, encode_pairs, windows
from glassformer.errors import ConfigError
from glassformer.evaluation import evaluate_nll
from glassformer.models import Decoder, EncoderDecoder
from glassformer.pruning import (
    drop_layers,
    head_importance,
    layer_importance,
    prune_heads,
    random_importance,
    weakest_heads,
)
from glassformer.training import Batch, PairBatches, WindowBatches, save_model, total_loss

__all__ = ["prune"]


@app.command()
@clean_errors
def prune(
    model: ModelFolder,
    out: Annotated[Path, typer.Option(help="New folder for the smaller model.")],
    heads: Annotated[int, typer.Option(help="Heads to remove, over all layers together.")] = 0,
    layers: Annotated[int, typer.Option(help="Layers to remove, those that matter least.")] = 0,
    by: Annotated[
        Literal["gradient", "random"], typer.Option(help="What heads are chosen by.")
    ] = "gradient",
    batches: Annotated[int, typer.Option(help="Micro-batches of training text to judge by.")] = 16,
    text: Annotated[
        Path | None, typer.Option(help="A UTF-8 text. Default: the one of the training.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Of a translator, with `--target`.")] = None,
    target: Annotated[Path | None, typer.Option(help="Of a translator, with `--source`.")] = None,
    seed: Annotated[int, typer.Option(help="Of the order of the text, and of chance.")] = 0,
    device: DeviceName = "auto",
    download: Download = False,
    accept_terms: AcceptTerms = False,
    json: JsonOutput = False,
    config: ConfigFile = None,
) -> None:
    """Remove the heads and layers that matter least, and save a model that is really smaller.

    What matters is judged on the training part of a text: how far the loss would move if a head
    or a layer began to go. The loss before and after is that of the dev part. `--by random` is
    what any judgement has to beat. Layers go first, heads are then chosen from what is left. For
    example:

        glassformer prune --model runs/decoder --heads 4 --out runs/smaller

        glassformer prune --model runs/translator --layers 1 --heads 2 --out runs/tiny --json
    """
    if heads < 0 or layers < 0 or heads + layers == 0:
        raise ConfigError(
            f"--heads {heads} and --layers {layers} remove nothing; give a number above 0"
        )
    if batches < 1:
        raise ConfigError(f"--batches {batches} must be at least 1")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"--seed {seed} must be from 0 to 2**63 - 1")
    refuse_used(out)
    whole, tokenizer = load_writer(model, device)
    texts = texts_of(
        model,
        whole,
        text=text,
        source=source,
        target=target,
        download=download,
        accept_terms=accept_terms,
    )
    judge, loss = _judges(whole, tokenizer, texts, batches, seed)
    smaller: Any = whole
    gone_layers: dict[str, list[int]] = {}
    if layers:
        smaller, gone_layers = _without_layers(whole, judge, layers)
    gone_heads: dict[str, list[int]] = {}
    if heads:
        scores = (
            random_importance(smaller, seed=seed)
            if by == "random"
            else head_importance(smaller, judge)
        )
        try:
            gone_heads = weakest_heads(scores, heads, group=_group(smaller))
        except ConfigError as error:
            said = str(error).replace(f"n={heads}", f"--heads {heads}").replace("group=", "")
            raise ConfigError(said) from error
        smaller = prune_heads(smaller, gone_heads)
    found = {
        "before": {"parameters": _size(whole), "nats_per_token": loss(whole)},
        "after": {"parameters": _size(smaller), "nats_per_token": loss(smaller)},
    }
    save_model(out, smaller, tokenizer, run=texts.run)
    if json:
        removed = {"heads": gone_heads, "layers": gone_layers}
        print_json({"text": texts.name, "out": str(out), "removed": removed, **found})
        return
    gone = {"without heads": gone_heads, "without layers": gone_layers}
    print_rows({name: _places(what) for name, what in gone.items() if what})
    print_rows({name: _row(figures) for name, figures in found.items()})
    print_rows({"saved in": str(out)})


def _judges(
    model: Decoder | EncoderDecoder, tokenizer: Tokenizer, texts: Texts, n_batches: int, seed: int
) -> tuple[list[Batch], Callable[[nn.Module], float]]:
    """Micro-batches of the training part, and the loss on the dev part, in nats per token."""
    longest, corpus = model.config.max_len, texts.corpus
    data: WindowBatches | PairBatches
    if isinstance(model, Decoder):
        views = windows(tokenizer.encode_stream(corpus.train), longest, longest)
        data = WindowBatches(views, 8, seed=seed)
        dev_ids = tokenizer.encode_stream(corpus.dev)

        def loss(model: nn.Module) -> float:
            return evaluate_nll(model, dev_ids, window=longest).nll
    else:
        data, dev = (
            PairBatches(
                encode_pairs(part, tokenizer, max_len=longest),
                2048,
                pad_id=tokenizer.pad_id,
                bos_id=tokenizer.bos_id,
                seed=seed,
            )
            for part in (corpus.train, corpus.dev)
        )

        def loss(model: nn.Module) -> float:
            return total_loss(model, dev).mean_nll

    return [data.load(indices) for indices in islice(data.epoch(0), n_batches)], loss


def _without_layers(
    model: Any, judge: list[Batch], n: int
) -> tuple[Decoder | EncoderDecoder, dict[str, list[int]]]:
    """The model without its ``n`` least important layers, and their numbers by stack.

    The last layer of a stack stays, however little it matters. Layers have the numbers of the
    model before any pruning, places those of the model as it is.
    """
    scores = layer_importance(model, judge)
    left = dict(model.config.stacks)
    if n > len(scores) - len(left):
        raise ConfigError(
            f"--layers {n} of {len(scores)} are too many; leave at least one in each stack, "
            f"so give at most {len(scores) - len(left)}"
        )
    gone: dict[str, list[int]] = {}
    for name in sorted(scores, key=scores.__getitem__):
        stack, _, place = name.partition(".blocks.")
        if left[stack] == 1 or sum(map(len, gone.values())) == n:
            continue
        left[stack] -= 1
        before = dict(model.config.dropped_layers).get(stack, ())
        numbers = [i for i in range(len(scores) + len(before)) if i not in before]
        gone.setdefault(stack, []).append(numbers[int(place)])
    for stack, layers in gone.items():
        model = drop_layers(model, sorted(layers), stack=stack)
    return model, {stack: sorted(layers) for stack, layers in gone.items()}


def _group(model: Decoder | EncoderDecoder) -> int:
    """Query heads that share a key/value head go together, unless one serves them all."""
    n_heads, kv_heads = model.config.n_heads, model.config.kv_heads
    return 1 if kv_heads == 1 else n_heads // kv_heads


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _places(what: dict[str, list[int]]) -> str:
    return ", ".join(f"{name} {' '.join(map(str, numbers))}" for name, numbers in what.items())


def _row(figures: dict[str, Any]) -> str:
    return f"{figures['parameters']:,} parameters, {figures['nats_per_token']:.4f} nats per token"
