"""A prepared decoder writes what the model writes, only faster."""

import importlib.util
import itertools

import pytest
import torch
from glassformer.errors import CacheError, ConfigError, ShapeError
from glassformer.generation import beam_search, generate
from glassformer.inference import prepare
from glassformer.models import extend_embeddings
from glassformer.quantization import quantize
from support.core import decoder_config, ids, scrambled, translator_config
from torch import nn
from torch.testing import assert_close

VARIANTS = {
    "rotary": {},
    "grouped": {"n_kv_heads": 1, "bias": False},
    "gpt2": {"positions": "learned", "activation": "gelu_tanh"},
    "llama": {"norm": "rms", "activation": "swiglu", "bias": False, "tie_embeddings": False},
    "paper": {"positions": "sinusoidal", "norm_position": "post", "activation": "relu"},
    "t5": {"positions": "relative", "activation": "geglu", "head_size": 7, "n_kv_heads": 1},
    "qwen": {"qkv_bias": True, "bias": False, "n_heads": 6, "n_kv_heads": 2, "head_size": 4},
    "mistral": {"sliding_window": 3, "positions": "none"},
    "near": {"sliding_window": 4, "positions": "relative"},
    "experts": {"n_experts": 3},
    "biased head": {"head_bias": True},
}
# the error of one rounding of the weights to 8 or 11 bits, relative to the size of the logits
TOLERANCES = [(torch.float32, 1e-5), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)]


def model_of(variant="rotary", **changes):
    return scrambled(decoder_config(**VARIANTS[variant], **changes), dtype=torch.float32)


