"""``python -m bench.ratios``: how wide should the feed-forward network be, at equal size? Recorded.

Decoders of two layers with as many parameters each, which spend them differently: the wider the
feed-forward network is for its input, the narrower is the whole model. All read the King James
Bible character by character and are judged on dev; each has the best of three learning rates. The
results go into ``comparisons.json`` of the package, where the book reads them.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

import torch
from glassformer import DecoderConfig
from glassformer.costs import parameter_count
from glassformer.data import load_king_james, windows
from glassformer.evaluation import evaluate_nll
from glassformer.models import Decoder
from glassformer.training import Trainer, TrainSettings, WindowBatches

from bench.machine import described
from bench.records import record_run

LENGTH = 64
RATIOS = (1, 2, 4, 8, 16)
RATES = (2e-3, 4e-3, 8e-3)
SEEDS = 3


def equal_sizes(vocab_size: int) -> list[DecoderConfig]:
    """For each ratio the width that comes closest to it with the parameters of width 64, ratio 4.

    The width is a multiple of 4 (two heads, rotary positions); ``d_ff`` then fills the budget.
    """
    start = DecoderConfig(
        vocab_size=vocab_size,
        d_model=64,
        n_heads=2,
        n_layers=2,
        d_ff=256,
        max_len=LENGTH,
        activation="gelu",
    )
    budget = parameter_count(start)
    found = []
    for d_model in range(16, 128, 4):
        narrow, wider = (replace(start, d_model=d_model, d_ff=d_ff) for d_ff in (1, 2))
        a, b = parameter_count(narrow), parameter_count(wider)  # linear in d_ff
        d_ff = 1 + round((budget - a) / (b - a))
        if d_ff > 0:
            found.append(replace(start, d_model=d_model, d_ff=d_ff))

    def off(config: DecoderConfig, ratio: int) -> float:
        return abs(math.log(config.ff_size / config.d_model / ratio))

    return [min(found, key=lambda config: off(config, ratio)) for ratio in RATIOS]


def compare(steps: int) -> list[dict[str, object]]:
    """Dev losses of every size: natural logarithm, per character."""
    corpus = load_king_james()
    train, dev = ("\n".join(part) for part in (corpus.train, corpus.dev))
    letters = {letter: i for i, letter in enumerate(sorted(set(train) | set(dev)))}
    ids, dev_ids = (torch.tensor([letters[c] for c in text]) for text in (train, dev))
    views = windows(ids, LENGTH, LENGTH)

    def dev_loss(config: DecoderConfig, lr: float, seed: int) -> float:
        torch.manual_seed(seed)
        settings = TrainSettings(steps=steps, lr=lr, warmup=steps // 20)
        trainer = Trainer(Decoder(config), WindowBatches(views, 16, seed=seed), settings)
        for _ in trainer.run():
            pass
        return round(evaluate_nll(trainer.model, dev_ids, window=LENGTH).nll, 4)

    table = []
    for config in equal_sizes(len(letters)):
        losses: dict[float, list[float]] = {lr: [] for lr in RATES}
        for lr, seed in itertools.product(RATES, range(SEEDS)):
            losses[lr].append(dev_loss(config, lr, seed))
        best = min(RATES, key=lambda lr: mean(losses[lr]))
        table.append(
            {
                "d_model": config.d_model,
                "d_ff": config.ff_size,
                "parameters": parameter_count(config),
                "dev nats per character": losses,
                "lr": best,
            }
        )
        row = f"{config.d_model} {config.ff_size} {mean(losses[best]):.3f}"
        print(f"{row} ± {stdev(losses[best]):.3f}", flush=True)
    return table


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ratios", description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run = {"steps": given.steps, "sizes": compare(given.steps), "made_with": described()}
    record_run("ratios", run)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
