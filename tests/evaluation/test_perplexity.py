"""Perplexity: every token once, every token alike, whatever the batch, window or stride."""

import math

import pytest
import torch
from glassformer.config import DecoderConfig
from glassformer.data import windows
from glassformer.errors import DataError
from glassformer.evaluation import Score, evaluate_nll, evaluate_pairs, evaluate_sequences
from glassformer.models import Decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from support import core
from support.core import scrambled, translator_config
from torch import nn

VOCAB = 13


class FirstIdIsTheCost(nn.Module):
    """Each target 0 of a row costs as many nats as the row's first id says."""

    def forward(self, tokens, *, token_mask=None):
        nats = tokens[:, :1].double().expand(tokens.shape)
        return torch.stack((torch.zeros_like(nats), nats.expm1().log()), dim=-1).float()


def decoder(dropout: float = 0.0) -> Decoder:
    torch.manual_seed(5)
    config = DecoderConfig(
        vocab_size=VOCAB, max_len=29, d_model=12, n_heads=2, n_layers=2, dropout=dropout
    )
    model = Decoder(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def text(n: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def by_hand(model: Decoder, ids: list[int], window: int, stride: int) -> torch.Tensor:
    """One window after the other: the surprise in the first window that has the target."""
    nll: dict[int, torch.Tensor] = {}
    for start in windows(ids, window, stride).starts:
        chunk = torch.tensor(ids[start : start + window + 1])
        with torch.no_grad():
            log_probs = model(chunk[None, :-1])[0].log_softmax(-1)
        for t, target in enumerate(chunk[1:]):
            nll.setdefault(start + t + 1, -log_probs[t, target].double())
    return torch.stack([nll[target] for target in range(1, len(ids))])


def test_V07_tokens_weigh_alike_not_batches():
    """1 token of 4 nats and 9 of 1 nat are 1.3 nats a token, in any order; not 28.66, not 12.18."""
    sequences = [[4, 0], [1] + [0] * 9]
    for order in (sequences, sequences[::-1]):
        score = evaluate_sequences(FirstIdIsTheCost(), order, pad_id=0, max_tokens=9)
        assert score.n_tokens == 10
        assert score.nll_total == pytest.approx(13, abs=1e-5)
        assert score.nll == pytest.approx(1.3, abs=1e-6)
        assert score.perplexity == pytest.approx(3.669, abs=1e-3)


@pytest.mark.parametrize("max_tokens", [1, 5, 11, 4096])
def test_V08_padding_is_never_scored(max_tokens):
    """A short and a long text give the same together and alone, whatever the padding."""
    model, sequences = decoder(), [text(3, 1), text(12, 2), text(7, 3)]
    alone = [evaluate_sequences(model, [each], pad_id=0).token_nll for each in sequences]
    for pad_id in (0, 7):
        score = evaluate_sequences(model, sequences, pad_id=pad_id, max_tokens=max_tokens)
        torch.testing.assert_close(score.token_nll, torch.cat(alone), rtol=0, atol=1e-6)


def test_S02_a_token_with_the_pad_id_is_scored():
    """An id is padding by its place, not by its value."""
    assert evaluate_sequences(decoder(), [[5, 0, 7, 0], [3, 0]], pad_id=0).n_tokens == 4


@pytest.mark.parametrize(
    ("n_ids", "window", "stride"),
    [(21, 10, 10), (20, 10, 5), (23, 8, 3), (23, 8, 1), (5, 11, 11)],
)
def test_V10_every_token_is_scored_exactly_once(n_ids, window, stride):
    """N - 1 targets, the first of each window among them."""
    model, ids = decoder(), text(n_ids)
    score = evaluate_nll(model, ids, window=window, stride=stride, batch_size=2)
    assert score.n_tokens == n_ids - 1
    expected = by_hand(model, ids, window, stride)
    torch.testing.assert_close(score.token_nll, expected, rtol=0, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 61), st.integers(1, 11), st.integers(1, 11))
def test_V10_for_any_window_and_stride(n_ids, window, stride):
    """As a property; the stride defaults to the window."""
    stride = min(stride, window)
    model, ids = decoder(), text(n_ids)
    score = evaluate_nll(model, ids, window=window, stride=stride)
    expected = by_hand(model, ids, window, stride)
    torch.testing.assert_close(score.token_nll, expected, rtol=0, atol=1e-6)


def test_the_stride_defaults_to_the_window():
    model, ids = decoder(), text(41)
    blocks = evaluate_nll(model, ids, window=7)
    assert torch.equal(blocks.token_nll, evaluate_nll(model, ids, window=7, stride=7).token_nll)
    with pytest.raises(DataError, match="stride=0"):
        evaluate_nll(model, ids, window=7, stride=0)


def test_V08_batch_size_changes_no_token():
    model, ids = decoder(), text(97)
    one, four = (
        evaluate_nll(model, ids, window=11, stride=3, batch_size=size).token_nll for size in (1, 4)
    )
    torch.testing.assert_close(one, four, rtol=0, atol=1e-6)


def test_dropout_is_off_and_the_mode_comes_back():
    model, ids = decoder(dropout=0.5), text(41)
    model.train()
    model.decoder.eval()
    before = [module.training for module in model.modules()]
    first, second = (evaluate_nll(model, ids, window=7) for _ in range(2))
    assert torch.equal(first.token_nll, second.token_nll)
    evaluate_sequences(model, [ids[:5], ids[:3]], pad_id=0)
    assert [module.training for module in model.modules()] == before
    assert not first.token_nll.requires_grad


def test_perplexity_too_large_for_a_number_is_infinite():
    assert Score(torch.tensor([709.0, 709.0], dtype=torch.float64)).perplexity < math.inf
    assert Score(torch.tensor([800.0, 900.0], dtype=torch.float64)).perplexity == math.inf
    assert math.isnan(Score(torch.tensor([math.nan], dtype=torch.float64)).perplexity)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary():
    model = decoder()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    score = evaluate_nll(model, text(53), window=7, n_chars=26)
    assert score.perplexity == pytest.approx(VOCAB, rel=1e-6)
    assert score.bits_per_character == pytest.approx(52 * math.log2(VOCAB) / 26, rel=1e-6)


def test_half_precision_logits_are_scored_in_float32_and_summed_in_float64():
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(3)).bfloat16()
    model, ids = nn.Embedding.from_pretrained(table), text(53)
    score = evaluate_nll(model, ids, window=7)
    assert score.token_nll.dtype == torch.float64
    expected = -table.float().log_softmax(-1)[ids[:-1], ids[1:]].double()
    torch.testing.assert_close(score.token_nll, expected, rtol=0, atol=1e-6)


