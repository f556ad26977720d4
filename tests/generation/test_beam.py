"""Beam search: against a search without a cache, against all texts, and by hand."""

import itertools
import math

import pytest
import torch
from glassformer.errors import CacheError, GenerationError
from glassformer.generation import beam_search, generate
from glassformer.generation._session import open_session, prepare
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core import decoder_config, scrambled, translator_config
from support.toys import Toy, listener, table_rule

STOP = 0
CACHES = pytest.mark.parametrize("cache", ["growing", "static", "none"])
PROMPTS = [[5, 3], [4, 1, 2, 6, 3]]


def cache_options(model, cache, n_rows, max_len=17):
    if cache == "static":
        return {"cache": model.new_cache(static=True, batch_size=n_rows, max_len=max_len)}
    return {"use_cache": cache != "none"}


def plain_beam_search(rule, prompt, *, n_beams, limit, alpha, stops=(STOP,)):
    """The documented rule in lists: no batch, no cache, no bound that ends it early."""
    running, found = [((), ())], []

    def score(text):
        return math.fsum(text[1]) / len(text[1]) ** alpha

    for length in range(1, limit + 1):
        options = []
        for ids, steps in running:
            log_probs = torch.as_tensor(rule([*prompt, *ids])).log().tolist()
            options += [((*ids, i), (*steps, step)) for i, step in enumerate(log_probs)]
        options.sort(key=lambda text: -sum(text[1]))
        placed = options[: n_beams - len(found)]
        ended = [text for text in placed if text[0][-1] in stops or length == limit]
        found += ended
        running = [text for text in placed if text not in ended]
    return [(list(text[0]), score(text)) for text in sorted(found, key=score, reverse=True)]


def assert_same(texts, expected):
    assert [text.tokens for text in texts] == [tokens for tokens, _ in expected]
    scores = torch.tensor([text.score for text in texts])
    torch.testing.assert_close(
        scores, torch.tensor([score for _, score in expected]), rtol=0, atol=1e-5
    )


@settings(max_examples=60)
@given(
    st.integers(0, 2**16),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(2, 5),
    st.floats(-1.5, 2.5),
    st.sampled_from(["growing", "static", "none"]),
)
def test_any_search_equals_the_plain_one(seed, n_beams, limit, vocab_size, alpha, cache):
    """Batched, cached and ended early by the bound: nothing of it changes a result."""
    rule = table_rule(seed, vocab_size)
    model = Toy(rule, vocab_size)
    prompts = [[1], [1, 0, 1], [0, 1]]
    n_best = 1 + seed % n_beams
    found = beam_search(
        model,
        prompts,
        n_beams=n_beams,
        n_best=n_best,
        max_new_tokens=limit,
        length_penalty=alpha,
        stop_ids=[STOP],
        **cache_options(model, cache, 3 * n_beams),
    )
    for prompt, texts in zip(prompts, found, strict=True):
        expected = plain_beam_search(rule, prompt, n_beams=n_beams, limit=limit, alpha=alpha)
        assert_same(texts, expected[:n_best])


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_wide_enough_for_all_texts_finds_the_best_of_them(seed, alpha):
    vocab_size, limit, prompt = 3, 4, [2, 1]
    rule = table_rule(seed, vocab_size)
    everything = []
    for length in range(1, limit + 1):
        for ids in itertools.product(range(vocab_size), repeat=length):
            if STOP in ids[:-1] or (ids[-1] != STOP and length < limit):
                continue
            steps = [rule([*prompt, *ids[:i]])[ids[i]].log().item() for i in range(length)]
            everything.append((list(ids), sum(steps) / length**alpha))
    everything.sort(key=lambda text: -text[1])
    wide = vocab_size**limit
    (found,) = beam_search(
        Toy(rule, vocab_size),
        [prompt],
        n_beams=wide,
        n_best=wide,
        max_new_tokens=limit,
        length_penalty=alpha,
        stop_ids=[STOP],
    )
    assert_same(found, everything)


def crossing(ids):
    """After prompt 6: 1 leads at first, but only 2 goes on well, so both beams become its own."""
    ids = tuple(ids)
    table = {
        (6,): {1: 0.5, 2: 0.4, 3: 0.1},
        (6, 1): {1: 0.34, 2: 0.33, 3: 0.33},
        (6, 2): {4: 0.5, 5: 0.5},
        (6, 3): {3: 1.0},
        (6, 2, 4): {1: 0.1, 2: 0.9},
        (6, 2, 5): {3: 1.0},
    }.get(ids, {3: 1.0})
    return [table.get(i, 0.0) for i in range(7)]


