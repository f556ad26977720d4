"""The decode step of both kinds of model compiles whole, and once for all tokens."""

import pytest
import torch
from glassformer.generation import decode_step, encode_source, prefill
from support.core import decoder_config, ids, scrambled
from support.toys import listener
from torch._dynamo.testing import CompileCounter
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("no_shape_checks", "fresh_compiler")


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("kind", ["decoder", "translator"])
@torch.no_grad()
def test_C02_one_step_compiles_twice_at_most_for_twelve_tokens(kind):
    model = listener() if kind == "translator" else scrambled(decoder_config()).float()
    source_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    sources, tokens = ids(2, 5), ids(2, 14)
    source = None
    if kind == "translator":
        want = model(sources, tokens, source_mask=source_mask)
        source = encode_source(model, sources, token_mask=source_mask)
    else:
        want = model(tokens)
    cache = model.new_cache(static=True, batch_size=2, max_len=14)
    prefill(model, tokens[:, :2], cache, source=source)
    counter = CompileCounter()
    step = torch.compile(decode_step, backend=counter, fullgraph=True)
    for t in range(2, 14):
        logits = step(model, tokens[:, t], cache, source=source)
        assert_close(logits, want[:, t], atol=1e-4, rtol=0)
    assert 1 <= counter.frame_count <= 2
