"""``python -m bench.ship RUN NAME``: put a finished run into the package, measured.

RUN is a folder that ``glassformer train`` wrote. Its best weights become the model NAME of
``glassformer.load_pretrained``, in 8 bits, with a record of how they came about and what they can
do. Every score is that of ``glassformer evaluate``: on dev and test, greedy and with four beams,
with the weights of the run and with those that ship. Nothing is chosen here, so test is looked at
for the record alone.

With ``--only-record`` the model stays where it is, and its record joins those that
``glassformer.pretrained.recorded_runs`` gives.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from glassformer.data import generate_triples, load_phrasebook
from glassformer.data.cmudict import FILE as CMUDICT
from glassformer.data.tatoeba import EDITIONS
from glassformer.evaluation import align, alignment_score, bleu, bleu_tokenizer, chrf
from glassformer.introspect import word_maps
from glassformer.pretrained import pretrained_folder, recorded_runs
from glassformer.training import (
    PairRecipe,
    load_checkpoint,
    load_tokenizer,
    read_record,
    save_model,
)
from glassformer.translation import Translator, load_translator

from bench.machine import described
from bench.records import record_run, write_json

N_ALIGNED = 500
FILES = {"cmudict": CMUDICT} | {f"tatoeba-{name}": e.file for name, e in EDITIONS.items()}
FILES |= {f"tatoeba-{'-'.join(name.split('-')[::-1])}": e.file for name, e in EDITIONS.items()}


def ship(run: Path, name: str, note: str) -> None:
    """Write the model, measure it, and write its record."""
    folder = pretrained_folder(name)
    before = read_record(run)
    save_model(
        folder, load_translator(run).model, load_tokenizer(run), run=before["run"], small=True
    )
    record = read_record(folder) | measured(run, {"float32": run, "shipped": folder}, note)
    if record["data"]["name"] == "tatoeba-deu-eng":
        shipped = load_translator(folder)
        record["phrasebook"] = [phrasebook_scores(shipped, beams) for beams in (1, 4)]
        record["alignment"] = alignment(shipped)
    write_json(folder / "record.json", record)


def only_record(run: Path, name: str, note: str) -> None:
    """Measure a model that does not come along, and put it among the recorded runs."""
    found = {"parameters": read_record(run)["parameters"]} | measured(run, {"float32": run}, note)
    record_run("alone", recorded_runs().get("alone", {}) | {name: found})


def measured(run: Path, models: Mapping[str, Path], note: str) -> dict[str, Any]:
    """The data, the training and the scores: of each kind of weights, part and number of beams."""
    recipe = PairRecipe.from_dict(read_record(run)["run"])
    return {
        "data": _data(recipe),
        "training": _training(run, recipe) | {"note": note},
        "made_with": described(),
        "scores": [
            {
                "weights": weights,
                "part": part,
                "beams": beams,
                **_evaluated(model, part, beams, bleu_tokenizer(str(recipe.data).split("-")[-1])),
            }
            for weights, model in models.items()
            for part in ("dev", "test")
            for beams in (1, 4)
        ],
    }


def phrasebook_scores(translator: Translator, beams: int) -> dict[str, Any]:
    """BLEU and chrF on the sentences that come with the package."""
    phrases = load_phrasebook()
    written = translator.translate([phrase.german for phrase in phrases], n_beams=beams)
    english = [phrase.english for phrase in phrases]
    words, letters = bleu(written, english), chrf(written, english)
    return {
        "beams": beams,
        "sentences": len(phrases),
        "bleu": round(words.score, 2),
        "bleu_signature": words.signature,
        "chrf": round(letters.score, 2),
        "chrf_signature": letters.signature,
    }


def alignment(translator: Translator) -> dict[str, Any]:
    """How well each layer's cross-attention, mean over its heads, finds the gold links."""
    triples = generate_triples(N_ALIGNED)
    found: dict[str, list[set[tuple[int, int]]]] = {}
    for triple in triples:
        pair = triple.german_text, triple.english_text
        for layer, heads in word_maps(translator.model, translator.tokenizer, *pair).writes.items():
            found.setdefault(layer, []).append(align(heads.mean(dim=0)))
    gold = [set(triple.german_english) for triple in triples]
    scores = {layer: alignment_score(links, gold) for layer, links in found.items()}
    return {
        "sentences": N_ALIGNED,
        "text": f"glassformer.data.generate_triples({N_ALIGNED})",
        "method": "strongest source word of each target word, as the query that writes it",
        "layers": {
            layer: {"precision": round(score.precision, 4), "aer": round(score.aer, 4)}
            for layer, score in scores.items()
        },
    }


def _data(recipe: PairRecipe) -> dict[str, Any]:
    corpus = recipe.corpus()
    file = FILES[str(recipe.data)]
    return {
        "name": recipe.data,
        "file": file.name,
        "sha256": file.sha256,
        "attribution": corpus.attribution,
        "split": "MD5 of the English sentence modulo 1000: below 20 test, below 30 dev, else train"
        if recipe.data != "cmudict"
        else "MD5 of the word modulo 1000: below 20 test, below 30 dev, else train",
        "pairs": {part: len(getattr(corpus, part)) for part in ("train", "dev", "test")},
        "left_out": corpus.n_dropped,
    }


def _training(run: Path, recipe: PairRecipe) -> dict[str, Any]:
    """The settings and the curve: every evaluation, with the mean loss of the steps before it."""
    trainer = recipe.trainer(recipe.corpus(), load_tokenizer(run), torch.device("cpu"))
    load_checkpoint(run, trainer)
    curve, losses, tokens = [], 0.0, 0
    for report in trainer.history:
        losses += report.loss * report.n_tokens
        tokens += report.n_tokens
        if report.dev_loss is not None:
            curve.append([report.step, round(losses / tokens, 4), round(report.dev_loss, 4)])
            losses, tokens = 0.0, 0
    return {
        "settings": trainer.settings.to_dict(),
        "steps": trainer.step,
        "best_step": trainer.best.step,
        "best_dev_loss": round(trainer.best.loss, 4),
        "target_tokens": sum(report.n_tokens for report in trainer.history),
        "minutes": round(sum(report.seconds for report in trainer.history) / 60, 1),
        "curve": {"columns": ["step", "train nats per token", "dev nats per token"], "rows": curve},
    }


def _evaluated(model: Path, part: str, beams: int, tokenize: str) -> dict[str, Any]:
    command = ["evaluate", "--model", str(model), "--split", part, "--beams", str(beams), "--json"]
    command += ["--tokenize", tokenize]
    said = subprocess.run(
        [sys.executable, "-m", "glassformer", *command], capture_output=True, text=True, check=True
    )
    found = json.loads(said.stdout)
    print(model.name, part, beams, found, flush=True)
    return {
        key: round(value, 4) if isinstance(value, float) and math.isfinite(value) else value
        for key, value in found.items()
        if key not in ("text", "split")
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ship", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--note", default="", help="what else to know about the run")
    parser.add_argument("--only-record", action="store_true", help="the model stays where it is")
    given = parser.parse_args(arguments)
    (only_record if given.only_record else ship)(given.run, given.name, given.note)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