@CACHES
def test_G01_the_cache_follows_the_beams(cache):
    """The best text switches parent at step 2; the toy continues what its cache says."""
    model = Toy(crossing)
    (found,) = beam_search(
        model, [[6]], n_beams=3, n_best=3, max_new_tokens=4, **cache_options(model, cache, 3)
    )
    assert_same(
        found,
        [
            ([2, 5, 3, 3], math.log(0.4 * 0.5) / 4),
            ([2, 4, 2, 3], math.log(0.4 * 0.5 * 0.9) / 4),
            ([1, 1, 3, 3], math.log(0.5 * 0.34) / 4),
        ],
    )


@CACHES
def test_G01_a_real_decoder_with_and_without_its_cache(cache):
    model = scrambled(decoder_config(n_kv_heads=1), dtype=torch.float32)
    options = {"n_beams": 3, "n_best": 3, "max_new_tokens": 7, "stop_ids": [STOP]}

    def rule(ids):
        with torch.no_grad():
            return model(torch.tensor([ids]))[0, -1].softmax(-1)

    found = beam_search(model, PROMPTS, **options, **cache_options(model, cache, 6))
    for prompt, texts in zip(PROMPTS, found, strict=True):
        expected = plain_beam_search(rule, prompt, n_beams=3, limit=7, alpha=1.0)
        assert_same(texts, expected[:3])


SOURCES = [[7, 3, 11, 5, 2, 9, 13], [4, 8], [17, 1, 23, 19]]


@CACHES
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned"])
def test_G02_sources_in_a_batch_equal_each_alone(positions, cache):
    model = listener(positions=positions)
    options = {"n_beams": 2, "n_best": 2, "max_new_tokens": 6, "bos_id": 1, "stop_ids": [17, 24]}
    together = beam_search(model, SOURCES, **options, **cache_options(model, cache, 6))
    assert len({tuple(texts[0].tokens) for texts in together}) == 3, "all alike would prove little"
    for source, texts in zip(SOURCES, together, strict=True):

        def rule(ids, source=source):
            with torch.no_grad():
                logits = model(torch.tensor([source]), torch.tensor([ids]))
            return logits[0, -1].softmax(-1)

        expected = plain_beam_search(rule, [1], n_beams=2, limit=6, alpha=1.0, stops=(17, 24))
        assert_same(texts, expected[:2])
        (alone,) = beam_search(model, [source], **options)
        assert_same(texts, [(text.tokens, text.score) for text in alone])


def one_ends_early(ids):
    """A text of prompt 1 ends at its first token; one of prompt 2 goes on."""
    likely = STOP if ids[0] == 1 or len(ids) > 8 else 3
    return [0.02 + (0.86 if i == likely else 0.0) for i in range(7)]


@CACHES
def test_G03_finished_prompts_take_no_part_in_the_batch(cache):
    """The long one is what it is alone, and the short one is what it was when it finished."""
    options = {"n_beams": 2, "n_best": 2, "max_new_tokens": 11, "stop_ids": [STOP]}
    model = Toy(one_ends_early)
    together = beam_search(model, [[1], [2]], **options, **cache_options(model, cache, 4))
    fed = model.fed
    for i, prompt in enumerate([[1], [2]]):
        (alone,) = beam_search(Toy(one_ends_early), [prompt], **options)
        assert alone == together[i]
    assert len(together[0][0].tokens) < len(together[1][0].tokens)
    if cache == "growing":
        assert fed[0] == (2, 1), "each prompt is read once, not once per beam"
        assert fed[1] == (4, 1)
        assert fed[-1] == (2, 1), "the finished prompt has left"


def test_G04_beams_differ_from_the_first_step_on():
    def rule(ids):
        return [0.05, 0.3, 0.25, 0.2, 0.12, 0.08, 0.0]

    (found,) = beam_search(Toy(rule), [[6]], n_beams=5, n_best=5, max_new_tokens=1)
    assert [text.tokens for text in found] == [[1], [2], [3], [4], [5]]
    (found,) = beam_search(Toy(rule), [[6]], n_beams=5, n_best=5, max_new_tokens=4)
    assert len({tuple(text.tokens) for text in found}) == 5


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_G04_one_beam_is_greedy(seed, alpha):
    model = Toy(table_rule(seed, 7), 7)
    options = {"max_new_tokens": 9, "stop_ids": [STOP, 1]}
    greedy = generate(model, PROMPTS, **options)
    beams = beam_search(model, PROMPTS, n_beams=1, length_penalty=alpha, **options)
    assert [texts[0].tokens for texts in beams] == greedy.to_lists()
    assert [texts[0].stopped for texts in beams] == greedy.stopped.tolist()


