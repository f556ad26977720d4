"""A prepared decoder on a GPU writes what the model writes."""

import pytest
import torch
from glassformer.generation import generate
from glassformer.inference import prepare
from support.core import decoder_config, ids, scrambled
from support.gpu import needs_gpu
from torch.testing import assert_close


@needs_gpu
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal", "relative"])
def test_a_prepared_decoder_writes_the_same(positions, static):
    model = scrambled(decoder_config(positions=positions, n_kv_heads=1), dtype=torch.float32).cuda()
    prepared = prepare(model)
    cache = prepared.new_cache(static=static, batch_size=2)
    want = generate(model, [[3, 5, 7], [11]], max_new_tokens=11)
    got = generate(prepared, [[3, 5, 7], [11]], max_new_tokens=11, cache=cache)
    assert got.to_lists() == want.to_lists()


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-2), (torch.bfloat16, 6e-2)])
@torch.no_grad()
def test_half_precision(dtype, tolerance):
    model = scrambled(decoder_config(), dtype=torch.float32).cuda()
    tokens = ids(2, 9).cuda()
    want = model(tokens)
    got = prepare(model, dtype=dtype)(tokens)
    assert got.dtype == dtype
    assert float((got.float() - want).norm() / want.norm()) < tolerance


@needs_gpu
@torch.no_grad()
def test_the_step_compiles_with_a_static_cache(no_shape_checks):
    model = scrambled(decoder_config(), dtype=torch.float32).cuda()
    prepared, tokens = prepare(model), ids(2, 9).cuda()
    step = torch.compile(prepared, fullgraph=True)
    cache = prepared.new_cache(static=True, batch_size=2)
    got = [step(tokens[:, i : i + 1], cache=cache) for i in range(9)]
    assert_close(torch.cat(got, dim=1), model(tokens), atol=1e-3, rtol=1e-4)
