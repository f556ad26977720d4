"""Recipes: plain values in, a run out, the same run again."""

import dataclasses
import json
import math

import pytest
import torch
from glassformer import DecoderConfig, EncoderDecoderConfig
from glassformer.data import ParallelCorpus, PronouncingDictionary
from glassformer.errors import ConfigError, DataError
from glassformer.training import PairRecipe, Recipe, RunRecipe, pair_recipe, recipe_from_dict
from support.runs import digest

CPU = torch.device("cpu")
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def spelt(number, words):
    return " ".join(words[int(digit)] for digit in str(number))


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "numbers.de", tmp_path / "numbers.en"
    for path, words in zip(paths, (ZAHLEN, NUMBERS), strict=True):
        path.write_text("".join(f"{spelt(n, words)}\n" for n in range(400)), encoding="utf-8")
    return {"source": str(paths[0]), "target": str(paths[1])}


TINY = {"preset": "tiny", "vocab_size": 293, "length": 23, "max_tokens": 199, "steps": 7}


def start(files, **changes):
    recipe = PairRecipe(**files, **{**TINY, **changes})
    corpus = recipe.corpus()
    return recipe.trainer(corpus, recipe.tokenizer(corpus), CPU)


def test_two_files_become_a_run(files):
    recipe = PairRecipe(**files, **TINY, average=2, eval_every=3)
    corpus = recipe.corpus()
    assert len(corpus.train) + len(corpus.dev) + len(corpus.test) == 400
    tokenizer = recipe.tokenizer(corpus)
    assert tokenizer.vocab_size == 293
    for text in ("sieben drei", "seven three", "Ünknown ☂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    trainer = recipe.trainer(corpus, tokenizer, CPU)
    assert isinstance(trainer.model.config, EncoderDecoderConfig)
    assert (trainer.model.config.n_layers, trainer.model.config.encoder_layers) == (1, 1)
    reports = list(trainer.run())
    assert [r.step for r in reports if r.dev_loss is not None] == [3, 6, 7]
    assert reports[0].loss == pytest.approx(math.log(293), rel=0.1)
    assert reports[-1].dev_loss < reports[0].loss
    batch = trainer.data.load([0])
    source, target = corpus.train[0]
    assert batch.source[0].tolist() == tokenizer.encode(source, eos=True)
    assert batch.inputs[0].tolist() == tokenizer.encode(target, bos=True)
    assert batch.targets[0].tolist() == tokenizer.encode(target, eos=True)


def test_the_same_recipe_gives_the_same_model(files):
    digests = []
    for seed in (3, 3, 4):
        trainer = start(files, seed=seed)
        list(trainer.run(until=2))
        digests.append(digest(trainer.model))
    assert digests[0] == digests[1] != digests[2]


def test_pairs_that_are_too_long_are_left_out_of_training_and_dev_loss(files):
    short = start(files, length=9)
    assert 0 < len(short.data.examples) < len(start(files).data.examples)
    assert short.data.examples.n_too_long > 0
    assert max(map(max, short.data.examples.lengths)) <= 9
    assert math.isfinite(short.evaluate())


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(text="a.txt", stride=17, patience=3, average=2),
        PairRecipe(data="cmudict", max_tokens=999),
        PairRecipe(source="a", target="b", lr=1e-3),
    ],
)
def test_a_recipe_comes_back_from_json(recipe):
    data = json.loads(json.dumps(recipe.to_dict()))
    assert recipe_from_dict(data) == recipe
    assert isinstance(recipe, RunRecipe)
    with pytest.raises(ConfigError, match="Recipe has no seeed"):
        recipe_from_dict({**data, "seeed": 3})
    with pytest.raises(ConfigError, match="wrong type"):
        recipe_from_dict({**data, "steps": "many"})
    filled = recipe.filled()
    assert filled.settings() == recipe.settings()
    assert filled.save_every == filled.eval_every == recipe.steps // 10


def test_a_recipe_from_before_a_field_was_there_has_its_default():
    data = Recipe(text="a.txt", steps=17).to_dict()
    del data["average"], data["patience"]
    assert recipe_from_dict(data) == Recipe(text="a.txt", steps=17)
    with pytest.raises(ConfigError, match="it is empty"):
        recipe_from_dict({})