def test_G05_the_prompt_counts_neither_in_the_score_nor_in_the_length():
    """The same continuations have the same scores behind 50 tokens as behind 5."""
    model = Toy(lambda ids: [0.1, 0.2, 0.3, 0.15, 0.25, 0.0, 0.0])
    options = {"n_beams": 3, "n_best": 3, "max_new_tokens": 5, "stop_ids": [STOP]}
    short, long = beam_search(model, [[6] * 5, [6] * 50], **options)
    assert short == long
    assert short[0].score == pytest.approx(math.log(0.3), abs=1e-6)


def scripted(texts):
    """Behind a prompt of one token, the tokens of these texts have these log-probabilities."""

    def rule(ids):
        done = tuple(ids[1:])
        row = torch.zeros(997)
        for text, steps in texts.items():
            if text[: len(done)] == done and len(text) > len(done):
                row[text[len(done)]] = math.exp(steps[len(done)])
        unlikely = row == 0
        return row + unlikely * (1 - row.sum()) / unlikely.sum()

    return rule


@pytest.mark.parametrize(
    ("alpha", "scores"),
    [
        (0.0, [([1, STOP], -2.0), ([2, 3, 3, 3, STOP], -4.0)]),
        (1.0, [([2, 3, 3, 3, STOP], -0.8), ([1, STOP], -1.0)]),
    ],
)
def test_G06_the_penalty_weighs_length_against_probability(alpha, scores):
    """Log-probability -4 of 5 tokens, -2 of 2: alpha 0 prefers the short, alpha 1 the long."""
    model = Toy(scripted({(1, STOP): (-1.0,) * 2, (2, 3, 3, 3, STOP): (-0.8,) * 5}), 997)
    options = {"max_new_tokens": 9, "length_penalty": alpha, "stop_ids": [STOP]}
    (found,) = beam_search(model, [[6]], n_beams=2, n_best=2, **options)
    assert_same(found, scores)


def test_G08_finished_and_cut_texts_are_scored_by_one_rule():
    """Three words and a stop, four words without: the same log-probability, the same score."""
    model = Toy(scripted({(1, 1, 1, STOP): (-1.0,) * 4, (2, 2, 2, 2): (-1.0,) * 4}), 997)
    options = {"max_new_tokens": 4, "length_penalty": 0.7, "stop_ids": [STOP]}
    (found,) = beam_search(model, [[6]], n_beams=2, n_best=2, **options)
    texts = {tuple(text.tokens): text for text in found}
    assert texts[1, 1, 1, STOP].stopped
    assert not texts[2, 2, 2, 2].stopped
    for text in found:
        assert text.score == pytest.approx(-4.0 / 4**0.7, abs=1e-6)
        assert text.score == math.fsum(text.log_probs) / len(text.tokens) ** 0.7


