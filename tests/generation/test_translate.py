"""An encoder-decoder writes: the source is read once, and every row is what it would be alone."""

import itertools

import pytest
import torch
from glassformer.errors import GenerationError
from glassformer.generation import (
    decode_step,
    encode_source,
    generate,
    prefill,
    sampler,
    stream,
    trace_generation,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core import decoder_config, ids, scrambled
from support.toys import listener

BOS, STOPS = 1, [17, 24]
SOURCES = [[7, 3, 11, 5, 2, 9, 13], [4, 8], [17, 1, 23, 19]]
CACHES = pytest.mark.parametrize("cache", ["growing", "static", "none"])
POSITIONS = pytest.mark.parametrize(
    "positions", ["rotary", "sinusoidal", "learned", "relative", "none"]
)


def cache_options(model, cache, n_rows):
    if cache == "static":
        return {"cache": model.new_cache(static=True, batch_size=n_rows, max_len=13)}
    return {"use_cache": cache != "none"}


def plain_greedy(model, source, n_tokens, stops=STOPS):
    """One source, no cache, no padding: everything again for each token."""
    text, log_probs = [BOS], []
    with torch.no_grad():
        while len(text) <= n_tokens and text[-1] not in stops:
            logits = model(torch.tensor([source]), torch.tensor([text]))[0, -1]
            text.append(int(logits.argmax()))
            log_probs.append(logits.log_softmax(-1)[text[-1]])
    return text[1:], torch.stack(log_probs)


@CACHES
@POSITIONS
def test_G02_sources_of_unequal_length_equal_each_alone(positions, cache):
    model = listener(positions=positions)
    together = generate(
        model,
        SOURCES,
        max_new_tokens=9,
        bos_id=BOS,
        stop_ids=STOPS,
        **cache_options(model, cache, 3),
    )
    for row, source in enumerate(SOURCES):
        tokens, log_probs = plain_greedy(model, source, 9)
        assert together.to_lists()[row] == tokens
        torch.testing.assert_close(
            together.log_probs[row, : len(tokens)], log_probs, rtol=0, atol=1e-5
        )
    assert len(set(map(tuple, together.to_lists()))) == 3, "all alike would prove little"


def test_G03_G09_rows_end_by_several_stop_ids_and_the_loop_with_the_last():
    model = listener(positions="learned")
    free = generate(model, SOURCES, max_new_tokens=9, bos_id=BOS)
    stops = [int(free.tokens[0, 1]), int(free.tokens[1, 4])]
    result = generate(model, SOURCES[:2], max_new_tokens=20, bos_id=BOS, stop_ids=stops)
    assert result.stopped.all()
    assert result.tokens.shape[1] == result.lengths.max() < 20
    for row, source in enumerate(SOURCES[:2]):
        alone = generate(model, [source], max_new_tokens=20, bos_id=BOS, stop_ids=stops)
        assert result.to_lists()[row] == alone.to_lists()[0]
        assert result.to_lists()[row][-1] in stops


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_source_is_encoded_once(monkeypatch, use_cache):
    model, encode, calls = listener(), type(listener()).encode, []
    monkeypatch.setattr(model, "encode", lambda *a, **k: calls.append(1) or encode(model, *a, **k))
    generate(model, SOURCES, max_new_tokens=5, bos_id=BOS, use_cache=use_cache)
    assert len(calls) == 1


def test_G22_the_source_is_projected_once_and_the_next_one_is_its_own():
    """Source of 7 tokens, 5 steps: the cross cache holds 7 at each, projected once per layer."""
    model = listener()
    projected = []
    for block in model.decoder.blocks:
        block.cross_attn.k_proj.register_forward_hook(lambda *a: projected.append(a[0]))
    first = torch.tensor(SOURCES[:1])
    with torch.no_grad():
        source, cache = encode_source(model, first), model.new_cache()
        logits = prefill(model, torch.tensor([[BOS]]), cache, source=source)
        for _ in range(5):
            logits = decode_step(model, logits.argmax(-1), cache, source=source)
            assert [layer.kv[0].shape[2] for layer in source.cross_cache.layers] == [7, 7]
    assert len(projected) == len(set(projected)) == 2
    for source in SOURCES:
        tokens, _ = plain_greedy(model, source, 5)
        assert (
            generate(model, [source], max_new_tokens=5, bos_id=BOS, stop_ids=STOPS).to_lists()[0]
            == tokens
        )


def test_G24_the_content_of_source_padding_never_matters():
    model = listener()
    results = [
        generate(model, SOURCES, max_new_tokens=7, bos_id=BOS, pad_id=pad_id)
        for pad_id in (0, 5, 28)
    ]
    for other in results[1:]:
        assert torch.equal(other.tokens, results[0].tokens)
        torch.testing.assert_close(other.log_probs, results[0].log_probs, rtol=0, atol=1e-6)


def test_a_tensor_of_sources_and_a_seeded_draw():
    model = listener()
    sources = ids(3, 5)
    listed = generate(model, sources.tolist(), max_new_tokens=7, bos_id=BOS)
    assert torch.equal(generate(model, sources, max_new_tokens=7, bos_id=BOS).tokens, listed.tokens)
    draws = [
        generate(
            model, sources, max_new_tokens=7, bos_id=BOS, choose=sampler(seed=seed, temperature=2.0)
        ).to_lists()
        for seed in (3, 3, 5)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_stream_gives_the_tokens_of_generate_with_their_confidence():
    model = listener().train()
    expected = generate(model, SOURCES[:1], max_new_tokens=9, bos_id=BOS, stop_ids=STOPS)
    arrived = []
    for step in stream(model, SOURCES[0], max_new_tokens=9, bos_id=BOS, stop_ids=STOPS):
        assert model.training
        arrived.append(step)
    assert [step.token for step in arrived] == expected.to_lists()[0]
    torch.testing.assert_close(
        torch.tensor([step.confidence for step in arrived]), expected.confidence[0]
    )


def test_O23_training_goes_on_as_before_also_after_an_exception():
    model = listener(dropout=0.5).train()
    model.encoder.eval()
    before = [module.training for module in model.modules()]

    def fail(logits, text):
        raise RuntimeError("no choice")

    first, second = (generate(model, SOURCES, max_new_tokens=7, bos_id=BOS) for _ in range(2))
    assert torch.equal(first.tokens, second.tokens)
    for use in (generate, trace_generation):
        prompt = SOURCES if use is generate else SOURCES[0]
        with pytest.raises(RuntimeError, match="no choice"):
            use(model, prompt, max_new_tokens=3, bos_id=BOS, choose=fail)
    assert [module.training for module in model.modules()] == before
    assert torch.is_grad_enabled()


def test_a_source_vocabulary_of_its_own():
    model = listener(source_vocab_size=53)
    wide = [[51, 52, 3], [40]]
    assert generate(model, wide, max_new_tokens=3, bos_id=BOS).tokens.shape == (2, 3)
    with pytest.raises(GenerationError, match=r"ids from 3 to 53 .* vocabulary of 53"):
        generate(model, [[53, 3]], max_new_tokens=3, bos_id=BOS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bos_id": None}, "give the bos_id that its targets began with"),
        ({"bos_id": 29}, "ids from 29 to 29 must lie in a vocabulary of 29"),
        ({"bos_id": -1}, "ids from -1 to -1"),
        ({"prompt": [[1] * 24]}, "a source of 24 tokens exceeds max_len=23"),
        ({"prompt": [[1], []]}, r"lengths \[1, 0\]"),
        ({"max_new_tokens": 23}, "1 tokens and max_new_tokens=23 make 24"),
    ],
)
def test_bad_requests_fail_before_anything_is_computed(monkeypatch, options, message):
    model = listener()
    monkeypatch.setattr(model, "encode", lambda *a, **k: pytest.fail("something was computed"))
    with pytest.raises(GenerationError, match=message):
        generate(model, **{"prompt": SOURCES, "max_new_tokens": 5, "bos_id": BOS, **options})


def test_each_kind_of_model_is_asked_in_its_own_way():
    translator, decoder = listener(), scrambled(decoder_config()).float()
    with pytest.raises(GenerationError, match="bos_id=1 has no place"):
        generate(decoder, [[5]], max_new_tokens=3, bos_id=BOS)
    with torch.no_grad():
        source = encode_source(translator, torch.tensor(SOURCES[:1]))
        with pytest.raises(GenerationError, match="a Decoder listens to no source"):
            prefill(decoder, torch.tensor([[5]]), decoder.new_cache(), source=source)
        with pytest.raises(GenerationError, match="an EncoderDecoder needs a source"):
            prefill(translator, torch.tensor([[5]]), translator.new_cache())


@st.composite
def splits(draw, total=8):
    cuts = draw(st.sets(st.integers(1, total - 1)))
    edges = [0, *sorted(cuts), total]
    return list(itertools.pairwise(edges))


MODEL = listener(positions="rotary", n_kv_heads=1)


@settings(max_examples=15)
@given(splits(), st.booleans(), st.booleans())
def test_any_split_of_a_target_prefix_equals_one_pass(chunks, static, use_cross_cache):
    torch.manual_seed(len(chunks))
    sources, target = ids(2, 5), ids(2, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    with torch.no_grad():
        want = MODEL(sources, target, source_mask=mask)
        source = encode_source(MODEL, sources, token_mask=mask, use_cache=use_cross_cache)
        cache = MODEL.new_cache(static=static, batch_size=2, max_len=11)
        for start, end in chunks:
            logits = prefill(MODEL, target[:, start:end], cache, source=source)
            torch.testing.assert_close(logits, want[:, end - 1], rtol=0, atol=1e-4)
