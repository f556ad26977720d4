"""Weights that survive: ties, checkpoints, casts, copies, other lengths."""

import copy

import pytest
import torch
from glassformer import build_model
from glassformer.nn import init_weights
from glassformer.training import Batch, train_step
from safetensors.torch import load_file, save_file
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config
from torch.testing import assert_close

MAKERS = pytest.mark.parametrize("make", [decoder_config, translator_config])


def inputs(model):
    return (ids(2, 5),) if model.config.kind != "encoder_decoder" else (ids(2, 7), ids(2, 5))


def plain(model):
    other = build_model(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def assigned(model):
    other = build_model(model.config).eval()
    other.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    return other


def from_meta(model):
    with torch.device("meta"):
        other = build_model(model.config).double().eval()
    other.to_empty(device="cpu")
    other.load_state_dict(model.state_dict())
    return other


def from_meta_assigned(model):
    with torch.device("meta"):
        other = build_model(model.config).eval()
    other.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    return other


COPIES = [plain, assigned, from_meta, from_meta_assigned, copy.deepcopy]


@MAKERS
@pytest.mark.parametrize("copied", COPIES)
def test_T01_tie_survives(make, copied):
    """The head is the embedding in every case, and one step changes both."""
    model = scrambled(make())
    other = copied(model)
    assert other.head_weight is other.embedding.tokens.weight
    assert other.head_weight is not model.head_weight
    count = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in other.parameters()) == count
    given = inputs(model)
    assert torch.equal(other(*given), model(*given))
    before = other.embedding.tokens.weight.detach().clone()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    other(*given).logsumexp(-1).sum().backward()
    optimizer.step()
    assert not torch.equal(other.embedding.tokens.weight, before)
    assert torch.equal(other.head(torch.eye(30).double()).T, other.embedding.tokens.weight)


@MAKERS
def test_untied_head_is_its_own(make):
    model = scrambled(make(tie_embeddings=False))
    for copied in COPIES:
        other = copied(model)
        assert other.head_weight is other.lm_head.weight
        assert other.head_weight is not other.embedding.tokens.weight
        given = inputs(model)
        assert torch.equal(other(*given), model(*given))


@MAKERS
@pytest.mark.parametrize("tie", [True, False])
def test_T03_safetensors_round_trip(make, tie, tmp_path):
    """A format without sharing drops nothing, because nothing is stored twice."""
    model = scrambled(make(tie_embeddings=tie))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = build_model(model.config).double().eval()
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert (other.head_weight is other.embedding.tokens.weight) == tie
    given = inputs(model)
    assert torch.equal(other(*given), model(*given))


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "none"])
@pytest.mark.parametrize("make", [decoder_config, encoder_config, translator_config])
def test_E06_no_table_in_the_checkpoint(make, positions):
    """Weights of a short model load strictly into a longer one."""
    model = scrambled(make(positions=positions, max_len=11))
    longer = build_model(make(positions=positions, max_len=97)).double().eval()
    longer.load_state_dict(model.state_dict(), strict=True)
    given = inputs(model)
    assert torch.equal(longer(*given), model(*given))
    assert not list(model.buffers())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("make", [decoder_config, encoder_config, translator_config])
def test_T06_pad_row_is_zero_at_the_start(make):
    """After construction and after another initialisation."""
    changes = {"source_vocab_size": 31} if make is translator_config else {}
    model = build_model(make(pad_id=3, positions="sinusoidal", **changes))
    tables = [model.embedding.tokens]
    if make is translator_config:
        tables.append(model.source_embedding.tokens)
    for _ in range(2):
        for table in tables:
            assert torch.equal(table.weight[3], torch.zeros(30))
            assert table.weight[2].abs().sum() > 0
        init_weights(model)


@MAKERS
@pytest.mark.parametrize("tie", [True, False])
def test_T06_only_a_tied_head_trains_the_pad_row(make, tie):
    """The row is looked up here, which moves nothing; a tied head reads it as any other."""
    changes = {} if tie or make is decoder_config else {"source_vocab_size": 31}
    model = build_model(make(pad_id=3, tie_embeddings=tie, **changes))
    read = [tokens.index_fill(1, torch.tensor([2]), 3) for tokens in inputs(model)]
    tables = [model.embedding.tokens]
    if make is translator_config:
        tables.append(model.source_embedding.tokens)
    source = read[0] if make is translator_config else None
    batch = Batch(read[-1], ids(2, 5, low=4), source=source)
    train_step(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1))
    for table in tables:
        assert bool(table.weight[3].any()) == tie


@pytest.mark.parametrize("make", [decoder_config, encoder_config, translator_config])
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_P05_half_precision_at_late_positions(make, positions, dtype, tolerance):
    """The whole model in half precision is close at late positions too."""
    model = build_model(make(positions=positions, max_len=2048)).eval()
    given = (ids(1, 1500),) if make is not translator_config else (ids(1, 7), ids(1, 1500))
    half = copy.deepcopy(model).to(dtype)
    with torch.no_grad():
        want, got = model(*given), half(*given)
    assert got.dtype == dtype
    assert got.isfinite().all()
    assert_close(got.float(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("make", [decoder_config, encoder_config, translator_config])
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_autocast(make, positions, norm):
    """Float32 weights, bfloat16 products: output close, gradients float32 and finite."""
    model = build_model(make(positions=positions, norm=norm))
    given = (ids(2, 7),) if make is not translator_config else (ids(2, 7), ids(2, 5))
    want = model(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model(*given)
        got.float().square().mean().backward()
    assert_close(got.float(), want, atol=0.1, rtol=0.1)
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


def test_same_seed_same_weights():
    weights = []
    for _ in range(2):
        torch.manual_seed(11)
        weights.append(build_model(decoder_config()).state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.parametrize("make", [decoder_config, encoder_config, translator_config])
def test_every_parameter_is_used(make):
    changes = {"n_segments": 2, "embedding_norm": True} if make is encoder_config else {}
    changes |= {"source_vocab_size": 31} if make is translator_config else {}
    model = scrambled(make(positions="learned", **changes))
    model(*inputs(model)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("k_proj.bias"):  # a shift of all keys moves no softmax
            assert parameter.grad.abs().sum() > 0, name
