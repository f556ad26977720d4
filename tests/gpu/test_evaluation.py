"""Evaluation and translation on a GPU: the CPU's figures and texts."""

import pytest
import torch
from glassformer.data import train_tokenizer
from glassformer.evaluation import align, evaluate_nll, evaluate_pairs, word_attention
from glassformer.translation import Translator
from support.core import decoder_config, ids, scrambled, translator_config
from support.gpu import needs_gpu


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@needs_gpu
def test_surprise_is_the_cpus():
    model, text = scrambled(decoder_config()), ids(97)
    want = evaluate_nll(model, text, window=11, stride=3)
    got = evaluate_nll(model.cuda(), text, window=11, stride=3)
    assert got.token_nll.device.type == "cpu"
    torch.testing.assert_close(got.token_nll, want.token_nll, rtol=0, atol=1e-5)
    translator = scrambled(translator_config())
    pairs = [(ids(s).tolist(), ids(t).tolist()) for s, t in ((3, 11), (13, 2), (7, 7))]
    want = evaluate_pairs(translator, pairs, pad_id=0)
    got = evaluate_pairs(translator.cuda(), pairs, pad_id=0)
    torch.testing.assert_close(got.token_nll, want.token_nll, rtol=0, atol=1e-5)


@needs_gpu
def test_translations_are_the_cpus():
    lines = ["so it is", "it was so", "", "what is it"]
    tokenizer = train_tokenizer([*lines, "is it so", "so what", "it was what it was"], 271)
    config = translator_config(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id)
    translator = Translator(scrambled(config), tokenizer)
    want = translator.translate(lines, n_beams=3)
    translator.model.cuda()
    assert translator.device.type == "cuda"
    assert translator.translate(lines, n_beams=3) == want


@needs_gpu
def test_alignments_of_weights_on_the_gpu():
    weights = torch.rand(3, 5)
    words = [0, 0, 1], [0, 1, None, 1, 2]
    assert align(weights.cuda()) == align(weights)
    got = word_attention(weights.cuda(), *words)
    torch.testing.assert_close(got.cpu(), word_attention(weights, *words))
