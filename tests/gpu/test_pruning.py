"""Pruning and quantisation on a GPU: the same as on the CPU."""

import importlib.util

import pytest
import torch
from glassformer.functional import top_k_attention
from glassformer.introspect import ablate_heads
from glassformer.pruning import HardConcreteGates, head_importance, layer_importance, prune_heads
from glassformer.quantization import (
    add_lora,
    load_quantized,
    merge_lora,
    quantization_report,
    quantize,
    save_quantized,
)
from glassformer.training import Batch, load_model, make_optimizer, save_model, train_step
from support.core import decoder_config, ids, scrambled
from support.gpu import needs_gpu
from torch.testing import assert_close

FIRST, SECOND = "decoder.blocks.0.self_attn", "decoder.blocks.1.self_attn"


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@needs_gpu
@pytest.mark.parametrize("positions", ["rotary", "relative"])
@torch.no_grad()
def test_masked_equals_removed(positions, tmp_path):
    config = decoder_config(n_heads=4, n_kv_heads=2, head_size=8, positions=positions)
    model = scrambled(config, dtype=torch.float32).cuda()
    heads = {FIRST: [0, 1], SECOND: [0, 1, 2, 3]}
    tokens = ids(2, 7).cuda()
    with ablate_heads(model, heads):
        want = model(tokens)
    pruned = prune_heads(model, heads)
    save_model(tmp_path, pruned)
    for each in (pruned, load_model(tmp_path, device="cuda")):
        assert_close(each(tokens), want, atol=1e-4, rtol=1e-4)
        for static in (False, True):
            cache = each.new_cache(static=static, batch_size=2)
            parts = [each(tokens[:, :3], cache=cache), each(tokens[:, 3:], cache=cache)]
            assert_close(torch.cat(parts, 1), want, atol=1e-4, rtol=1e-4)


@needs_gpu
def test_scores_are_those_of_the_cpu():
    model = scrambled(decoder_config())
    batch = Batch(ids(3, 7), ids(3, 7))
    heads, layers = head_importance(model, [batch]), layer_importance(model, [batch])
    model.cuda()
    for name, score in head_importance(model, [batch]).items():
        assert score.device.type == "cpu"
        assert_close(score, heads[name], atol=1e-4, rtol=1e-3)
    for name, score in layer_importance(model, [batch]).items():
        assert score == pytest.approx(layers[name], rel=1e-3)
    gates = HardConcreteGates(model)
    with gates.attached(model):
        model(batch.inputs.cuda()).sum().backward()
    assert all(p.grad.device.type == "cuda" for p in gates.parameters())


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_few_keys(dtype):
    q, k, v = (torch.randn(2, n, 7, 16) for n in (6, 3, 3))
    want = top_k_attention(q, k, v, top_k=7, is_causal=True)
    got = top_k_attention(*(x.to("cuda", dtype) for x in (q, k, v)), top_k=7, is_causal=True)
    assert_close(got.cpu().float(), want, atol=1e-5 if dtype == torch.float32 else 0.05, rtol=0)
    few = top_k_attention(*(x.to("cuda", dtype) for x in (q, k, v)), top_k=2, is_causal=True)
    assert few.isfinite().all()


@needs_gpu
@pytest.mark.parametrize("scheme", ["int8", "int4", "int4_asymmetric", "nf4"])
@torch.no_grad()
def test_codes_made_here_or_there(scheme, tmp_path):
    model = scrambled(decoder_config(), dtype=torch.float32)
    tokens = ids(2, 7)
    small = quantize(model, scheme)
    want = small(tokens)
    save_quantized(tmp_path, small)
    on_gpu = load_quantized(tmp_path, device="cuda")
    assert_close(on_gpu(tokens.cuda()).cpu(), want, atol=1e-3, rtol=1e-3)
    made_there = quantize(model.cuda(), scheme)
    layer, other = (m.decoder.blocks[0].self_attn.q_proj for m in (made_there, on_gpu))
    assert_close(layer.weight, other.weight, atol=1e-5, rtol=1e-5)
    assert made_there.half()(tokens.cuda()).isfinite().all()


@needs_gpu
@pytest.mark.parametrize("scheme", [None, "nf4"])
def test_adapters_learn(scheme):
    model = scrambled(decoder_config(), dtype=torch.float32).cuda()
    adapted = add_lora(model if scheme is None else quantize(model, scheme)).train()
    batch = Batch(ids(3, 7), ids(3, 7))
    optimizer = make_optimizer(adapted, lr=0.01)
    losses = [train_step(adapted, [batch], optimizer, precision="bfloat16").nll for _ in range(7)]
    assert losses[-1] < losses[0]
    tokens = ids(2, 7).cuda()
    adapted.eval()
    assert_close(merge_lora(adapted)(tokens), adapted(tokens), atol=1e-3, rtol=1e-3)


@needs_gpu
@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is optional")
@pytest.mark.parametrize("scheme", ["int8", "int8_dynamic"])
def test_C03_torchao_quantises_on_the_gpu(scheme):
    sizes = {"d_model": 64, "n_heads": 4, "d_ff": 128}  # its kernels want multiples of 16
    model = scrambled(decoder_config(**sizes), dtype=torch.bfloat16).cuda()
    tokens = ids(4, 23).cuda()
    small = quantize(model, scheme, backend="torchao")
    report = quantization_report(model, small, tokens)
    assert report.kept == ()
    assert 0 < report.max_logit_change < 0.3 * float(model(tokens).detach().abs().max())
