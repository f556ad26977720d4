"""The core on a GPU: every kernel agrees with the CPU, and nothing stays behind on it."""

import pytest
import torch
from glassformer import attend, capture_attention
from glassformer.functional import alibi_bias, causal_mask, padding_mask, sliding_window_mask
from support.core import decoder_config, ids, scrambled, translator_config
from support.gpu import needs_gpu
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

# Tolerances of each dtype; float32 products on a GPU may run in TF32 unless told otherwise.
DTYPES = [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)]


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def qkv(dtype, q_len=5, k_len=7):
    q, k, v = (torch.randn(2, n, length, 16) for n, length in ((6, q_len), (3, k_len), (3, k_len)))
    return [x.to("cuda", dtype).requires_grad_() for x in (q, k, v)]


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("backend", [None, SDPBackend.MATH])
@pytest.mark.parametrize(
    "case", ["plain", "causal", "cached", "padding", "blind", "window", "alibi"]
)
def test_attend(case, backend, dtype, tolerance):
    q, k, v = qkv(dtype, q_len=7 if case in ("causal", "window") else 5)
    options = {}
    if case in ("causal", "cached", "padding", "alibi"):
        options["is_causal"] = True
    if case in ("padding", "blind"):
        lengths = torch.tensor([3, 0 if case == "blind" else 7], device="cuda")
        options["mask"] = padding_mask(torch.arange(7, device="cuda") < lengths[:, None])
    if case == "window":
        options["mask"] = sliding_window_mask(7, 3, device="cuda")
    if case == "alibi":
        options["bias"] = alibi_bias(6, 5, 7, device="cuda")
    want = attend(q, k, v, eager=True, **options)
    backends = [backend] if backend else list(SDPBackend.__members__.values())[1:]
    with sdpa_kernel(backends):
        got = attend(q, k, v, **options)
    assert got.isfinite().all()
    assert_close(got, want, atol=tolerance, rtol=0)
    for one, other in zip(
        torch.autograd.grad(got.float().square().sum(), (q, k, v)),
        torch.autograd.grad(want.float().square().sum(), (q, k, v)),
        strict=True,
    ):
        assert one.isfinite().all()
        assert_close(one, other, atol=5 * tolerance, rtol=5 * tolerance)
    if case == "blind":
        assert torch.equal(got[1], torch.zeros_like(got[1]))


@needs_gpu
@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
@torch.no_grad()
def test_decoder_equals_the_cpu(positions):
    model = scrambled(decoder_config(positions=positions, n_kv_heads=1))
    tokens = ids(2, 7)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, :3] = False
    want = model(tokens, token_mask=mask)
    model.cuda()
    got = model(tokens.cuda(), token_mask=mask.cuda())
    assert_close(got.cpu()[mask], want[mask], atol=1e-6, rtol=0)
    for static in (False, True):
        cache = model.new_cache(static=static, batch_size=2)
        parts = [
            model(tokens[:, a:b].cuda(), token_mask=mask[:, :b].cuda(), cache=cache)
            for a, b in ((0, 4), (4, 5), (5, 7))
        ]
        assert_close(torch.cat(parts, dim=1).cpu()[mask], want[mask], atol=1e-5, rtol=0)


@needs_gpu
@torch.no_grad()
def test_translator_and_captured_weights():
    model = scrambled(translator_config())
    source, target = ids(2, 7), ids(2, 5)
    want = model(source, target)
    model.cuda()
    with capture_attention(model) as maps:
        got = model(source.cuda(), target.cuda())
    assert_close(got.cpu(), want, atol=1e-6, rtol=0)
    assert {weights.device.type for weights in maps.values()} == {"cpu"}


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    model = scrambled(decoder_config(), dtype=torch.float32).cuda()
    tokens = ids(2, 7).cuda()
    want = model(tokens)
    with torch.autocast("cuda", dtype=dtype):
        got = model(tokens)
    got.float().square().mean().backward()
    assert (got.float() - want).abs().mean() < 0.05 * want.std()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@needs_gpu
def test_masks_are_made_on_the_gpu():
    offset = torch.tensor(2, device="cuda")
    assert causal_mask(3, 5, offset=offset, device="cuda").device.type == "cuda"
