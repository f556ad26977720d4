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
from glassformer.cli.corpora import texts_of
from glassformer.cli.folders import load_writer
from glassformer.cli.terminal import clean_errors, print_json, print_rows
from glassformer.data import Tokenizer, read_pairs
from glassformer.errors import ConfigError, DataError
from glassformer.evaluation import (
    Score,
    bleu,
    chrf,
    error_rates,
    evaluate_nll,
    evaluate_pairs,
)
from glassformer.models import Decoder, EncoderDecoder
from glassformer.training import read_record
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
        Literal["dev", "test"] | None,
        typer.Option(help="Part of the text or of the pairs of the training; default: dev."),
    ] = None,
    window: Annotated[int | None, typer.Option(help="Default: what the model can see.")] = None,
    stride: Annotated[int | None, typer.Option(help="Window step; default: window.")] = None,
    beams: Annotated[
        int | None, typer.Option(help="Of a translator, as in `translate`; default: 4.")
    ] = None,
    tokenize: Annotated[
        str | None, typer.Option(help="Of BLEU: zh where the target is Chinese; default: 13a.")
    ] = None,
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
    if isinstance(writer, EncoderDecoder) and (window, stride) != (None, None):
        raise ConfigError(
            f"{model}: holds an EncoderDecoder; --window and --stride are for long texts of "
            "language models, so leave them out"
        )
    if isinstance(writer, Decoder) and (beams, tokenize) != (None, None):
        raise ConfigError(
            f"{model}: holds a Decoder; --beams and --tokenize are for translators, so leave "
            "them out"
        )
    if beams is not None and beams < 1:
        raise ConfigError(f"--beams {beams} must be at least 1")
    if tokenize is not None:
        bleu(["one"], ["one"], tokenize=tokenize)  # an unknown name is refused before the work
    part: Any
    if isinstance(writer, EncoderDecoder) and source is not None and target is not None:
        if split is not None:
            raise ConfigError(
                f"--source and --target are a test set, taken whole; leave out --split {split}"
            )
        name, part = f"{source}, {target}", read_pairs(source, target).pairs
    else:
        texts = texts_of(
            model,
            writer,
            text=text,
            source=source,
            target=target,
            download=download,
            accept_terms=accept_terms,
        )
        split = split or "dev"
        name, part = texts.name, getattr(texts.corpus, split)
    found: dict[str, Any] = {"text": name, "split": split}
    if isinstance(writer, Decoder):
        _print(found | _of_text(writer, tokenizer, part, window, stride), json)
        return
    found |= _of_pairs(writer, tokenizer, part)
    try:
        written = _written(writer, tokenizer, part, beams or 4)
        found |= (
            _phone_scores(written, part) if _speaks(model) else _scores(written, part, tokenize)
        )
    finally:  # a reference that cannot be scored does not cost the surprise
        _print(found, json)


def _print(found: dict[str, Any], json: bool) -> None:
    if json:
        print_json({name.lower().replace(" ", "_"): value for name, value in found.items()})
        return
    part = found.pop("split")
    found["text"] += f", {part}" if part else ""
    print_rows({name: format(value, FORMATS.get(name, "")) for name, value in found.items()})


def _speaks(folder: Path) -> bool:
    """Whether the model was trained on words and their phones."""
    run = read_record(folder).get("run")
    return isinstance(run, dict) and run.get("data") == "cmudict"


def _of_text(
    model: Decoder,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    window: int | None,
    stride: int | None,
) -> dict[str, Any]:
    longest = model.config.max_len
    window = longest if window is None else window
    if not 1 <= window <= longest:
        raise ConfigError(f"--window {window} must be from 1 to {longest}, all this model can see")
    score = evaluate_nll(
        model,
        tokenizer.encode_stream(lines),
        window=window,
        stride=stride,
        n_chars=sum(len(line) + 1 for line in lines),
    )
    return _surprise(score)


def _surprise(score: Score) -> dict[str, Any]:
    return {
        "tokens": score.n_tokens,
        "nats per token": score.nll,
        "perplexity": score.perplexity,
        "bits per character": score.bits_per_character,
    }


def _of_pairs(model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Surprise at the references; a pair with a side too long for the model is only counted."""
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
    return {"pairs": len(pairs), "too long": len(pairs) - len(short), **_surprise(score)}


def _written(
    model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[Pair], beams: int
) -> dict[str, str]:
    """The translation of each source; that of one too long for the model is empty."""
    sources = list(dict.fromkeys(source for source, _ in pairs))
    readable = [
        source if len(ids) <= model.config.max_len else ""
        for source, ids in zip(sources, tokenizer.encode_lines(sources, eos=True), strict=True)
    ]
    texts = Translator(model, tokenizer).translate(readable, n_beams=beams)
    return dict(zip(sources, texts, strict=True))


def _scores(
    written: Mapping[str, str], pairs: Sequence[Pair], tokenize: str | None
) -> dict[str, float | str]:
    """BLEU and chrF of what was written for each source.

    Raises:
        DataError: texts that are not plain, or whose words have no blanks between them.
    """
    hypotheses, references = [written[source] for source, _ in pairs], [text for _, text in pairs]
    try:
        by_words = bleu(hypotheses, references, tokenize=tokenize or "13a")
        by_letters = chrf(hypotheses, references)
    except DataError as error:  # its remedies are functions of the package
        why = str(error).rpartition(";")[0]
        raise DataError(
            f"no BLEU and no chrF: {why}; give plain text, and --tokenize zh if it is Chinese"
        ) from error
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
