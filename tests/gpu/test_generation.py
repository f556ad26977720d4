"""Generation on a GPU: the same tokens as on the CPU, by every loop and with every cache."""

import pytest
import torch
from glassformer.generation import (
    beam_search,
    generate,
    sampler,
    shaper,
    speculate,
    stream,
    trace_generation,
)
from support.core import decoder_config, scrambled
from support.gpu import needs_gpu
from support.toys import listener

PROMPTS = [[7, 3, 11, 5, 2], [4, 8], [17, 1, 23]]
KINDS = pytest.mark.parametrize("kind", ["decoder", "translator"])
STATIC = pytest.mark.parametrize("static", [False, True])


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def model_and_options(kind, *, large=True):
    """In double precision, so that no two tokens are so near that rounding decides."""
    changes = {} if large else {"n_layers": 1}
    if kind == "translator":
        return listener(**changes).double(), {"bos_id": 1}
    return scrambled(decoder_config(**changes)), {}


def cache_for(model, static, rows):
    return model.new_cache(static=static, batch_size=rows, max_len=16)


@needs_gpu
@KINDS
@STATIC
def test_E10_G02_greedy_rows_of_unequal_length(kind, static):
    model, options = model_and_options(kind)
    want = generate(model, PROMPTS, max_new_tokens=9, stop_ids=[17], **options)
    model.cuda()
    cache = cache_for(model, static, 3)
    got = generate(model, PROMPTS, max_new_tokens=9, stop_ids=[17], cache=cache, **options)
    assert got.tokens.device.type == "cuda"
    assert got.to_lists() == want.to_lists()
    torch.testing.assert_close(got.log_probs.cpu(), want.log_probs, rtol=0, atol=1e-5)


@needs_gpu
@KINDS
@STATIC
def test_G01_beam_search(kind, static):
    model, options = model_and_options(kind)
    options |= {"n_beams": 4, "n_best": 4, "max_new_tokens": 9, "stop_ids": [17, 24]}
    want = beam_search(model, PROMPTS, **options)
    model.cuda()
    got = beam_search(model, PROMPTS, cache=cache_for(model, static, 12), **options)
    for texts, expected in zip(got, want, strict=True):
        assert [text.tokens for text in texts] == [text.tokens for text in expected]
        scores = [text.score for text in texts]
        assert scores == pytest.approx([text.score for text in expected], abs=1e-5)


@needs_gpu
@KINDS
def test_speculation(kind):
    large, options = model_and_options(kind)
    small, _ = model_and_options(kind, large=False)
    large.cuda()
    small.cuda()
    options |= {"max_new_tokens": 9, "stop_ids": [17]}
    want = generate(large, PROMPTS[:1], **options).to_lists()[0]
    assert speculate(large, small, PROMPTS[0], **options).tokens == want
    shape = shaper(temperature=2.0, repetition_penalty=1.3)
    draws = [
        speculate(large, small, PROMPTS[0], shape=shape, seed=3, **options).tokens for _ in "ab"
    ]
    assert draws[0] == draws[1]


@needs_gpu
@KINDS
def test_sampling_streaming_and_tracing(kind):
    model, options = model_and_options(kind)
    model.cuda()
    options |= {"max_new_tokens": 7}
    choose = {"temperature": 2.0, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.3, "seed": 5}
    want = generate(model, PROMPTS[:1], choose=sampler(**choose), **options).to_lists()[0]
    streamed = [s.token for s in stream(model, PROMPTS[0], choose=sampler(**choose), **options)]
    traced = trace_generation(
        model, PROMPTS[0], choose=sampler(**choose), attention=True, **options
    )
    assert streamed == want
    assert [step.token for step in traced] == want
    assert {part.device.type for step in traced for part in step.attention.values()} == {"cpu"}


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@KINDS
def test_half_precision(kind, dtype):
    model, options = model_and_options(kind)
    model = model.to("cuda", dtype)
    result = generate(model, PROMPTS, max_new_tokens=7, **options)
    assert result.log_probs.dtype == torch.float32
    assert result.log_probs.isfinite().all()
    texts = beam_search(model, PROMPTS, n_beams=3, max_new_tokens=7, **options)
    assert all(len(found[0].tokens) == 7 for found in texts)
