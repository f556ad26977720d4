"""The long runs that chapters read from the records: what they ask, and what was recorded."""

import json

import pytest
import torch
from glassformer.costs import parameter_count
from glassformer.data import load_king_james, train_tokenizer
from glassformer.pretrained import recorded_runs
from glassformer.training import Recipe
from torch import nn


def test_a_table_of_pairs_cannot_know_the_answers(bench):
    """It sees only the word before: the same for both, or one of the wrong number."""
    verses = load_king_james().train[:8000]
    tokenizer = train_tokenizer(verses, 1024)
    size = tokenizer.vocab_size
    ids = torch.tensor(tokenizer.encode_stream(verses))
    counts = torch.bincount(ids[:-1] * size + ids[1:], minlength=size**2).view(size, size)
    pairs = nn.Embedding.from_pretrained((counts + 0.1).log())
    for kind, crossed in bench("stages").questions().items():
        assert len(crossed) > 30, kind
        right = bench("stages").share_right(pairs, tokenizer, crossed)
        assert right < 0.5 if kind == "subject" else right == 0.5, kind


class Listener(nn.Module):
    """Expects `wanted` wherever `heard` stood before, and all pieces alike otherwise."""

    def __init__(self, vocab_size, heard, wanted):
        super().__init__()
        self.vocab_size, self.heard, self.wanted = vocab_size, heard, wanted

    def forward(self, ids):
        logits = torch.zeros(*ids.shape, self.vocab_size)
        logits[..., self.wanted] = (ids == self.heard).cumsum(-1).clamp(max=1).float()
        return logits


def test_who_listens_to_the_subject_is_right(bench):
    text = "the king was the kings were of old"
    tokenizer = train_tokenizer([text] * 3, 277)
    question = [(("the king of old", "the kings of old"), ("was", "were"))]
    many = tokenizer.encode("kings")[-1]
    was, were = (tokenizer.encode(word) for word in ("was", "were"))
    at = next(place for place, (a, b) in enumerate(zip(was, were, strict=False)) if a != b)
    assert many not in tokenizer.encode("the king of old")
    for wanted, share in ((were[at], 1.0), (was[at], 0.0)):
        model = Listener(tokenizer.vocab_size, many, wanted)
        assert bench("stages").share_right(model, tokenizer, question) == share


def test_a_short_run_is_looked_at_too(bench, tmp_path):
    path = tmp_path / "text.txt"
    corpus = load_king_james()
    verses = corpus.train[:600] + corpus.dev[:40] + corpus.test[:40]
    path.write_text("\n".join(verses), encoding="utf-8")
    sizes = {"vocab_size": 512, "length": 32, "batch_size": 2}
    recipe = Recipe(preset="tiny", text=str(path), warmup=2, steps=7, **sizes)
    (look,) = bench("stages").watch(recipe)
    assert look.keys() == {"step", "train", "dev", *bench("stages").questions()}
    assert look["step"] == 7
    assert 5 < look["dev"] < 8
    assert all(0 <= look[kind] <= 1 for kind in bench("stages").questions())


def test_the_recorded_stages_are_whole():
    looks = recorded_runs()["stages"]["looks"]
    steps = [look["step"] for look in looks]
    assert steps == sorted(set(steps))
    assert steps[-1] == 30_000
    assert set(range(2000, 30_001, 1000)) < set(steps)
    assert looks[-1]["train"] < looks[-1]["dev"] < looks[0]["dev"]


def test_sizes_are_equal_and_ratios_are_not(bench):
    sizes = bench("ratios").equal_sizes(70)
    counts = [parameter_count(size) for size in sizes]
    assert max(counts) < 1.005 * min(counts)
    for size, ratio in zip(sizes, bench("ratios").RATIOS, strict=True):
        assert size.ff_size / size.d_model == pytest.approx(ratio, rel=0.13)


def test_the_recorded_ratios_each_had_the_best_rate():
    sizes = recorded_runs()["ratios"]["sizes"]
    assert len(sizes) == 5
    assert max(size["parameters"] for size in sizes) < 1.005 * min(s["parameters"] for s in sizes)
    for size in sizes:
        losses = {float(lr): sum(found) for lr, found in size["dev nats per character"].items()}
        assert {len(found) for found in size["dev nats per character"].values()} == {3}
        assert size["lr"] == min(losses, key=losses.__getitem__)


def test_a_recorded_run_leaves_the_others_alone(bench, tmp_path, monkeypatch):
    records = bench("records")
    file = tmp_path / "comparisons.json"
    monkeypatch.setattr(records, "COMPARISONS", file)
    records.record_run("new", {"what": "ü"})
    assert json.loads(file.read_bytes()) == recorded_runs() | {"new": {"what": "ü"}}
    assert "ü" in file.read_text(encoding="utf-8")
