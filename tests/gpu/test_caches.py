"""Flash attention, experts, windows and looking inside, on a GPU: the same as on the CPU."""

import copy

import pytest
import torch
from glassformer import attend, capture_attention
from glassformer.functional import flash_attend, padding_mask
from glassformer.introspect import ablate_heads, collect_router, trace_shapes
from glassformer.nn import MixtureOfExperts
from support.core import decoder_config, ids, scramble, scrambled
from support.gpu import needs_gpu
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("exact_products")


@pytest.fixture
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@needs_gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 8e-2)],
)
@pytest.mark.parametrize("masked", [False, True])
def test_flash_equals_the_explicit_path(dtype, tolerance, masked):
    shapes = [(2, 6, 37, 16), (2, 3, 41, 16), (2, 3, 41, 16)]
    q, k, v = (torch.randn(shape, device="cuda", dtype=dtype).requires_grad_() for shape in shapes)
    mask = padding_mask(torch.arange(41, device="cuda") < torch.tensor([[41], [0]], device="cuda"))
    options = {"mask": mask if masked else None, "is_causal": True}
    got = flash_attend(q, k, v, block=8, **options)
    want = attend(q, k, v, eager=True, **options)
    assert_close(got, want, atol=tolerance, rtol=tolerance)
    for one, other in zip(
        torch.autograd.grad(got.float().square().sum(), (q, k, v)),
        torch.autograd.grad(want.float().square().sum(), (q, k, v)),
        strict=True,
    ):
        assert_close(one, other, atol=4 * tolerance, rtol=4 * tolerance)


@needs_gpu
def test_flash_peak_memory_is_linear_on_the_device():
    def peak(length):
        q, k, v = torch.randn(3, 1, 4, length, 32, device="cuda").requires_grad_()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        flash_attend(q, k, v, is_causal=True).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    first, second, third = (peak(length) for length in (1024, 2048, 4096))
    assert (third - second) / (second - first) == pytest.approx(2.0, rel=0.1)


@needs_gpu
@pytest.mark.parametrize("capacity", [None, 1.0])
def test_mixture_of_experts(capacity):
    layer = scramble(MixtureOfExperts(13, 17, n_experts=5, capacity=capacity).double())
    x = torch.randn(2, 11, 13).double()
    want = layer(x)
    there = copy.deepcopy(layer).cuda()
    got = there(x.cuda())
    assert_close(got.cpu(), want)
    got.square().sum().backward()
    assert all(parameter.grad is not None for parameter in there.parameters())


@needs_gpu
@pytest.mark.parametrize("static", [False, True])
def test_window_with_a_cache(static):
    model = scrambled(decoder_config(sliding_window=4)).cuda()
    tokens = ids(2, 11).cuda()
    cache = model.new_cache(static=static, batch_size=2)
    with torch.no_grad():
        want = model(tokens)
        got = [model(tokens[:, :6], cache=cache)]
        got += [model(tokens[:, t : t + 1], cache=cache) for t in range(6, 11)]
    assert_close(torch.cat(got, dim=1), want, atol=1e-5, rtol=0)


@needs_gpu
def test_looking_inside():
    here = scrambled(decoder_config(n_experts=5))
    there, tokens = copy.deepcopy(here).cuda(), ids(2, 7)
    results = []
    for model, given in ((here, tokens), (there, tokens.cuda())):
        heads = {"decoder.blocks.0.self_attn": [1]}
        with (
            ablate_heads(model, heads),
            collect_router(model) as routings,
            capture_attention(model) as maps,
        ):
            logits = model(given)
        seen = [routing.probs.cpu() for routing in routings.values()]
        results.append([logits.cpu(), *maps.values(), *seen])
        assert len(trace_shapes(model, given)) > 20
    for got, want in zip(*results, strict=True):
        assert_close(got, want)
