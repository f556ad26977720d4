"""Generation: the cache, padding and batch change nothing; rows end when they should."""

import pytest
import torch
from glassformer.config import DecoderConfig
from glassformer.errors import GenerationError
from glassformer.generation import decode_step, generate, greedy, prefill, sampler, stream
from glassformer.kv_cache import GrowingCache
from glassformer.models import Decoder
from torch import nn

VOCAB = 31
SHORT, LONG = [5, 7, 11], [13, 17, 19, 23, 29, 2]
POSITIONS = ["learned", "sinusoidal", "rotary", "none"]


def decoder(*, dropout: float = 0.0, positions: str = "learned", pad_id: int | None = None):
    torch.manual_seed(2)
    config = DecoderConfig(
        vocab_size=VOCAB,
        max_len=23,
        d_model=24,
        n_heads=4,
        n_kv_heads=2,
        n_layers=3,
        dropout=dropout,
        positions=positions,
        pad_id=pad_id,
        tie_embeddings=False,
    )
    model = Decoder(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)  # sure enough of itself to write varied rows
    return model.eval()


class Scripted(Decoder):
    """Writes what it is told, and records what it is fed; sure of each token to 0.9."""

    def __init__(self, *rows: list[int], prompt: int = 2) -> None:
        nn.Module.__init__(self)
        self.config = DecoderConfig(
            vocab_size=VOCAB, max_len=997, d_model=2, n_heads=1, n_layers=1, pad_id=0
        )
        self.rows, self.prompt, self.fed = rows, prompt, []

    def new_cache(self):
        return GrowingCache(1)

    def hidden(self, tokens, *, token_mask=None, cache=None):
        self.fed.append(tokens.clone())
        seen = tokens.shape[1] + (cache.length if cache is not None else 0)
        if cache is not None:
            cache.advance(tokens.shape[1])
        step = seen - self.prompt
        said = torch.tensor([row[min(step, len(row) - 1)] for row in self.rows])
        return said[:, None, None].float().expand(-1, tokens.shape[1], 2)

    def head(self, hidden):
        probabilities = torch.full((*hidden.shape[:-1], VOCAB), 0.1 / (VOCAB - 1))
        return probabilities.scatter(-1, hidden[..., :1].long(), 0.9).log()


@pytest.mark.parametrize("use_cache", [True, False])
def test_G09_rows_end_alone_and_the_loop_ends_with_the_last(use_cache):
    """G09: rows that end at steps 2, 4 and 6, by two different stop ids, with a limit of 20."""
    model = Scripted([5, 3], [5, 6, 7, 9], [5, 6, 7, 8, 10, 3])
    prompt = torch.full((3, 2), 4)
    result = generate(model, prompt, max_new_tokens=20, stop_ids=(3, 9), use_cache=use_cache)
    assert result.tokens.tolist() == [[5, 3, 0, 0, 0, 0], [5, 6, 7, 9, 0, 0], [5, 6, 7, 8, 10, 3]]
    assert result.lengths.tolist() == [2, 4, 6]
    assert result.stopped.tolist() == [True, True, True]
    assert len(model.fed) == 6
    assert result.to_lists() == [[5, 3], [5, 6, 7, 9], [5, 6, 7, 8, 10, 3]]
    log = torch.tensor(0.9).log()
    torch.testing.assert_close(result.log_probs.sum(1), log * torch.tensor([2.0, 4.0, 6.0]))
    assert result.log_probs[0, 2:].eq(0).all()


def test_G08_the_score_is_recomputable_from_the_returned_tokens():
    """G08: one rule for stopped and cut rows: every returned token counts, the stop among them."""
    model = decoder()
    result = generate(model, [SHORT, LONG], max_new_tokens=7, stop_ids=FIRST_STOPS)
    assert result.stopped.tolist() == [True, False]
    for prompt, row, score in zip(
        (SHORT, LONG), result.to_lists(), result.scores.tolist(), strict=True
    ):
        with torch.no_grad():
            log_probs = model(torch.tensor([prompt + row]))[0].log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + len(row) - 1)
        expected = sum(log_probs[t, i].item() for t, i in zip(places, row, strict=True))
        assert score == pytest.approx(expected, abs=1e-5)


