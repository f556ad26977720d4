"""From text to text: each sentence gets what it would get alone, in its own place."""

import pytest
import torch
from glassformer.data import train_tokenizer
from glassformer.errors import CheckpointError, GenerationError, TokenizerError
from glassformer.generation import beam_search
from glassformer.training import save_model
from glassformer.translation import Translator, load_translator
from support.core import scrambled, translator_config
from support.runs import tiny_decoder

pytestmark = pytest.mark.usefixtures("no_shape_checks")  # the search has tests of its own

LINES = ["so it is", "it was so", "what is it", "so what", "is it so", "it was what it was"]
TOKENIZER = train_tokenizer(LINES, 271)


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(3)
    config = translator_config(vocab_size=TOKENIZER.vocab_size, pad_id=TOKENIZER.pad_id)
    return Translator(scrambled(config, dtype=torch.float32), TOKENIZER)


def alone(translator, text, **options):
    """What beam search gives for one sentence, without the translator."""
    ids = TOKENIZER.encode(text, eos=True)
    ends = {"bos_id": TOKENIZER.bos_id, "stop_ids": [TOKENIZER.eos_id]}
    (found,) = beam_search(translator.model, [ids], **ends, **options)
    return found


@pytest.mark.parametrize("n_beams", [1, 3])
def test_order_and_batches_change_nothing(translator, n_beams):
    texts, options = [*LINES, LINES[0], "so"], {"n_beams": n_beams, "max_new_tokens": 5}
    want = [TOKENIZER.decode(alone(translator, text, **options)[0].tokens) for text in texts]
    assert len(set(want)) > 3
    for max_tokens in (1, 17, 2048):
        assert translator.translate(texts, max_tokens=max_tokens, **options) == want


def test_one_string_gives_one_string(translator):
    one = translator.translate("so it is", max_new_tokens=3)
    assert [one] == translator.translate(["so it is"], max_new_tokens=3)
    assert translator.translate([]) == []
    assert translator.translate(text for text in ["so it is"]) != [""]


def test_empty_texts_stay_empty_and_in_their_place(translator):
    both = translator.translate(["so it is", "what is it"], max_new_tokens=3)
    texts = ["", "so it is", " \t", "what is it", ""]
    assert translator.translate(texts, max_new_tokens=3) == [
        "", both[0], "", both[1], "",
    ]  # fmt: skip
    assert translator.translate("") == ""
    assert translator.translate(["", " "]) == ["", ""]


def test_n_best_comes_in_order_with_the_scores_of_beam_search(translator):
    options = {"n_best": 3, "n_beams": 5, "length_penalty": 0.6, "max_new_tokens": 5}
    found = translator.n_best(LINES[:2], **options)
    for text, translations in zip(LINES[:2], found, strict=True):
        want = alone(translator, text, **options)
        assert [t.text for t in translations] == [TOKENIZER.decode(h.tokens) for h in want]
        assert [t.score for t in translations] == pytest.approx([h.score for h in want], abs=1e-5)
        assert [t.stopped for t in translations] == [h.stopped for h in want]
    with pytest.raises(GenerationError, match="n_best=3 texts of n_beams=2"):
        translator.n_best(LINES, n_best=3, n_beams=2)


def test_the_limit_is_the_callers_or_the_models(translator):
    """Nothing is as long as the model: bos takes the first place of its max_len of 23."""
    ((full,),) = translator.n_best(["so"], n_best=1, n_beams=1)
    (want,) = alone(translator, "so", n_beams=1, max_new_tokens=22)
    assert (full.text, full.stopped) == (TOKENIZER.decode(want.tokens), want.stopped)
    ((short,),) = translator.n_best(["so"], n_best=1, n_beams=1, max_new_tokens=2)
    assert short.text == TOKENIZER.decode(want.tokens[:2])
    assert not short.stopped


def test_a_text_that_the_model_cannot_read(translator):
    with pytest.raises(GenerationError, match=r"a text of \d+ tokens.*at most 23.*'so it is so it"):
        translator.translate(["so", "so it is " * 9])


def test_the_model_keeps_its_mode(translator):
    translator.model.train()
    translator.translate("so it is", max_new_tokens=1)
    assert translator.model.training
    translator.model.eval()


def test_n_best_takes_a_list(translator):
    with pytest.raises(GenerationError, match=r"give \[text\]"):
        translator.n_best("so it is", n_best=1)


def test_a_tokenizer_of_another_model():
    for sizes in ({"vocab_size": 29}, {"vocab_size": 271, "source_vocab_size": 29}):
        model = scrambled(translator_config(**sizes))
        with pytest.raises(TokenizerError, match="a tokenizer of 271 pieces for a model of"):
            Translator(model, TOKENIZER)


def test_a_folder(translator, tmp_path):
    save_model(tmp_path / "t", translator.model, TOKENIZER)
    loaded = load_translator(tmp_path / "t")
    options = {"n_beams": 2, "max_new_tokens": 3}
    assert loaded.translate(LINES, **options) == translator.translate(LINES, **options)
    assert loaded.device == torch.device("cpu")
    save_model(tmp_path / "d", tiny_decoder(), TOKENIZER)
    with pytest.raises(CheckpointError, match="holds a Decoder, which does not translate"):
        load_translator(tmp_path / "d")