def in_parts(model, tokens, cache, token_mask=None, cuts=(0, 5, 6, 7, 9)):
    """Logits of tokens that arrive in parts, of one token and of several."""
    return torch.cat(
        [
            model(
                tokens[:, a:b],
                cache=cache,
                token_mask=None if token_mask is None else token_mask[:, :b],
            )
            for a, b in itertools.pairwise(cuts)
        ],
        dim=1,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_logits_equal_the_models(variant):
    model, tokens = model_of(variant), ids(2, 9)
    prepared = prepare(model)
    want = model(tokens)
    scale = float(want.abs().max())
    assert_close(prepared(tokens) / scale, want / scale, atol=1e-5, rtol=0)
    got = in_parts(prepared, tokens, prepared.new_cache())
    assert_close(got / scale, want / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", ["rotary", "gpt2", "t5", "mistral"])
@torch.no_grad()
def test_padding_changes_nothing(variant):
    model, tokens = model_of(variant), ids(2, 9)
    prepared = prepare(model)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, :3] = False
    want = model(tokens, token_mask=mask)[mask]
    got = in_parts(prepared, tokens, prepared.new_cache(), mask)[mask]
    assert_close(got, want, atol=1e-4, rtol=1e-5)
    alone = in_parts(prepared, tokens[1:, 3:], prepared.new_cache(), cuts=(0, 2, 3, 6))
    assert_close(got[9:], alone[0], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("batch_size", [1, 3])
@torch.no_grad()
def test_every_dtype_stays_within_its_tolerance(dtype, tolerance, batch_size, monkeypatch):
    monkeypatch.setattr("glassformer.inference._products.LARGE", 0)
    model, tokens = model_of("llama"), ids(3, 9)
    want = model(tokens)
    got = prepare(model, dtype=dtype, batch_size=batch_size)(tokens)
    assert got.dtype == torch.float32
    error = float((got - want).norm() / want.norm())
    assert error < tolerance
    assert dtype == torch.float32 or error > 1e-6  # so the weights did lose bits


@torch.no_grad()
def test_a_torch_without_packed_products_serves_too(monkeypatch):
    model, tokens = model_of(), ids(3, 9)
    want = model(tokens)
    monkeypatch.setattr("glassformer.inference._products.LARGE", 0)
    monkeypatch.setattr("glassformer.inference._products.packed_dtypes", set)
    for dtype, tolerance in TOLERANCES:
        got = prepare(model, dtype=dtype, batch_size=2)(tokens)
        assert float((got - want).norm() / want.norm()) < tolerance


TRANSLATORS = {
    "paper": {"positions": "sinusoidal", "norm_position": "post", "activation": "relu"},
    "own source": {"source_vocab_size": 31, "n_kv_heads": 1, "head_bias": True},
    "t5": {"positions": "relative", "activation": "geglu", "norm": "rms", "bias": False},
}


@pytest.mark.parametrize("variant", TRANSLATORS)
@torch.no_grad()
def test_a_translator_is_prepared_too(variant, no_shape_checks):
    model = scrambled(translator_config(**TRANSLATORS[variant]), dtype=torch.float32)
    prepared = prepare(model)
    source, target = ids(3, 7), ids(3, 9)
    mask = torch.arange(7) < torch.tensor([7, 2, 5])[:, None]
    want = model(source, target, source_mask=mask)
    got = prepared(source, target, source_mask=mask)
    scale = float(want.abs().max())
    assert_close(got / scale, want / scale, atol=1e-5, rtol=0)
    memory = prepared.encode(source, token_mask=mask)
    cache, cross = prepared.new_cache(), prepared.new_cross_cache()
    parts = [
        prepared.decode(target[:, a:b], memory, memory_mask=mask, cache=cache, cross_cache=cross)
        for a, b in itertools.pairwise((0, 5, 6, 7, 9))
    ]
    got = prepared.head(torch.cat(parts, dim=1))
    assert_close(got / scale, want / scale, atol=1e-5, rtol=0)
    with pytest.raises(ShapeError, match="needs its output"):
        prepared.decode(target, None)


@pytest.mark.parametrize("use_cache", [False, True])
def test_beam_search_takes_a_prepared_translator(use_cache):
    model = scrambled(translator_config(), dtype=torch.float32)
    sources = [[3, 5, 7, 11], [13, 17], [19]]
    options = {"n_beams": 3, "n_best": 2, "max_new_tokens": 7, "bos_id": 1, "stop_ids": [2]}
    want = beam_search(model, sources, **options)
    got = beam_search(prepare(model, batch_size=9), sources, use_cache=use_cache, **options)
    for mine, yours in zip(got, want, strict=True):
        assert [text.tokens for text in mine] == [text.tokens for text in yours]
        assert [text.score for text in mine] == pytest.approx([t.score for t in yours], abs=1e-4)


def test_generation_takes_it_as_a_model():
    model = model_of("grouped")
    prepared = prepare(model, batch_size=2)
    prompts = [[3, 5, 7, 11], [13, 17]]
    want = generate(model, prompts, max_new_tokens=11)
    for options in (
        {},
        {"use_cache": False},
        {"cache": prepared.new_cache(static=True, batch_size=2)},
    ):
        got = generate(prepared, prompts, max_new_tokens=11, **options)
        assert got.to_lists() == want.to_lists()
        assert_close(got.log_probs, want.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [dtype for dtype, _ in TOLERANCES])
@torch.no_grad()
def test_the_head_reads_any_part_of_the_stream(dtype):
    prepared = prepare(model_of("biased head"), dtype=dtype)
    hidden = prepared.hidden(ids(3, 9))
    want = prepared.head(hidden)
    assert_close(prepared.head(hidden[:, -2:]), want[:, -2:], atol=1e-4, rtol=1e-4)
    assert_close(prepared.head(hidden[:, -1]), want[:, -1], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_cache_outgrows_its_room(monkeypatch):
    monkeypatch.setattr("glassformer.inference._cache.MIN_ROOM", 2)
    model, tokens = model_of(), ids(2, 23)
    prepared = prepare(model)
    cache = prepared.new_cache()
    cuts = (0, 1, 2, 3, 8, 9, 17, 22, 23)
    assert_close(in_parts(prepared, tokens, cache, cuts=cuts), model(tokens), atol=1e-4, rtol=1e-5)
    assert cache.length == cache.position == 23
    assert cache.bytes == 2 * 2 * 2 * 30 * 32 * 4  # layers, k and v, rows, width, room, bytes


@pytest.mark.parametrize("variant", ["near", "mistral", "rotary", "t5"])
@pytest.mark.parametrize("options", [{}, {"static": True, "batch_size": 2}])
@torch.no_grad()
def test_the_cache_of_the_model_itself_serves_too(variant, options):
    """A cache that forgets gave biases for the positions of what it had forgotten."""
    model, tokens = model_of(variant), ids(2, 12)
    cache = model.new_cache(**options)
    got = in_parts(prepare(model), tokens, cache, cuts=range(13))
    assert_close(got, model(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n_read", [3, 4])  # with room for one more, and full
@torch.no_grad()
def test_the_cache_refuses_what_it_was_not_made_for(n_read, monkeypatch):
    """A full cache copied its one row to all rows of another batch."""
    monkeypatch.setattr("glassformer.inference._cache.MIN_ROOM", 4)
    prepared = prepare(model_of())
    cache = prepared.new_cache()
    prepared(ids(1, n_read), cache=cache)
    with pytest.raises(CacheError, match="holds 1 rows and was given 3"):
        prepared(ids(3, 1), cache=cache)
    for changes in ({"n_kv_heads": 1}, {"head_size": 4}):
        with pytest.raises(CacheError, match="make one with this model's new_cache"):
            prepare(model_of(**changes))(ids(1, 1), cache=cache)
    assert cache.length == n_read


@torch.no_grad()
def test_rows_of_the_cache_change_places_and_are_forgotten():
    model, tokens = model_of(), ids(3, 9)
    prepared = prepare(model)
    cache = prepared.new_cache()
    prepared(tokens[:, :7], cache=cache)
    cache.crop(5)
    order = torch.tensor([2, 0, 2, 1])  # more rows than before, as a beam search begins
    cache.reorder(order)
    rows = tokens[order]
    got = prepared(rows[:, 5:], cache=cache)
    assert_close(got, model(rows)[:, 5:], atol=1e-4, rtol=1e-5)
    with pytest.raises(CacheError, match="holds 4 rows and was given 3"):
        prepared(tokens[:, :1], cache=cache)
    cache.reset()
    assert_close(prepared(tokens, cache=cache), model(tokens), atol=1e-4, rtol=1e-5)
    with pytest.raises(CacheError, match="cannot crop"):
        cache.crop(10)
    other = prepare(scrambled(decoder_config(n_layers=3), dtype=torch.float32))
    with pytest.raises(CacheError, match="3 layers does not fit 2"):
        prepared(tokens, cache=other.new_cache())


@torch.no_grad()
def test_the_copy_does_not_follow_the_model():
    for variant in VARIANTS:
        model, tokens = model_of(variant), ids(1, 5)
        prepared = prepare(model)
        before = prepared(tokens)
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(prepared(tokens), before)
        assert not list(prepared.parameters()) or not any(
            p.requires_grad for p in prepared.parameters()
        )


def test_what_cannot_be_prepared_is_refused():
    with pytest.raises(ConfigError, match="may be torch"):
        prepare(model_of(), dtype=torch.int8)
    model = model_of()
    model.decoder.blocks[1].feed_forward.up_proj = nn.Sequential(nn.Linear(30, 37))
    with pytest.raises(ConfigError, match="merge adapters"):
        prepare(model)
    prepared = prepare(model_of())
    with pytest.raises(ConfigError, match="has no head_weight"):
        _ = prepared.head_weight
    with pytest.raises(ConfigError, match="has no embedding of its own"):
        prepare(prepared)
    with pytest.raises(ConfigError, match="has no embedding of its own"):
        extend_embeddings(prepared, torch.zeros(2, 30))
    with pytest.raises(ConfigError, match="cannot be saved"):
        prepared.state_dict()
    with pytest.raises(ConfigError, match="cannot move"):
        prepared.to(torch.float64)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is optional")
def test_weights_of_torchao_are_refused():
    with pytest.raises(ConfigError, match=r"met \['Int8Tensor', .* undo the quantization"):
        prepare(quantize(model_of(), backend="torchao"))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 1}, {"positions": "relative"}])
def test_nothing_in_gives_nothing_out(dtype, changes):
    """No text, or no row of it, with a cache and without."""
    model = model_of(**changes)
    prepared = prepare(model, dtype=dtype)
    for shape in ((1, 0), (0, 1), (0, 3), (0, 0)):
        tokens = torch.zeros(shape, dtype=torch.int64)
        for cache in (None, prepared.new_cache()):
            assert prepared(tokens, cache=cache).shape == model(tokens).shape


@torch.no_grad()
def test_the_step_with_a_static_cache_is_one_graph(no_shape_checks):
    model, tokens = model_of(), ids(2, 9)
    prepared = prepare(model)
    cache = prepared.new_cache(static=True, batch_size=2)
    step = torch.compile(prepared, fullgraph=True, backend="eager")
    got = [step(tokens[:, i : i + 1], cache=cache) for i in range(9)]
    assert_close(torch.cat(got, dim=1), model(tokens), atol=1e-4, rtol=1e-5)