def test_G05_scores_do_not_count_the_prompt():
    """G05: the same continuation has the same score after 50 tokens as after 5."""
    scores = [
        generate(
            Scripted([5, 6, 3], prompt=n), torch.full((1, n), 4), max_new_tokens=9, stop_ids=[3]
        ).scores.item()
        for n in (5, 50)
    ]
    assert scores[0] == scores[1] == pytest.approx(3 * torch.tensor(0.9).log().item(), rel=1e-6)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("cache", ["growing", "static", "none"])
def test_E10_left_padded_rows_equal_their_own_runs(positions, cache):
    """E10: prompts of 3 and 6 tokens, greedy 5 tokens, each as if it were alone."""
    model = decoder(positions=positions)
    options = {"max_new_tokens": 5, "use_cache": cache != "none"}
    if cache == "static":
        options["cache"] = model.new_cache(static=True, batch_size=2, max_len=11)
    together = generate(model, [SHORT, LONG], **options)
    for row, prompt in enumerate((SHORT, LONG)):
        alone = generate(model, torch.tensor([prompt]), max_new_tokens=5)
        assert together.tokens[row].tolist() == alone.tokens[0].tolist()
        torch.testing.assert_close(together.log_probs[row], alone.log_probs[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_G24_the_content_of_padding_never_matters(positions):
    """G24: rows of 2 and 6 tokens, 4 new ones; the mask must live on after the first."""
    model = decoder(positions=positions)
    for use_cache in (True, False):
        results = [
            generate(model, [SHORT[:2], LONG], max_new_tokens=4, pad_id=pad_id, use_cache=use_cache)
            for pad_id in (0, 1, 30)
        ]
        for other in results[1:]:
            assert torch.equal(other.tokens, results[0].tokens)
            torch.testing.assert_close(other.log_probs, results[0].log_probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_cache_changes_no_token(positions):
    model = decoder(positions=positions)
    prompt = torch.tensor([SHORT, LONG[:3]])
    plain = generate(model, prompt, max_new_tokens=20, use_cache=False)
    static = model.new_cache(static=True, batch_size=2)
    for cache in (None, static, model.new_cache()):
        cached = generate(model, prompt, max_new_tokens=20, cache=cache)
        assert torch.equal(cached.tokens, plain.tokens)
        torch.testing.assert_close(cached.log_probs, plain.log_probs, rtol=0, atol=1e-5)
    assert len(set(plain.tokens[0].tolist())) >= 3, "a constant row would prove little"


def test_the_cache_saves_the_reading():
    """One prompt, then one token at a time; without a cache everything again each time."""
    cached, plain = Scripted([5]), Scripted([5])
    generate(cached, torch.full((1, 2), 4), max_new_tokens=4)
    generate(plain, torch.full((1, 2), 4), max_new_tokens=4, use_cache=False)
    assert [fed.shape[1] for fed in cached.fed] == [2, 1, 1, 1]
    assert [fed.shape[1] for fed in plain.fed] == [2, 3, 4, 5]


@pytest.mark.parametrize("split", range(1, 6))
def test_prefill_and_decode_steps_give_the_logits_of_the_full_pass(split):
    model, tokens = decoder(), torch.tensor([LONG])
    with torch.no_grad():
        expected = model(tokens)
        cache = model.new_cache()
        torch.testing.assert_close(
            prefill(model, tokens[:, :split], cache), expected[:, split - 1], rtol=0, atol=1e-5
        )
        for t in range(split, tokens.shape[1]):
            logits = decode_step(model, tokens[:, t], cache)
            torch.testing.assert_close(logits, expected[:, t], rtol=0, atol=1e-5)
    assert cache.length == len(LONG)


def test_G03_a_row_does_not_depend_on_its_neighbours():
    """G03: the long row goes on after the short one has ended, as if it were alone."""
    model = decoder()
    together = generate(model, [SHORT, LONG], max_new_tokens=9, stop_ids=FIRST_STOPS)
    alone = generate(model, [LONG], max_new_tokens=9, stop_ids=FIRST_STOPS)
    assert together.lengths[0] < together.lengths[1]
    assert together.to_lists()[1] == alone.to_lists()[0]


FIRST_STOPS = [generate(decoder(), [SHORT], max_new_tokens=3).tokens[0, 2].item()]


def test_O23_the_mode_is_restored_also_after_an_exception():
    """O23: sampling inside training: dropout off, flags back, the two samples equal."""
    model = decoder(dropout=0.5).train()
    model.decoder.eval()
    before = [module.training for module in model.modules()]
    first, second = (generate(model, [SHORT], max_new_tokens=11).tokens for _ in range(2))
    assert torch.equal(first, second)

    def fail(logits, text):
        raise RuntimeError("no choice")

    with pytest.raises(RuntimeError, match="no choice"):
        generate(model, [SHORT], max_new_tokens=3, choose=fail)
    assert [module.training for module in model.modules()] == before
    assert torch.is_grad_enabled()


def test_generation_keeps_no_graph():
    result = generate(decoder(), [SHORT], max_new_tokens=3)
    assert not result.log_probs.requires_grad


@pytest.mark.parametrize("use_cache", [True, False])
def test_stream_gives_the_tokens_of_generate_one_by_one(use_cache):
    model = decoder(dropout=0.5).train()
    options = {"max_new_tokens": 11, "stop_ids": FIRST_STOPS, "use_cache": use_cache}
    expected = generate(model, [SHORT], **options)
    arrived = []
    for step in stream(model, torch.tensor(SHORT), **options):
        assert model.training
        assert torch.is_grad_enabled()
        arrived.append(step)
    assert [step.token for step in arrived] == expected.to_lists()[0]
    assert arrived[-1].token in FIRST_STOPS
    torch.testing.assert_close(
        torch.tensor([step.confidence for step in arrived]),
        expected.confidence[0],
        rtol=1e-5,
        atol=0,
    )


def test_stream_computes_only_what_is_asked_for():
    model = Scripted([5])
    steps = stream(model, [4, 4], max_new_tokens=100)
    assert not model.fed
    next(steps)
    next(steps)
    assert len(model.fed) == 2


def test_stream_complains_at_the_call():
    with pytest.raises(GenerationError, match="begin an empty prompt with bos"):
        stream(decoder(), [], max_new_tokens=3)


def test_confidence_is_the_models_own_whatever_the_sampler_does():
    model = decoder()
    greedy_run = generate(model, [SHORT], max_new_tokens=5)
    cold = generate(model, [SHORT], max_new_tokens=5, choose=sampler(temperature=0.3, top_k=1))
    assert torch.equal(cold.tokens, greedy_run.tokens)
    assert torch.equal(cold.log_probs, greedy_run.log_probs)
    assert 0 < greedy_run.confidence.min() <= greedy_run.confidence.max() <= 1


def test_seeded_sampling_repeats_and_differs_from_greedy():
    model = decoder()
    runs = [
        generate(model, [SHORT], max_new_tokens=17, choose=choose).tokens.tolist()
        for choose in (sampler(seed=1, temperature=5.0), sampler(seed=1, temperature=5.0), greedy)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_half_precision_gives_float32_log_probs():
    result = generate(decoder().to(torch.bfloat16), [SHORT], max_new_tokens=3)
    assert result.log_probs.dtype == torch.float32


def test_padding_of_ended_rows_is_the_models_own_or_the_one_asked_for():
    rows = [[5, 3], [5, 6, 3]]
    prompt = torch.full((2, 2), 4)
    for pad_id, expected in ((None, 0), (30, 30)):
        result = generate(Scripted(*rows), prompt, max_new_tokens=9, stop_ids=[3], pad_id=pad_id)
        assert result.tokens[0, 2] == expected
        assert result.log_probs[0, 2] == 0
        assert result.confidence[0, 2] == 1


def test_without_stop_ids_rows_run_to_the_limit():
    result = generate(decoder(), [SHORT, LONG], max_new_tokens=7)
    assert result.lengths.tolist() == [7, 7]
    assert result.stopped.tolist() == [False, False]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([LONG], {"max_new_tokens": 18}, "6 tokens .*=18 make 24, .* room for 23; .* at most 17"),
        ([[1] * 30], {"max_new_tokens": 1}, "30 tokens is too long .* room for 23"),
        ([LONG], {"max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
        ([LONG, []], {"max_new_tokens": 3}, r"lengths \[6, 0\].*begin an empty prompt with bos"),
        ([], {"max_new_tokens": 3}, r"lengths \[\]"),
        (torch.ones(2, 0, dtype=torch.int64), {"max_new_tokens": 3}, r"shape \(2, 0\)"),
        ([[5, 31]], {"max_new_tokens": 3}, "ids from 5 to 31 .* vocabulary of 31"),
        ([[5, -1]], {"max_new_tokens": 3}, "ids from -1 to 5"),
        ([[5]], {"max_new_tokens": 3, "pad_id": 31}, r"pad_id=\[31\]"),
        ([[5]], {"max_new_tokens": 3, "stop_ids": [3, -1]}, r"stop_ids=\[3, -1\] must lie in"),
    ],
)
def test_bad_requests_fail_before_anything_is_computed(monkeypatch, prompt, options, message):
    model = decoder()
    monkeypatch.setattr(model, "hidden", lambda *a, **k: pytest.fail("something was computed"))
    with pytest.raises(GenerationError, match=message):
        generate(model, prompt, **options)


def test_caches_too_small_in_use_or_unwanted_are_refused(monkeypatch):
    model = decoder()
    small = model.new_cache(static=True, batch_size=1, max_len=7)
    used = model.new_cache()
    generate(model, [SHORT], max_new_tokens=2, cache=used)
    monkeypatch.setattr(model, "hidden", lambda *a, **k: pytest.fail("something was computed"))
    with pytest.raises(GenerationError, match="make 8, and there is room for 7"):
        generate(model, [LONG], max_new_tokens=2, cache=small)
    with pytest.raises(GenerationError, match="the cache holds 4 tokens of another text; reset"):
        generate(model, [SHORT], max_new_tokens=2, cache=used)
    with pytest.raises(GenerationError, match="together with use_cache=False"):
        generate(model, [SHORT], max_new_tokens=2, cache=model.new_cache(), use_cache=False)


def test_a_text_may_fill_the_model_exactly():
    for use_cache in (True, False):
        result = generate(decoder(), [LONG], max_new_tokens=17, use_cache=use_cache)
        assert result.tokens.shape == (1, 17)


def test_a_choice_sees_the_prompt_and_what_was_written_but_no_padding():
    """Left padding before the short prompt, and what fills a row behind its end."""
    seen = []

    def watch(logits, text):
        seen.append([row[real].tolist() for row, real in zip(*text, strict=True)])
        return logits.argmax(-1)

    model = Scripted([5, 3], [7, 8, 9, 10], prompt=3)
    generate(model, [[4], [1, 2, 6]], max_new_tokens=4, stop_ids=[3], choose=watch)
    assert seen == [
        [[4], [1, 2, 6]],
        [[4, 5], [1, 2, 6, 7]],
        [[4, 5, 3], [1, 2, 6, 7, 8]],
        [[4, 5, 3], [1, 2, 6, 7, 8, 9]],
    ]


def test_a_repetition_penalty_breaks_a_loop():
    model = Scripted([5])
    assert generate(model, [[4, 4]], max_new_tokens=3).tokens.tolist() == [[5, 5, 5]]
    harsh = sampler(repetition_penalty=1e3, temperature=0.0)
    tokens = generate(model, [[4, 4]], max_new_tokens=6, choose=harsh).tokens[0].tolist()
    assert tokens[0] == 5
    assert len({*tokens, 4}) == 7, "neither the prompt nor a written token comes back"
