"""Packed tokens: the same numbers as padded rows, for the work of the real tokens."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from glassformer import build_model
from glassformer.errors import GlassformerError
from glassformer.inference import prepare
from glassformer.introspect import capture_attention
from glassformer.nn import FeedForward, MultiHeadAttention, Stack
from glassformer.training import Batch, batch_loss, kernel_for
from glassformer.training.packing import (
    Packing,
    packable,
    packed_decoder,
    packed_translator,
)
from support.core import decoder_config, ids, scrambled, translator_config
from torch import nn

CPU = torch.device("cpu")

VARIANTS = [
    {},
    {"norm_position": "post", "norm": "rms", "activation": "swiglu", "bias": False},
    {"positions": "sinusoidal", "activation": "relu"},
    {"positions": "learned", "tie_embeddings": False, "head_bias": True},
    {"positions": "none", "n_heads": 6, "n_kv_heads": 2, "qkv_bias": False},
    {"sliding_window": 3, "head_size": 4},
    {"n_experts": 3},
]


def names(changes):
    return "-".join(f"{key}={value}" for key, value in changes.items()) or "plain"


def mask_of(*lengths, left=False):
    columns = torch.arange(max(lengths))
    mask = columns < torch.tensor(lengths)[:, None]
    return mask.flip(1) if left else mask


def gradients(model, out, seed=3):
    """Of a random sum of ``out``, for every parameter that has a part in it."""
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad((out * weight).sum(), list(parameters.values()), allow_unused=True)
    return {n: g for n, g in zip(parameters, found, strict=True) if g is not None}


def assert_same(model, got, want):
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    theirs, ours = gradients(model, want), gradients(model, got)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 15
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("changes", VARIANTS, ids=names)
def test_a_decoder_on_packed_tokens(changes):
    model = scrambled(decoder_config(**changes))
    tokens, mask = ids(3, 7), mask_of(5, 7, 2)
    got = packed_decoder(model, tokens, Packing(mask))
    assert got.shape == (1, 14, 30)
    assert_same(model, got, model.hidden(tokens)[mask][None])


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("changes", VARIANTS, ids=names)
def test_a_translator_on_packed_tokens(changes, left):
    """Sources may be padded on either side, targets on the right."""
    model = scrambled(translator_config(n_encoder_layers=1, **changes))
    source, source_mask = ids(3, 11), mask_of(4, 1, 11, left=left)
    target, mask = ids(3, 7), mask_of(5, 7, 2)
    packings = Packing(source_mask), Packing(mask)
    got = packed_translator(model, source, target, source_mask=source_mask, packings=packings)
    memory = model.encode(source, token_mask=source_mask)
    want = model.decode(target, memory, memory_mask=source_mask)[mask][None]
    assert_same(model, got, want)


def test_one_full_side_is_packed_like_the_other():
    model = scrambled(translator_config())
    source, target, mask = ids(2, 3), ids(2, 5), mask_of(5, 2)
    full = torch.ones(2, 3, dtype=torch.bool)
    for source_mask in (full, None):
        packings = Packing(full), Packing(mask)
        got = packed_translator(model, source, target, source_mask=source_mask, packings=packings)
        torch.testing.assert_close(got[0], model.decode(target, model.encode(source))[mask])


def test_without_padding_no_bit_changes():
    model = scrambled(decoder_config(), dtype=torch.float32)
    tokens = ids(3, 7)
    assert torch.equal(packed_decoder(model, tokens, None), model.hidden(tokens))
    model = scrambled(translator_config(), dtype=torch.float32)
    got = packed_translator(model, ids(3, 5), tokens, source_mask=None, packings=None)
    assert got.shape == (3, 7, 30)


def test_a_packing_is_its_own_inverse():
    packing = Packing(mask_of(2, 5, 1))
    x = torch.randn(1, 3, 8, 7)
    rows = packing.spread(x)
    assert rows.shape == (3, 3, 5, 7)
    assert torch.equal(packing.gather(rows), x)
    assert float(rows.abs().sum()) == pytest.approx(float(x.abs().sum()))  # zeros between them
    whole = Packing(mask_of(5, 5))
    x = torch.randn(1, 3, 10, 7)
    assert torch.equal(whole.gather(whole.spread(x)), x)
    assert whole.spread(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def padded_loss(model, batch):
    logits = model(batch.source, batch.inputs, source_mask=batch.source_mask)
    counts = batch.target_mask & (batch.targets != 0)
    return F.cross_entropy(logits[counts], batch.targets[counts], reduction="sum")


def pair_batch(seed=0):
    """Padded on both sides; in the second row a target in the middle does not count."""
    torch.manual_seed(seed)
    target_mask = mask_of(7, 5, 2)
    target_mask[1, 2] = False
    return Batch(ids(3, 7), ids(3, 7), target_mask, ids(3, 11), mask_of(4, 11, 3))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_the_loss_of_a_padded_batch(norm_position):
    model = scrambled(translator_config(pad_id=0, norm_position=norm_position), dtype=torch.float32)
    batch = pair_batch()
    loss, want = batch_loss(model, batch).total, padded_loss(model, batch)
    torch.testing.assert_close(loss, want, rtol=1e-6, atol=1e-6)
    expected = torch.autograd.grad(want, list(model.parameters()))
    for ours, theirs in zip(
        torch.autograd.grad(loss, list(model.parameters())), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_L04_two_sentences_padded_to_5_and_to_50_are_the_same_batch():
    model = scrambled(translator_config(pad_id=0, max_len=53), dtype=torch.float32)
    source, target, mask = ids(2, 5), ids(2, 6), mask_of(5, 3)
    results = []
    for width in (5, 50):
        pad = partial(F.pad, pad=(0, width - 5))
        batch = Batch(pad(target[:, :-1]), pad(target[:, 1:]), pad(mask), pad(source), pad(mask))
        loss = batch_loss(model, batch, label_smoothing=0.1)
        assert loss.n_tokens == 8
        gradients = torch.autograd.grad(loss.mean, list(model.parameters()))
        results.append((loss.mean.detach(), gradients))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_only_the_tokens_that_a_target_depends_on_are_computed():
    model = scrambled(translator_config(), dtype=torch.float32)
    seen = []
    for stack in (model.encoder, model.decoder):
        (network,) = [m for m in stack.blocks[0].modules() if isinstance(m, FeedForward)]
        network.register_forward_hook(lambda _, args, out: seen.append(args[0].shape))
    batch_loss(model, pair_batch())
    assert seen == [(1, 4 + 11 + 3, 30), (1, 7 + 5 + 2, 30)]


def test_L03_rows_without_a_target_that_counts_cost_nothing_and_break_nothing():
    model = build_model(translator_config())
    batch = pair_batch()
    nothing = Batch(*vars(batch).values())
    batch.target_mask[0] = False
    assert batch_loss(model, batch).n_tokens == 6
    nothing.target_mask[:] = False
    loss = batch_loss(model, nothing)
    loss.mean.backward()
    assert loss.n_tokens == 0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("where", ["attention", "elsewhere"])
def test_dropout_has_the_same_spread(where):
    """Over many draws, both paths have the same mean and deviation."""
    torch.manual_seed(0)
    model = scrambled(translator_config(n_layers=1), dtype=torch.float32).train()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention) and where == "attention":
            module.dropout = 0.3
        if isinstance(module, nn.Dropout) and where == "elsewhere":
            module.p = 0.3
    batch, n = pair_batch(), 100
    with torch.no_grad():
        packed = torch.stack([batch_loss(model, batch).total for _ in range(n)])
        padded = torch.stack([padded_loss(model, batch) for _ in range(n)])
    error = float((packed.var() + padded.var()) / n) ** 0.5
    assert abs(float(packed.mean() - padded.mean())) < 5 * error
    assert float(packed.std()) == pytest.approx(float(padded.std()), rel=0.4)
    assert float(packed.std()) > 1e-2


def test_O12_recomputation_of_packed_tokens_changes_no_gradient():
    found = []
    for on in (False, True):
        torch.manual_seed(0)
        model = build_model(translator_config(dropout=0.1)).train()
        for module in model.modules():
            if isinstance(module, Stack):
                module.checkpoint_blocks = on
        torch.manual_seed(1)
        batch_loss(model, pair_batch()).mean.backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("kind", [decoder_config, translator_config])
def test_where_rows_are_needed_they_stay(kind):
    """Relative positions belong to rows, and so do weights that somebody looks at."""
    assert packable(build_model(kind()))
    relative = build_model(kind(positions="relative", pad_id=0))
    assert not packable(relative)
    model = scrambled(translator_config(pad_id=0), dtype=torch.float32)
    batch = pair_batch()
    with capture_attention(model) as maps:
        assert not packable(model)
        loss = batch_loss(model, batch)
    assert maps["decoder.blocks.0.cross_attn"].shape == (3, 3, 7, 11)
    torch.testing.assert_close(loss.total, padded_loss(model, batch))


def test_relative_positions_have_the_same_loss():
    model = scrambled(translator_config(pad_id=0, positions="relative"), dtype=torch.float32)
    batch = pair_batch()
    torch.testing.assert_close(batch_loss(model, batch).total, padded_loss(model, batch))


@pytest.mark.parametrize("config", [decoder_config(), translator_config()])
def test_a_model_prepared_for_writing_is_refused(config):
    source = ids(2, 7) if config.kind == "encoder_decoder" else None
    batch = Batch(ids(2, 5), ids(2, 5), source=source)
    with pytest.raises(GlassformerError, match="was made of"):
        batch_loss(prepare(scrambled(config).float()), batch)


def test_the_kernel_goes_by_length_only_at_bfloat16_on_a_cpu():
    assert kernel_for(16, torch.bfloat16, CPU) == "eager"
    assert kernel_for(255, torch.bfloat16, CPU) == "eager"
    assert kernel_for(256, torch.bfloat16, CPU) == "fused"
    for length in (1, 16, 4096):
        assert kernel_for(length, torch.float32, CPU) == "fused"
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            assert kernel_for(length, dtype, torch.device("cuda")) == "fused"


def test_the_chosen_kernel_is_the_one_that_runs(monkeypatch):
    used = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: used.append(a[0].shape) or fused(*a, **k)
    )
    model = build_model(decoder_config())
    assert any(isinstance(m, MultiHeadAttention) for m in model.modules())
    batch = Batch(ids(3, 7), ids(3, 7))
    batch_loss(model, batch)
    assert used == [(3, 3, 7, 10)] * 2
    with torch.autocast("cpu", torch.bfloat16):
        batch_loss(model, batch)
    assert len(used) == 2
