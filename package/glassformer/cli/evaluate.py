"""The command that measures: how well a text is predicted, and how well pairs are translated.

Book: training
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from glassformer.cli.app import (
    AcceptTerms,
    ConfigFile,
    DeviceName,
    Download,
    JsonOutput,
    ModelFolder,
    app,
)
from glassformer.cli.folders import load_writer
from glassformer.cli.run import read_corpus
from glassformer.cli.terminal import clean_errors, print_json, print_rows
from glassformer.data import Tokenizer, read_pairs
from glassformer.errors import CheckpointError, ConfigError
from glassformer.evaluation import (
    Score,
    bleu,
    chrf,
    error_rates,
    evaluate_nll,
    evaluate_pairs,
)
from glassformer.models import Decoder, EncoderDecoder
from glassformer.training import PairRecipe, Recipe, read_record, recipe_from_dict
from glassformer.translation import Translator

__all__ = ["evaluate"]

Pair = tuple[str, str]

# what is printed, and how; the keys of the JSON are the same with underscores
FORMATS = {
    "tokens": ",",
    "nats per token": ".4f",
    "perplexity": ".2f",
    "bits per character": ".4f",
    "pairs": ",",
    "too long": ",",
    "BLEU": ".2f",
    "chrF": ".2f",
    "words": ",",
    "phone error rate": ".4f",
    "word error rate": ".4f",
}


@app.command()
@clean_errors
def evaluate(
    model: ModelFolder,
    text: Annotated[
        Path | None,
        typer.Option(help="A UTF-8 text. Default: the one the model was trained on."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Of a translator: a test set, one sentence a line.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="Of a translator: the reference of each line.")
    ] = None,
    split: Annotated[
        Literal["dev", "test"], typer.Option(help="Part of the text or of the pairs.")
    ] = "dev",
    window: Annotated[int | None, typer.Option(help="Default: what the model can see.")] = None,
    stride: Annotated[int | None, typer.Option(help="Window step; default: window.")] = None,
    beams: Annotated[int, typer.Option(help="Of a translator, as in `translate`.")] = 4,
    tokenize: Annotated[
        str, typer.Option(help="Of BLEU, by target language: zh for Chinese, mostly 13a.")
    ] = "13a",
    device: DeviceName = "auto",
    download: Download = False,
    accept_terms: AcceptTerms = False,
    json: JsonOutput = False,
    config: ConfigFile = None,
) -> None:
    """Measure how well a model predicts a text, or translates; every token counts once.

    Perplexities of different tokenizers are not comparable; bits per character are. A stride
    below the window gives each token more to go by, and takes longer. A translator also gets BLEU
    and chrF, with the signatures that a report needs; one of words into phones gets error rates.
    For example:

        glassformer evaluate --model runs/decoder --split test --stride 32

        glassformer evaluate --model runs/decoder --text letters.txt --json

        glassformer evaluate --model runs/translator --source news.de --target news.en
    """
    writer, tokenizer = load_writer(model, device)
    if isinstance(writer, Decoder):
        if source is not None or target is not None:
            raise ConfigError(f"{model}: holds a Decoder, which does not translate; give --text")
        found = _of_text(model, writer, tokenizer, text, split, window, stride)
    else:
        if text is not None or window is not None or stride is not None:
            raise ConfigError(
                f"{model}: holds a translator; --text, --window and --stride are for language "
                "models, so give --source and --target, or --split"
            )
        name, part, pairs, phones = _pairs(model, source, target, split, download, accept_terms)
        found = {"text": name, "split": part}
        found |= _of_pairs(writer, tokenizer, pairs, beams, tokenize, phones)
    if json:
        print_json({name.lower().replace(" ", "_"): value for name, value in found.items()})
        return
    part = found.pop("split")
    found["text"] += f", {part}" if part else ""
    print_rows({name: format(value, FORMATS.get(name, "")) for name, value in found.items()})


def _of_text(
    folder: Path,
    model: Decoder,
    tokenizer: Tokenizer,
    text: Path | None,
    split: str,
    window: int | None,
    stride: int | None,
) -> dict[str, Any]:
    source = read_record(folder).get("run", {}).get("text") if text is None else str(text)
    longest = model.config.max_len
    window = longest if window is None else window
    if not 1 <= window <= longest:
        raise ConfigError(f"--window {window} must be from 1 to {longest}, all this model can see")
    lines = getattr(read_corpus(Recipe(text=source), saved=text is None), split)
    score = evaluate_nll(
        model,
        tokenizer.encode_stream(lines),
        window=window,
        stride=stride,
        n_chars=sum(len(line) + 1 for line in lines),
    )
    return {"text": source or "King James Bible", "split": split, **_surprise(score)}


def _surprise(score: Score) -> dict[str, Any]:
    return {
        "tokens": score.n_tokens,
        "nats per token": score.nll,
        "perplexity": score.perplexity,
        "bits per character": score.bits_per_character,
    }


def _pairs(
    folder: Path,
    source: Path | None,
    target: Path | None,
    split: str,
    download: bool,
    accept_terms: bool,
) -> tuple[str, str | None, Sequence[Pair], bool]:
    """The test set: its name, the part of it, its pairs, and whether the targets are phones."""
    if (source is None) != (target is None):
        raise ConfigError("a test set has two sides; give both --source and --target")
    if source is not None and target is not None:
        return f"{source}, {target}", None, read_pairs(source, target).pairs, False
    run = read_record(folder).get("run")
    try:
        recipe = recipe_from_dict(run if isinstance(run, dict) else {})
    except ConfigError as error:
        raise CheckpointError(
            f"{folder}: does not say which pairs it was trained on; give --source and --target"
        ) from error
    corpus = read_corpus(recipe, saved=True, download=download, accept_terms=accept_terms)
    if not isinstance(recipe, PairRecipe):
        raise CheckpointError(f"{folder}: was not trained on pairs; give --source and --target")
    name = recipe.data or f"{recipe.source}, {recipe.target}"
    return name, split, getattr(corpus, split), recipe.data == "cmudict"


def _of_pairs(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    beams: int,
    tokenize: str,
    phones: bool,
) -> dict[str, Any]:
    """Surprise at the references, and how close the translations come to them.

    A pair with a side that is too long for the model has no surprise, and a source that is too
    long has the empty translation. Both are counted, none is dropped in silence.
    """
    longest = model.config.max_len
    sources = tokenizer.encode_lines([source for source, _ in pairs], eos=True)
    targets = tokenizer.encode_lines([target for _, target in pairs], bos=True, eos=True)
    short = [
        i for i, source in enumerate(sources) if max(len(source), len(targets[i]) - 1) <= longest
    ]
    score = evaluate_pairs(
        model,
        [(sources[i], targets[i]) for i in short],
        pad_id=tokenizer.pad_id,
        n_chars=sum(len(pairs[i][1]) + 1 for i in short),
    )
    readable = {
        text: text if len(ids) <= longest else ""
        for (text, _), ids in zip(pairs, sources, strict=True)
    }
    texts = Translator(model, tokenizer).translate(list(readable.values()), n_beams=beams)
    written = dict(zip(readable, texts, strict=True))
    return {
        "pairs": len(pairs),
        "too long": len(pairs) - len(short),
        **_surprise(score),
        **(_phone_scores(written, pairs) if phones else _scores(written, pairs, tokenize)),
    }


def _scores(
    written: Mapping[str, str], pairs: Sequence[Pair], tokenize: str
) -> dict[str, float | str]:
    """BLEU and chrF of what was written for each source."""
    hypotheses, references = [written[source] for source, _ in pairs], [text for _, text in pairs]
    by_words = bleu(hypotheses, references, tokenize=tokenize)
    by_letters = chrf(hypotheses, references)
    return {
        "BLEU": by_words.score,
        "BLEU signature": by_words.signature,
        "chrF": by_letters.score,
        "chrF signature": by_letters.signature,
    }


def _phone_scores(written: Mapping[str, str], pairs: Sequence[Pair]) -> dict[str, float | str]:
    """Error rates; each word has all pronunciations that the pairs give it."""
    spoken: dict[str, list[list[str]]] = {}
    for word, phones in pairs:
        spoken.setdefault(word, []).append(phones.split())
    rates = error_rates([written[word].split() for word in spoken], list(spoken.values()))
    return {
        "words": rates.n_words,
        "phone error rate": rates.phone_error_rate,
        "word error rate": rates.word_error_rate,
    }
