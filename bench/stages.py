"""``python -m bench.stages``: what a language model learns when, recorded over 30,000 steps.

The run of the training chapter, 25 times as long. Along the way the model answers three kinds of
questions that no count of pairs of tokens can answer, because the words before the answers are the
same, or point the wrong way:

- *number*: after "The king of the city" and "The kings of the city", *was* or *were*?
- *subject*: after "The king of the cities" and "The kings of the city", *was* or *were*?
- *names*: after "And Joshua the son of" and "And Caleb the son of", *Nun* or *Jephunneh*?

Each question is *crossed*: it is right if the two likely sentences together are likelier than the
two swapped ones. So a word that is likely everywhere gains nothing, and who knows nothing is right
half the time. The results go into ``comparisons.json`` of the package, where the book reads them.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence

import torch
from glassformer.data import Tokenizer
from glassformer.evaluation import evaluate_nll, evaluating
from glassformer.training import Recipe
from torch import nn

from bench.machine import described
from bench.records import record_run

NOUNS = (
    "king/kings son/sons man/men servant/servants prophet/prophets priest/priests city/cities "
    "daughter/daughters elder/elders child/children house/houses word/words"
)
TAILS = ("of the city", "of Israel", "of the people", "of the LORD")
NEIGHBOURS = ("city/cities", "house/houses", "king/kings", "prophet/prophets")
VERBS = ("was/were", "is/are", "hath/have")
FATHERS = (  # each "X the son of Y" stands at least five times in the training part
    "Joshua/Nun Caleb/Jephunneh Jeroboam/Nebat David/Jesse Phinehas/Eleazar Eleazar/Aaron "
    "Abner/Ner Joab/Zeruiah Solomon/David Isaiah/Amoz Gedaliah/Ahikam Baruch/Neriah Sheba/Bichri "
    "Ishmael/Nethaniah Johanan/Kareah Balaam/Beor Balak/Zippor Benaiah/Jehoiada Rehoboam/Solomon "
    "Pekah/Remaliah"
)


def questions() -> dict[str, list[tuple[tuple[str, str], tuple[str, str]]]]:
    """Two beginnings and the two words that go on with them, in this order."""
    nouns, neighbours, verbs, fathers = (
        [(one, other) for one, other in (pair.split("/") for pair in pairs)]
        for pairs in (NOUNS.split(), NEIGHBOURS, VERBS, FATHERS.split())
    )
    return {
        "number": [
            ((f"The {one} {tail}", f"The {many} {tail}"), verb)
            for (one, many), tail, verb in itertools.product(nouns, TAILS, verbs)
        ],
        "subject": [
            ((f"The {one} of the {near_many}", f"The {many} of the {near_one}"), verb)
            for (one, many), (near_one, near_many), verb in itertools.product(
                nouns, neighbours, verbs
            )
            if one != near_one
        ],
        "names": [
            ((f"And {a} the son of", f"And {b} the son of"), (father_a, father_b))
            for (a, father_a), (b, father_b) in itertools.combinations(fathers, 2)
        ],
    }


def share_right(
    model: nn.Module,
    tokenizer: Tokenizer,
    crossed: Sequence[tuple[tuple[str, str], tuple[str, str]]],
) -> float:
    """Share of crossed questions that the model gets right; a tie is half right."""
    wanted = sorted({pair for starts, ends in crossed for pair in itertools.product(starts, ends)})
    scores = dict(zip(wanted, _log_probs(model, tokenizer, wanted), strict=True))
    right = 0.0
    for (a, b), (end_a, end_b) in crossed:
        gain = (scores[a, end_a] - scores[b, end_a]) - (scores[a, end_b] - scores[b, end_b])
        right += 0.5 if gain == 0 else float(gain > 0)
    return right / len(crossed)


def _log_probs(
    model: nn.Module, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], size: int = 256
) -> Iterator[float]:
    """Natural logarithm of the probability of each end, given its beginning."""
    for first in range(0, len(pairs), size):
        starts, ends = (
            [tokenizer.encode(text) for text in texts]
            for texts in zip(*pairs[first : first + size], strict=True)
        )
        width = max(len(start) + len(end) for start, end in zip(starts, ends, strict=True))
        ids = torch.full((len(starts), width), tokenizer.pad_id)
        for row, start, end in zip(ids, starts, ends, strict=True):
            row[: len(start) + len(end)] = torch.tensor(start + end)
        with evaluating(model):
            log_p = model(ids).double().log_softmax(-1)
        for table, start, end in zip(log_p, starts, ends, strict=True):
            places = torch.arange(len(end)) + len(start) - 1
            yield table[places, torch.tensor(end)].sum().item()


def _looks(steps: int) -> list[int]:
    """Steps to look at: dense at the start, then every thousandth."""
    early = (100, 200, 400, 700, 1000, 1500)
    return sorted({n for n in (*early, *range(2000, steps, 1000), steps) if n <= steps})


def watch(recipe: Recipe) -> list[dict[str, float]]:
    """Train, and say at each look: the mean training loss of the steps just before (1,000 of them,
    or the last tenth of all), the loss on dev, and the shares right."""
    corpus = recipe.corpus()
    tokenizer = recipe.tokenizer(corpus)
    dev = torch.tensor(tokenizer.encode_stream(corpus.dev))
    trainer = recipe.trainer(corpus, tokenizer, torch.device("cpu"))
    looks, found = set(_looks(recipe.steps)), []
    for report in trainer.run():
        if report.step not in looks:
            continue
        span = min(1000, max(1, report.step // 10))
        look = {
            "step": report.step,
            "train": sum(r.loss for r in trainer.history[-span:]) / span,
            "dev": evaluate_nll(trainer.model, dev, window=recipe.length).nll,
            **{
                kind: share_right(trainer.model, tokenizer, crossed)
                for kind, crossed in questions().items()
            },
        }
        found.append({name: round(value, 3) for name, value in look.items()})
        print(*(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__)
    parser.add_argument("--steps", type=int, default=30_000)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recipe = Recipe(
        preset="small", vocab_size=2048, length=64, batch_size=8, warmup=50, steps=given.steps
    )
    run = {"looks": watch(recipe), "made_with": described()}
    record_run("stages", run)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
