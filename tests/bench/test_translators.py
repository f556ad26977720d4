"""The scripts behind the records: what they measure comes out again, and decoding is decoding."""

import pytest
import torch
from glassformer.data import train_tokenizer
from glassformer.models.recurrent import RecurrentTranslator
from glassformer.pretrained import load_pretrained, training_record


def test_the_recorded_alignment_comes_out_again(bench):
    again = bench("ship").alignment(load_pretrained("tatoeba-de-en"))["layers"]
    recorded = training_record("tatoeba-de-en")["alignment"]["layers"]
    assert again.keys() == recorded.keys()
    for layer, score in recorded.items():
        assert again[layer] == pytest.approx(score, abs=0.005)


def test_the_plain_loop_writes_what_the_translator_writes(bench):
    """In any batch; the loop is for models that have no cache."""
    translator = load_pretrained("tatoeba-de-en")
    lines = ["Danke.", "Ich habe meinen Schlüssel vergessen.", "Wo wohnst du?"]
    want = translator.translate(lines, n_beams=1)
    model, tokenizer = translator.model, translator.tokenizer
    assert bench("translators").greedy(model, tokenizer, lines) == want
    assert bench("translators").greedy(model, tokenizer, lines, batch_size=1) == want


def test_the_plain_loop_takes_a_recurrent_translator(bench):
    tokenizer = train_tokenizer(["so it is", "it was so", "what is it"], 271)
    torch.manual_seed(0)
    model = RecurrentTranslator(tokenizer.vocab_size, 12)
    together = bench("translators").greedy(model, tokenizer, ["so it is", "what"])
    alone = [
        bench("translators").greedy(model, tokenizer, [text])[0] for text in ("so it is", "what")
    ]
    assert together == alone
    assert not model.training


def test_who_had_the_least_time_goes_next(bench, monkeypatch):
    """Steps of 5 and of 2 seconds: both get as many seconds, not as many steps."""
    clock, order = [0.0], []
    monkeypatch.setattr(bench("translators").time, "process_time", lambda: clock[0])

    def run(name, seconds, steps):
        for _ in range(steps):
            clock[0] += seconds
            order.append(name)
            yield name

    spent = bench("translators")._in_turn({"slow": run("slow", 5, 2), "quick": run("quick", 2, 5)})
    assert spent == {"slow": 10, "quick": 10}
    assert "".join(name[0] for name in order) == "sqqqsqq"
