"""``python -m bench.translators KIND``: other translators in the same minutes, recorded.

Each kind trains on the same pairs with the same tokenizer, for the same processor time on one
thread, at the best of three learning rates, the same for all (short runs, judged on dev). Then it
translates dev and test greedily. The results of all kinds gather in ``comparisons.json`` of the
package, where the book reads them.

- ``transformer``: the recipe of ``glassformer train``, norm before each sublayer
- ``post_norm``: the same with the norm after it
- ``lstm``: a bidirectional LSTM with attention (Bahdanau et al. 2015), of as many parameters
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from glassformer.data import ParallelCorpus, Tokenizer, encode_pairs
from glassformer.evaluation import bleu, chrf
from glassformer.models import EncoderDecoder
from glassformer.models.recurrent import RecurrentTranslator
from glassformer.pretrained import COMPARISONS
from glassformer.training import PairBatches, PairRecipe, Trainer, TrainSettings, total_loss
from glassformer.translation import Translator
from torch import nn

from bench.machine import described

LENGTH = 64
KINDS = ("transformer", "post_norm", "lstm")
RATES = (5e-4, 1e-3, 2e-3)
LSTM_WIDTH = 432


def compare(kind: str, minutes: float, search: float, recipe: PairRecipe) -> dict[str, Any]:
    """Search the learning rate, train, measure."""
    corpus = recipe.corpus()
    tokenizer = recipe.tokenizer(corpus)
    parts = {
        part: PairBatches(
            encode_pairs(getattr(corpus, part), tokenizer, max_len=LENGTH),
            recipe.max_tokens,
            pad_id=tokenizer.pad_id,
            bos_id=tokenizer.bos_id,
            seed=recipe.seed,
        )
        for part in ("train", "dev")
    }

    def trained(lr: float, minutes: float, pace: float) -> tuple[Trainer, float]:
        steps = int(minutes * 60 / pace)
        return _trained(_model(kind, recipe, tokenizer), recipe, parts["train"], lr, steps)

    searched = {}
    pace = _pace(_model(kind, recipe, tokenizer), recipe, parts["train"])
    for lr in RATES:
        trainer, spent = trained(lr, search, pace)
        pace = spent / trainer.step
        searched[lr] = round(total_loss(trainer.model, parts["dev"]).mean_nll, 4)
        print(kind, lr, searched[lr], flush=True)
    best = min(searched, key=lambda lr: searched[lr])
    trainer, spent = trained(best, minutes, pace)
    return {
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "minutes": round(spent / 60, 2),
        "search": {"minutes": search, "dev nats per token": searched},
        "lr": best,
        "steps": trainer.step,
        "target_tokens": sum(report.n_tokens for report in trainer.history),
        "dev_nats_per_token": round(total_loss(trainer.model, parts["dev"]).mean_nll, 4),
        **{part: _scores(trainer.model, tokenizer, corpus, part) for part in ("dev", "test")},
    }


def _model(kind: str, recipe: PairRecipe, tokenizer: Tokenizer) -> nn.Module:
    torch.manual_seed(recipe.seed)
    config = recipe.config(tokenizer.vocab_size, tokenizer.pad_id)
    if kind == "lstm":
        return RecurrentTranslator(tokenizer.vocab_size, LSTM_WIDTH, dropout=recipe.dropout)
    place = "post" if kind == "post_norm" else "pre"
    return EncoderDecoder(dataclasses.replace(config, norm_position=place))


def _pace(model: nn.Module, recipe: PairRecipe, data: PairBatches) -> float:
    """Seconds of a step, without the first ones, which are slow."""
    settings = dataclasses.replace(_settings(recipe), lr=1e-3, steps=25, warmup=20)
    runs = Trainer(model, data, settings).run()
    for _ in range(5):
        next(runs)
    start = time.process_time()
    n_steps = len(list(runs))
    return (time.process_time() - start) / n_steps


def _trained(
    model: nn.Module, recipe: PairRecipe, data: PairBatches, lr: float, steps: int
) -> tuple[Trainer, float]:
    """A trained model and its processor time; the learning rate ends at a tenth of its peak."""
    settings = dataclasses.replace(_settings(recipe), lr=lr, steps=steps, warmup=steps // 10)
    torch.manual_seed(recipe.seed)
    trainer = Trainer(model, data, settings)
    start = time.process_time()
    for _ in trainer.run():
        pass
    return trainer, time.process_time() - start


def _settings(recipe: PairRecipe) -> TrainSettings:
    return dataclasses.replace(recipe.settings(), eval_every=None, average=1, schedule="cosine")


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
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--minutes", type=float, default=12, help="of processor time on one thread")
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
    for kind in given.kinds:
        found = compare(kind, given.minutes, given.search, recipe) | {"made_with": described()}
        print(json.dumps(found), flush=True)
        known = json.loads(COMPARISONS.read_text()) if COMPARISONS.exists() else {}
        known.setdefault("same minutes", {})[kind] = found
        COMPARISONS.write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
