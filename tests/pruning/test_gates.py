"""Gates: at one nothing changes, at zero the head is gone, and learning closes them."""

import pytest
import torch
from glassformer import build_model
from glassformer.errors import ConfigError
from glassformer.introspect import ablate_heads
from glassformer.pruning import HardConcreteGates, gated_heads, prune_heads
from glassformer.training import Batch, batch_loss
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config
from torch.testing import assert_close

FIRST, SECOND = "decoder.blocks.0.self_attn", "decoder.blocks.1.self_attn"


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def set_gates(gates, values):
    """Parameters far on either side: gates of exactly 0 or 1."""
    with torch.no_grad():
        for log_alpha, opens in zip(gates.log_alpha, values, strict=True):
            log_alpha.copy_(torch.tensor([20.0 if o else -20.0 for o in opens]))


def test_a_whole_number_to_start_at(no_shape_checks):
    gates = HardConcreteGates(build_model(decoder_config()), start=2)
    assert torch.equal(gates.log_alpha[0], torch.full((3,), 2.0))


@pytest.mark.parametrize("eager", [False, True])
def test_gates_of_one_and_zero(eager):
    model = scrambled(decoder_config())
    for block in model.decoder.blocks:
        block.self_attn.eager = eager
    tokens = ids(2, 7)
    want = model(tokens)
    with gated_heads(model, {FIRST: lambda heads: torch.ones(3).double()}):
        assert torch.equal(model(tokens), want)
    with ablate_heads(model, {FIRST: [0, 2]}):
        want = model(tokens)
    with gated_heads(model, {FIRST: lambda heads: torch.tensor([0.0, 1.0, 0.0]).double()}):
        assert_close(model(tokens), want)
    assert hooks(model) == 0


def test_a_gate_sees_the_heads_and_scales_them():
    model = scrambled(decoder_config())
    attention = model.get_submodule(FIRST)
    x = torch.randn(2, 5, 30).double()
    seen = []

    def gate(heads):
        seen.append(heads)
        return torch.tensor([2.0, 0.5, -1.0]).double()

    with gated_heads(attention, {"": gate}):
        got = attention(x)
    (heads,) = seen
    assert heads.shape == (2, 5, 3, 10)
    scaled = heads * torch.tensor([2.0, 0.5, -1.0]).double()[:, None]
    assert_close(got, attention.o_proj(scaled.flatten(-2)))


def test_nothing_stays_after_an_exception():
    model = scrambled(decoder_config())
    gates = HardConcreteGates(model)
    try:
        with gates.attached(model):
            assert hooks(model) == 2
            raise RuntimeError("in the middle")
    except RuntimeError:
        pass
    assert hooks(model) == 0
    assert not any("gate" in name or "log_alpha" in name for name in model.state_dict())


def test_unknown_names():
    with (
        pytest.raises(ConfigError, match="'encoder' is no attention of this model"),
        gated_heads(scrambled(decoder_config()), {"encoder": lambda heads: heads}),
    ):
        pass
    gates = HardConcreteGates(scrambled(encoder_config()))
    with (
        pytest.raises(ConfigError, match="is no attention of this model"),
        gates.attached(scrambled(decoder_config())),
    ):
        pass


def test_gates_are_drawn_as_the_paper_says():
    """Shares of exact zeros and ones, against the closed form; the penalty is one of them."""
    gates = HardConcreteGates(scrambled(encoder_config(n_heads=1)), start=0.5)
    drawn = torch.stack([torch.stack(list(gates().values())) for _ in range(6000)])
    assert drawn.min() == 0
    assert drawn.max() == 1
    temperature, low, high = 2 / 3, -0.1, 1.1

    def share_below(x):  # of the stretched gate: P(gate <= x)
        u = torch.tensor((x - low) / (high - low))
        return float((u.logit() * temperature - 0.5).sigmoid())

    assert float((drawn == 0).double().mean()) == pytest.approx(share_below(0.0), abs=0.02)
    assert float((drawn == 1).double().mean()) == pytest.approx(1 - share_below(1.0), abs=0.02)
    assert gates.penalty().item() == pytest.approx(2 * (1 - share_below(0.0)), rel=1e-5)


def test_each_pass_draws_anew_and_evaluation_does_not():
    model = scrambled(decoder_config())
    gates = HardConcreteGates(model, start=0.0)
    tokens = ids(2, 7)
    with gates.attached(model):
        assert not torch.equal(model(tokens), model(tokens))
        gates.eval()
        assert torch.equal(model(tokens), model(tokens))
    assert all(((g > 0) & (g < 1)).all() for g in gates().values())


def test_closed_gates_are_masked_heads_are_pruned_heads():
    model = scrambled(translator_config())
    gates = HardConcreteGates(model).eval()
    set_gates(gates, [[True, False, True]] * 2 + [[False, True, True], [False] * 3] * 2)
    assert gates.kept()["encoder.blocks.0.self_attn"] == [0, 2]
    assert gates.closed()["decoder.blocks.1.cross_attn"] == [0, 1, 2]
    given = ids(2, 7), ids(2, 5)
    with gates.attached(model):
        got = model(*given)
    with ablate_heads(model, gates.closed()):
        assert_close(got, model(*given))
    pruned = prune_heads(model, gates.closed())
    assert_close(got, pruned(*given))
    again = HardConcreteGates(pruned)
    assert again.kept() == {name: heads for name, heads in gates.kept().items() if heads}


def test_gradients_reach_gates_and_frozen_weights_stay():
    model = scrambled(decoder_config(), dtype=torch.float32).requires_grad_(False)
    gates = HardConcreteGates(model, start=0.0)
    batch = Batch(ids(3, 7), ids(3, 7))
    with gates.attached(model):
        loss = batch_loss(model, batch)
    (loss.total / loss.n_tokens).backward()
    assert all(p.grad.abs().sum() > 0 for p in gates.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_learning_closes_what_is_not_needed():
    """A head that nobody reads costs only the penalty; one that carries the answer stays."""
    torch.manual_seed(1)
    model = build_model(decoder_config(n_layers=1, dropout=0.0))
    batch = Batch(ids(5, 7), ids(5, 7))
    with torch.no_grad():
        model.get_submodule(FIRST).o_proj.weight[:, 10:20] = 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        batch_loss(model, batch).total.backward()
        model.get_submodule(FIRST).o_proj.weight.grad[:, 10:20] = 0
        optimizer.step()
    model.requires_grad_(False)
    gates = HardConcreteGates(model, start=1.0)
    optimizer = torch.optim.Adam(gates.parameters(), lr=0.2)
    for _ in range(60):
        optimizer.zero_grad()
        with gates.attached(model):
            loss = batch_loss(model, batch)
        (loss.total / loss.n_tokens + 0.02 * gates.penalty()).backward()
        optimizer.step()
    assert gates.closed() == {FIRST: [1]}
    assert gates.training


def test_other_precisions():
    model = scrambled(decoder_config())
    with HardConcreteGates(model).attached(model):
        assert model(ids(2, 3)).dtype == torch.float64
