"""Compilation: one graph, no breaks, and no new compilation for every token."""

import pytest
import torch
from glassformer.functional import attend, causal_mask, rotary_angles
from glassformer.models._parts import make_stack
from glassformer.nn import MultiHeadAttention
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
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
    {"positions": "relative", "sliding_window": 5, "head_bias": True},
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


STEPS = 12


@pytest.mark.parametrize(("variant", "padded"), [(0, False), (1, False), (2, True), (3, True)])
@torch.no_grad()
def test_C02_static_cache_compiles_twice_at_most_for_twelve_steps(variant, padded):
    model = scrambled(decoder_config(**VARIANTS[variant]))
    tokens = ids(2, 4 + STEPS)
    mask = None
    if padded:
        mask = torch.ones(2, 4 + STEPS, dtype=torch.bool)
        mask[1, :2] = False
    want = model(tokens, token_mask=mask)
    cache = model.new_cache(static=True, batch_size=2, max_len=4 + STEPS)
    model(tokens[:, :4], token_mask=mask, cache=cache)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for t in range(4, 4 + STEPS):
        logits = compiled(tokens[:, t : t + 1], token_mask=mask, cache=cache)
        assert_close(logits, want[:, t : t + 1], atol=1e-5, rtol=0)
    assert cache.length == 4 + STEPS
    assert 1 <= counter.frame_count <= 2


@pytest.mark.parametrize(("variant", "masked"), [(0, False), (2, True), (3, True)])
@torch.no_grad()
def test_C02_translator_with_both_caches_compiles_twice_at_most(variant, masked):
    """Beams cross in between, and the next source takes the same graph."""
    model = scrambled(translator_config(**VARIANTS[variant]))
    counter = CompileCounter()

    def step(token, memory, memory_mask, cache, cross_cache):
        hidden = model.decode(
            token, memory, memory_mask=memory_mask, cache=cache, cross_cache=cross_cache
        )
        return model.head(hidden)

    compiled = torch.compile(step, backend=counter, fullgraph=True)
    cache, cross = model.new_cache(static=True, batch_size=3, max_len=13), model.new_cross_cache()
    for turn in range(2):
        source, target = ids(3, 7), ids(3, 1 + STEPS)
        mask = torch.arange(7) < torch.tensor([7, 3, 5])[:, None] if masked else None
        memory = model.encode(source, token_mask=mask)
        cache.reset()
        cross.reset()
        step(target[:, :1], memory, mask, cache, cross)
        for t in range(1, 1 + STEPS):
            got = compiled(target[:, t : t + 1], memory, mask, cache, cross)
            hidden = model.decode(target[:, : t + 1], memory, memory_mask=mask)
            assert_close(got, model.head(hidden[:, -1:]), atol=1e-5, rtol=0)
            if t == 4 + turn:
                order = torch.tensor([2, 0, 0])
                cache.reorder(order)
                cross.reorder(order)
                memory, target = memory[order], target[order]
                mask = mask[order] if masked else None
        assert cache.length == 1 + STEPS
    assert 1 <= counter.frame_count <= 2


BLOCKS = [
    {"norm_position": "pre"},
    {"norm_position": "post", "activation": "relu"},
    {"activation": "swiglu", "norm": "rms", "bias": False, "n_kv_heads": 1},
    {"activation": "geglu", "head_size": 8, "n_heads": 5},
    {"n_experts": 5, "expert_capacity": 1.25},
]


@pytest.mark.parametrize(
    ("sizes", "cross"), [(sizes, i == 1) for i, sizes in enumerate(BLOCKS)], ids=str
)
def test_a_block_is_one_graph(sizes, cross):
    """Forward and backward; a mixture of experts with a capacity, which fixes its shapes."""
    block = make_stack(decoder_config(**sizes), 1, cross=cross).blocks[0]
    x, memory = torch.randn(2, 5, 30), torch.randn(2, 7, 30) if cross else None
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, backend=counter, fullgraph=True)
    results = []
    for run in (block, compiled):
        block.zero_grad()
        out = run(x, is_causal=True, memory=memory)
        out.square().sum().backward()
        results.append([out, *(parameter.grad.clone() for parameter in block.parameters())])
    for want, got in zip(*results, strict=True):
        assert_close(got, want)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("case", "eager"),
    [("self", True), ("causal", False), ("masked", True), ("cross", False), ("rotary", True)],
)
def test_multi_head_attention_is_one_graph(case, eager):
    attention = MultiHeadAttention(30, 3, n_kv_heads=1)
    attention.eager = eager
    x = torch.randn(2, 5, 30)
    options = {
        "self": {},
        "causal": {"is_causal": True},
        "masked": {"mask": torch.rand(2, 1, 5, 5) < 0.6, "is_causal": True},
        "cross": {"memory": torch.randn(2, 7, 30), "mask": torch.rand(2, 1, 1, 7) < 0.6},
        "rotary": {"rotary": rotary_angles(torch.arange(5), 10), "is_causal": True},
    }[case]
    counter = CompileCounter()
    compiled = torch.compile(attention, backend=counter, fullgraph=True)
    assert_close(compiled(x, **options), attention(x, **options))
    assert counter.frame_count == 1