def test_both_recipes_share_the_knobs_and_differ_where_they_must():
    text, pairs = Recipe(preset="base"), PairRecipe(preset="base", data="cmudict")
    config = text.config(2048)
    assert type(config) is DecoderConfig
    assert (config.d_model, config.n_heads, config.n_layers) == (256, 8, 6)
    assert pairs.config(2048).n_layers == pairs.config(2048).encoder_layers == 3
    assert (text.settings().schedule, text.settings().warmup) == ("cosine", 50)
    assert (pairs.settings().schedule, pairs.settings().warmup) == ("inverse_sqrt", 200)
    assert (text.settings().label_smoothing, pairs.settings().label_smoothing) == (0.0, 0.1)
    own = {"stride", "text", "batch_size", "data", "source", "target", "max_tokens"}
    names = [{field.name for field in dataclasses.fields(r)} for r in (text, pairs)]
    assert names[0] ^ names[1] == own


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({}, "give the name of a data set, or the paths of two files"),
        ({"source": "a"}, "source='a', target=None: give"),
        ({"source": "a", "target": "b", "data": "cmudict"}, "data='cmudict'"),
        ({"data": "wmt14"}, "data='wmt14' may be tatoeba-deu-eng, "),
        ({"data": "cmudict", "max_tokens": 0}, "max_tokens=0"),
        ({"data": "cmudict", "length": 0}, "length=0"),
        ({"data": "cmudict", "dropout": 1.5}, "dropout=1.5"),
        ({"data": "cmudict", "seed": -1}, "seed=-1"),
        ({"data": "cmudict", "preset": "huge"}, "preset='huge' may be tiny"),
        ({"data": "cmudict", "patience": 0}, "patience=0"),
    ],
)
def test_refuses_nonsense(changes, match, no_shape_checks):
    with pytest.raises(ConfigError, match=match):
        PairRecipe(**changes)


def test_every_name_has_its_loader(monkeypatch, tmp_path):
    """Nothing is downloaded unasked, and each name finds its own data."""
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    for name in ("tatoeba-deu-eng", "tatoeba-cmn-eng"):
        with pytest.raises(DataError, match=name):
            PairRecipe(data=name).corpus()
        _, one, other = name.split("-")
        with pytest.raises(DataError, match=name):  # the same file, read the other way
            PairRecipe(data=f"tatoeba-{other}-{one}").corpus()
    recipe = PairRecipe(data="multi30k")
    with pytest.raises(DataError, match="accept_terms"):
        recipe.corpus()
    with pytest.raises(DataError, match=str(tmp_path)):
        recipe.corpus(accept_terms=True)


@pytest.mark.parametrize("pair", ["deu-eng", "cmn-eng"])
def test_a_name_says_which_way(monkeypatch, pair):
    asked = []
    monkeypatch.setattr(
        "glassformer.training.pair_recipe.load_tatoeba",
        lambda pair, source=None, download=False: (
            asked.append((pair, source)) or ParallelCorpus((), (), ())
        ),
    )
    foreign, english = pair.split("-")
    PairRecipe(data=f"tatoeba-{foreign}-{english}").corpus()
    PairRecipe(data=f"tatoeba-{english}-{foreign}").corpus()
    assert asked == [(pair, None), (pair, "eng")]


def test_the_dictionary_is_read_as_text(monkeypatch):
    words = PronouncingDictionary(
        train={"read": (("R", "IY", "D"), ("R", "EH", "D"))},
        dev={"red": (("R", "EH", "D"),)},
        test={"a": (("AH",),)},
        n_dropped=0,
        attribution="somebody",
    )
    monkeypatch.setattr(pair_recipe, "load_cmudict", lambda download: words)
    assert PairRecipe(data="cmudict").corpus() == ParallelCorpus(
        train=(("read", "R IY D"), ("read", "R EH D")),
        dev=(("red", "R EH D"),),
        test=(("a", "AH"),),
        attribution="somebody",
    )
