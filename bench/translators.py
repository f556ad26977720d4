"""``python -m bench.translators``: three translators in the same minutes, recorded.

All train on the same pairs with the same tokenizer, on one thread, step by step in turn: whoever
has had the least processor time goes next, so that what else the machine does slows all of them
alike. Each has the best of three learning rates, the same for all (short runs, judged on dev).
Then it translates dev and test greedily. The results go into ``comparisons.json`` of the package,
where the book reads them.

- ``transformer``: the recipe of ``glassformer train``, norm before each sublayer
- ``post_norm``: the same with the norm after it
- ``lstm``: a bidirectional LSTM with attention (Bahdanau et al. 2015), of as many parameters
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from glassformer.data import ParallelCorpus, Tokenizer, encode_pairs
from glassformer.evaluation import bleu, chrf
from glassformer.models import EncoderDecoder
from glassformer.models.recurrent import RecurrentTranslator
from glassformer.training import PairBatches, PairRecipe, Trainer, TrainSettings, total_loss
from glassformer.translation import Translator
from torch import nn

from bench.machine import described
from bench.records import record_run

LENGTH = 64
KINDS = ("transformer", "post_norm", "lstm")
RATES = (5e-4, 1e-3, 2e-3)
LSTM_WIDTH = 432


class Run(NamedTuple):
    trainer: Trainer
    seconds: float


def compare(minutes: float, search: float, recipe: PairRecipe) -> dict[str, Any]:
    """Search the learning rates, train, measure."""
    corpus = recipe.corpus()
    tokenizer = recipe.tokenizer(corpus)
    train, dev = (
        PairBatches(
            encode_pairs(part, tokenizer, max_len=LENGTH),
            recipe.max_tokens,
            pad_id=tokenizer.pad_id,
            bos_id=tokenizer.bos_id,
            seed=recipe.seed,
        )
        for part in (corpus.train, corpus.dev)
    )

    def trained(rates: Mapping[str, float], steps: Mapping[str, int]) -> dict[str, Run]:
        trainers = {}
        for kind, lr in rates.items():
            settings = _settings(recipe, lr, steps[kind])
            trainers[kind] = Trainer(_model(kind, recipe, tokenizer), train, settings)
        spent = _in_turn({kind: trainer.run() for kind, trainer in trainers.items()})
        return {kind: Run(trainer, spent[kind]) for kind, trainer in trainers.items()}

    def steps_in(minutes: float, runs: Mapping[str, Run]) -> dict[str, int]:
        return {
            kind: int(minutes * 60 * run.trainer.step / run.seconds) for kind, run in runs.items()
        }

    runs = trained(dict.fromkeys(KINDS, RATES[0]), dict.fromkeys(KINDS, 30))
    searched: dict[str, dict[float, float]] = {kind: {} for kind in KINDS}
    for lr in RATES:
        runs = trained(dict.fromkeys(KINDS, lr), steps_in(search, runs))
        for kind, run in runs.items():
            searched[kind][lr] = round(total_loss(run.trainer.model, dev).mean_nll, 4)
        print(lr, {kind: rates[lr] for kind, rates in searched.items()}, flush=True)
    best = {kind: min(rates, key=lambda lr: rates[lr]) for kind, rates in searched.items()}
    runs = trained(best, steps_in(minutes, runs))
    return {
        kind: {
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "minutes": round(seconds / 60, 2),
            "search": {"minutes": search, "dev nats per token": searched[kind]},
            "lr": best[kind],
            "steps": trainer.step,
            "target_tokens": sum(report.n_tokens for report in trainer.history),
            "dev_nats_per_token": round(total_loss(trainer.model, dev).mean_nll, 4),
            **{part: _scores(trainer.model, tokenizer, corpus, part) for part in ("dev", "test")},
        }
        for kind, (trainer, seconds) in runs.items()
    }


def _model(kind: str, recipe: PairRecipe, tokenizer: Tokenizer) -> nn.Module:
    torch.manual_seed(recipe.seed)
    config = recipe.config(tokenizer.vocab_size, tokenizer.pad_id)
    if kind == "lstm":
        return RecurrentTranslator(tokenizer.vocab_size, LSTM_WIDTH, dropout=recipe.dropout)
    place = "post" if kind == "post_norm" else "pre"
    return EncoderDecoder(dataclasses.replace(config, norm_position=place))


def _settings(recipe: PairRecipe, lr: float, steps: int) -> TrainSettings:
    """The learning rate comes up in a tenth of the steps and ends at a tenth of its peak."""
    return dataclasses.replace(
        recipe.settings(),
        lr=lr,
        steps=steps,
        warmup=steps // 10,
        eval_every=None,
        average=1,
        schedule="cosine",
    )


def _in_turn(runs: Mapping[str, Iterator[Any]]) -> dict[str, float]:
    """Seconds of processor time that each run took; the one with the least goes next."""
    spent = dict.fromkeys(runs, 0.0)
    waiting = dict(runs)
    while waiting:
        kind = min(waiting, key=lambda kind: spent[kind])
        start = time.process_time()
        if next(waiting[kind], None) is None:
            del waiting[kind]
        spent[kind] += time.process_time() - start
    return spent


def _scores(
    model: nn.Module, tokenizer: Tokenizer, corpus: ParallelCorpus, part: str
) -> dict[str, Any]:
    pairs = getattr(corpus, part)
    written = dict.fromkeys(sorted({source for source, _ in pairs}, key=len), "")
    short = [text for text in written if len(tokenizer.encode(text, eos=True)) <= LENGTH]
    if isinstance(model, EncoderDecoder):
        texts = Translator(model.eval(), tokenizer).translate(short, n_beams=1)
    else:
        texts = greedy(model, tokenizer, short)
    written |= zip(short, texts, strict=True)  # longer than any pair trained on: nothing
    hypotheses, references = [written[source] for source, _ in pairs], [text for _, text in pairs]
    words, letters = bleu(hypotheses, references), chrf(hypotheses, references)
    return {
        "pairs": len(pairs),
        "bleu": round(words.score, 2),
        "bleu_signature": words.signature,
        "chrf": round(letters.score, 2),
    }


@torch.no_grad()
def greedy(
    model: nn.Module, tokenizer: Tokenizer, sources: Sequence[str], batch_size: int = 128
) -> list[str]:
    """The likeliest token again and again, for any model of sources and targets; no cache."""
    texts: list[str] = []
    for start in range(0, len(sources), batch_size):
        texts += _greedy_batch(model.eval(), tokenizer, sources[start : start + batch_size])
    return texts


def _greedy_batch(model: nn.Module, tokenizer: Tokenizer, sources: Sequence[str]) -> list[str]:
    ids = [tokenizer.encode(text, eos=True) for text in sources]
    width = max(map(len, ids))
    source = torch.tensor([row + [tokenizer.pad_id] * (width - len(row)) for row in ids])
    target = torch.full((len(ids), 1), tokenizer.bos_id)
    done = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(LENGTH - 1):
        logits = model(source, target, source_mask=source != tokenizer.pad_id)[:, -1]
        token = logits.argmax(-1).masked_fill(done, tokenizer.eos_id)
        target = torch.cat([target, token[:, None]], dim=1)
        done |= token == tokenizer.eos_id
        if bool(done.all()):
            break
    rows = target[:, 1:].tolist()
    ends = [(*row, tokenizer.eos_id).index(tokenizer.eos_id) for row in rows]
    return [tokenizer.decode(row[:end]) for row, end in zip(rows, ends, strict=True)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.translators", description=__doc__)
    parser.add_argument("--minutes", type=float, default=40, help="of processor time for each")
    parser.add_argument("--search", type=float, default=2, help="minutes of each learning rate")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recipe = PairRecipe(
        data="tatoeba-deu-eng",
        preset="base",
        vocab_size=6000,
        length=LENGTH,
        max_tokens=2048,
        precision="bfloat16",
    )
    runs = compare(given.minutes, given.search, recipe)
    found = {kind: run | {"made_with": described()} for kind, run in runs.items()}
    print(json.dumps(found), flush=True)
    record_run("same minutes", found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
