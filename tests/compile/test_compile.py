"""Compilation: one graph, no breaks, and no new compilation for every token (C02)."""

import pytest
import torch
from glassformer.functional import attend, causal_mask
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config
from torch._dynamo.testing import CompileCounter
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("no_shape_checks", "fresh_compiler")


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


VARIANTS = [
    {},
    {"positions": "learned", "norm_position": "post", "dropout": 0.1},
    {"positions": "sinusoidal", "activation": "swiglu", "norm": "rms", "n_kv_heads": 1},
]

MAKERS = {"decoder": decoder_config, "encoder": encoder_config, "translator": translator_config}


def given(kind, *, masked):
    """Arguments of a model of this kind."""
    mask = torch.arange(7) < torch.tensor([7, 3])[:, None] if masked else None
    if kind == "translator":
        return (ids(2, 7), ids(2, 5)), {"source_mask": mask}
    return (ids(2, 7),), {"token_mask": mask}


@pytest.mark.parametrize(
    ("kind", "variant", "masked"),
    [
        *(("decoder", i, masked) for i in range(3) for masked in (False, True)),
        ("encoder", 0, False),
        ("encoder", 1, True),
        ("translator", 2, True),
    ],
)
@torch.no_grad()
def test_one_graph_and_no_breaks(kind, variant, masked):
    """``fullgraph`` refuses any break; the counter sees that there is one graph."""
    model = scrambled(MAKERS[kind](n_layers=1, **VARIANTS[variant]))
    args, options = given(kind, masked=masked)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    assert_close(compiled(*args, **options), model(*args, **options))
    assert counter.frame_count == 1


def test_gradients():
    model = scrambled(decoder_config(n_layers=1))
    tokens = ids(2, 7)
    results = []
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        run(tokens).square().sum().backward()
        results.append([p.grad.clone() for p in model.parameters()])
    for want, got in zip(*results, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"mask": causal_mask(5, 7)}])
@pytest.mark.parametrize("eager", [False, True])
def test_attend(options, eager):
    q, k, v = torch.randn(2, 6, 5, 11), torch.randn(2, 3, 7, 11), torch.randn(2, 3, 7, 11)
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    assert_close(compiled(q, k, v, eager=eager, **options), attend(q, k, v, **options))


def test_eager_path_of_a_model():
    model = scrambled(decoder_config())
    for block in model.decoder.blocks:
        block.self_attn.eager = True
    tokens = ids(2, 7)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(tokens), model(tokens))


@pytest.mark.parametrize(("variant", "padded"), [(0, False), (1, False), (2, True), (1, True)])
@torch.no_grad()
def test_static_cache_compiles_twice_at_most_for_twelve_steps(variant, padded):
    model = scrambled(decoder_config(**VARIANTS[variant]))
    tokens = ids(2, 16)
    mask = None
    if padded:
        mask = torch.ones(2, 16, dtype=torch.bool)
        mask[1, :2] = False
    want = model(tokens, token_mask=mask)
    cache = model.new_cache(static=True, batch_size=2, max_len=16)
    model(tokens[:, :4], token_mask=mask, cache=cache)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for t in range(4, 16):
        logits = compiled(tokens[:, t : t + 1], token_mask=mask, cache=cache)
        assert_close(logits, want[:, t : t + 1], atol=1e-5, rtol=0)
    assert cache.length == 16
    assert 1 <= counter.frame_count <= 2


@torch.no_grad()
def test_static_cache_of_a_translator():
    model = scrambled(translator_config())
    memory, target = model.encode(ids(2, 7)), ids(2, 12)
    want = model.decode(target, memory)
    cache, cross = model.new_cache(static=True, batch_size=2, max_len=12), model.new_cross_cache()
    model.decode(target[:, :1], memory, cache=cache, cross_cache=cross)
    counter = CompileCounter()
    compiled = torch.compile(model.decode, backend=counter, fullgraph=True)
    for t in range(1, 12):
        hidden = compiled(target[:, t : t + 1], memory, cache=cache, cross_cache=cross)
        assert_close(hidden, want[:, t : t + 1], atol=1e-5, rtol=0)
    assert 1 <= counter.frame_count <= 2