@CACHES
def test_G08_log_probs_are_those_of_the_returned_tokens(cache):
    model = listener()
    options = {"n_beams": 3, "n_best": 3, "max_new_tokens": 6, "bos_id": 1, "stop_ids": [17]}
    found = beam_search(model, SOURCES, **options, **cache_options(model, cache, 9))
    for source, texts in zip(SOURCES, found, strict=True):
        assert [text.score for text in texts] == sorted((t.score for t in texts), reverse=True)
        for text in texts:
            with torch.no_grad():
                logits = model(torch.tensor([source]), torch.tensor([[1, *text.tokens[:-1]]]))
            expected = logits[0].log_softmax(-1).gather(1, torch.tensor(text.tokens)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(text.log_probs), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("alpha", "slow", "score"),
    [
        # worse than the finished one while it runs (-2.6 / 2), better at its end (-2.9 / 5)
        (1.0, {(2, 3, 3, 3, STOP): (-2.5, -0.1, -0.1, -0.1, -0.1)}, -2.9 / 5),
        # at the limit it would be far worse (-1 * 9), but it ends with its next token (-1.1 * 3)
        (-1.0, {(2, 3, STOP): (-0.9, -0.1, -0.1)}, -1.1 * 3),
    ],
)
def test_a_text_that_can_still_win_is_waited_for(alpha, slow, score):
    """[1, STOP] finishes first with -1 per token; the bound must not give up on the other."""
    model = Toy(scripted({(1, STOP): (-1.0, -1.0), **slow}), 997)
    options = {"max_new_tokens": 9, "length_penalty": alpha, "stop_ids": [STOP]}
    (found,) = beam_search(model, [[6]], n_beams=2, **options)
    assert_same(found, [(list(*slow), score)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_best": 10, "n_beams": 5}, "n_best=10 .* n_beams=5"),
        ({"n_best": 0, "n_beams": 5}, "n_best=0 .* n_beams=5"),
        ({"n_beams": 0}, "n_best=1 .* n_beams=0"),
        ({"n_beams": 2, "length_penalty": math.nan}, "length_penalty=nan must be a number"),
        ({"n_beams": 2, "length_penalty": 1000.0}, "length_penalty=1000.0 .* from -10 to 10"),
        ({"n_beams": 2, "length_penalty": -400.0}, "length_penalty=-400.0 .* from -10 to 10"),
        ({"n_beams": 2, "stop_ids": [7]}, r"stop_ids=\[7\] must lie in a vocabulary of 7"),
        ({"n_beams": 2, "max_new_tokens": 97}, "room for 97"),
    ],
)
def test_G10_impossible_requests_fail_before_decoding(options, message):
    """More results than beams, and whatever else cannot be."""
    model = Toy(crossing)
    with pytest.raises(GenerationError, match=message):
        beam_search(model, [[6]], **{"max_new_tokens": 3, **options})
    assert not model.fed


def test_a_static_cache_of_too_few_rows_is_refused():
    model = scrambled(decoder_config(), dtype=torch.float32)
    cache = model.new_cache(static=True, batch_size=2)
    with pytest.raises(CacheError, match="holds 2 rows and was given 6"):
        beam_search(model, PROMPTS, n_beams=3, max_new_tokens=2, cache=cache)


def test_G21_beams_share_no_memory():
    """Written into the cache of one beam, nothing of the others changes."""
    for make in (decoder_config, translator_config):
        model = scrambled(make(), dtype=torch.float32)
        bos_id = 1 if make is translator_config else None
        request = prepare(model, [[5, 3]], max_new_tokens=5, bos_id=bos_id, stop_ids=())
        with torch.no_grad():
            session = open_session(request)
            session.logits()
        session.select(torch.tensor([0, 0, 0]))
        layers = list(session.cache.layers)
        if session.source is not None:
            layers += session.source.cross_cache.layers
        parts = [part for layer in layers for part in layer.kv]
        parts += [*session.text, *([] if session.source is None else [session.source.memory])]
        for part in parts:
            before = part[1:].clone()
            part[0] = part[0] == 17
            assert torch.equal(part[1:], before)
            assert not torch.equal(part[0], part[1]) or part.dtype == torch.bool


def test_fewer_texts_than_asked_for_where_there_are_no_more():
    model = Toy(lambda ids: [0.4, 0.6, 0, 0, 0, 0, 0])
    (found,) = beam_search(
        model, [[1]], n_beams=5, n_best=5, max_new_tokens=2, stop_ids=[STOP], length_penalty=0.0
    )
    assert [text.tokens for text in found] == [[STOP], [1, 1], [1, STOP]]


def test_the_search_ends_when_nothing_can_become_better():
    """A sure text of two tokens: what runs on is hopeless, and is left to itself."""
    model = Toy(scripted({(1, STOP): (-0.01, -0.01)}), 997)
    options = {"n_beams": 3, "max_new_tokens": 50, "stop_ids": [STOP]}
    (found,) = beam_search(model, [[6]], length_penalty=0.0, **options)
    assert found[0].tokens == [1, STOP]
    assert len(model.fed) == 2


def test_the_model_is_left_as_it_was():
    model = scrambled(decoder_config(dropout=0.5), dtype=torch.float32).train()
    model.decoder.eval()
    flags = [module.training for module in model.modules()]
    options = {"n_beams": 2, "max_new_tokens": 5}
    first, second = (beam_search(model, PROMPTS, **options) for _ in range(2))
    assert first == second
    assert [module.training for module in model.modules()] == flags
    assert torch.is_grad_enabled()