class EachSideIsTheCost(nn.Module):
    """A target 0 costs as many nats as the source's first id, plus the target's first id."""

    def forward(self, source, target, *, source_mask, target_mask):
        assert source_mask.shape == source.shape
        assert target_mask.shape == target.shape
        nats = (source[:, :1] + target[:, :1]).double().expand(target.shape)
        return torch.stack((torch.zeros_like(nats), nats.expm1().log()), dim=-1).float()


def test_V07_pairs_weigh_by_their_target_tokens():
    pairs = [([3, 1, 1, 1, 1, 1], [1, 0]), ([1], [0] + [0] * 9)]
    for order in (pairs, pairs[::-1]):
        score = evaluate_pairs(EachSideIsTheCost(), order, pad_id=0, max_tokens=9)
        assert (score.n_tokens, score.nll) == (10, pytest.approx(1.3, abs=1e-6))


@pytest.mark.parametrize("max_tokens", [1, 7, 17, 4096])
def test_V08_pairs_score_the_same_in_any_batch(max_tokens):
    """Both sides are padded; each pair gets what a pass of its own gives, in the order given."""
    torch.manual_seed(7)
    model = scrambled(translator_config(), dtype=torch.float32)
    lengths = [(3, 11), (13, 2), (1, 5), (7, 7), (2, 17)]
    pairs = [(core.ids(s).tolist(), core.ids(t).tolist()) for s, t in lengths]
    alone = []
    for source, target in pairs:
        with torch.no_grad():
            logits = model(torch.tensor([source]), torch.tensor([target[:-1]]))
        log_probs = logits[0].double().log_softmax(-1)
        alone.append(-log_probs[torch.arange(len(target) - 1), target[1:]])
    model.train()
    for pad_id in (0, 5):
        score = evaluate_pairs(model, pairs, pad_id=pad_id, max_tokens=max_tokens, n_chars=37)
        torch.testing.assert_close(score.token_nll, torch.cat(alone), rtol=0, atol=1e-5)
    assert model.training
    assert score.bits_per_character == pytest.approx(score.nll_total / math.log(2) / 37)


def test_bad_pairs_are_refused():
    model = scrambled(translator_config())
    with pytest.raises(DataError, match="source 1 is empty; drop the pair"):
        evaluate_pairs(model, [([3], [5, 7]), ([], [5, 7])], pad_id=0)
    with pytest.raises(DataError, match="sequence 0 has 1 ids and nothing to predict"):
        evaluate_pairs(model, [([3], [5])], pad_id=0)
    with pytest.raises(DataError, match="nothing to score"):
        evaluate_pairs(model, [], pad_id=0)


def test_bad_input_is_refused():
    with pytest.raises(DataError, match="n_chars=None; give"):
        _ = Score(torch.ones(3, dtype=torch.float64)).bits_per_character
    with pytest.raises(DataError, match="sequence 1 has 1 ids and nothing to predict"):
        evaluate_sequences(decoder(), [[3, 5], [7]], pad_id=0)
    with pytest.raises(DataError, match="batch_size=0"):
        evaluate_nll(decoder(), text(41), window=7, batch_size=0)
    with pytest.raises(DataError, match="nothing to score"):
        evaluate_sequences(decoder(), [], pad_id=0)
    with pytest.raises(DataError, match="1 token ids"):
        evaluate_nll(decoder(), [3], window=7)
