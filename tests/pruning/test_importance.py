"""Scores: what the loss does when a gate moves, fair to every token, and without a trace."""

import copy

import pytest
import torch
import torch.nn.functional as F
from glassformer import EncoderConfig, build_model
from glassformer.errors import ConfigError, GlassformerError
from glassformer.introspect import ablate_heads
from glassformer.nn import MultiHeadAttention
from glassformer.pruning import (
    gated_heads,
    head_importance,
    layer_importance,
    prune_heads,
    random_importance,
    weakest_heads,
)
from glassformer.training import Batch, TokenLoss, batch_loss
from support.core import (
    decoder_config,
    encoder_config,
    forbid_float64_before_the_cpu,
    ids,
    scrambled,
    translator_config,
)
from torch import nn
from torch.testing import assert_close

FIRST, SECOND = "decoder.blocks.0.self_attn", "decoder.blocks.1.self_attn"


def text(rows=3, time=7):
    return Batch(ids(rows, time), ids(rows, time))


def pairs(rows=3):
    real = torch.arange(7) < torch.tensor([7, 3, 5])[:rows, None]
    counts = torch.arange(5) < torch.tensor([2, 5, 4])[:rows, None]
    return Batch(ids(rows, 5), ids(rows, 5), counts, ids(rows, 7), real)


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def exact_loss(model, batch):
    """The sum over the tokens in float64, which small steps need."""
    with torch.no_grad():
        logits = model(batch.inputs)
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum").item()


def by_moving_the_gates(model, batch, name):
    """The change of the loss with each gate of each token, by finite differences."""
    step = 1e-6
    n_heads = model.get_submodule(name).n_heads

    def loss(gates):
        with gated_heads(model, {name: lambda heads: gates}):
            return exact_loss(model, batch)

    scores = torch.zeros(n_heads, dtype=torch.double)
    time = batch.inputs.shape[1]
    for t in range(time):
        for h in range(n_heads):
            gates = torch.ones(1, time, n_heads, dtype=torch.double)
            gates[0, t, h] += step
            up = loss(gates)
            gates[0, t, h] -= 2 * step
            scores[h] += abs(up - loss(gates)) / (2 * step)
    return scores / batch_loss(model, batch).n_tokens


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_equals_moving_the_gates(name):
    model = scrambled(decoder_config())
    batch = text(rows=1, time=5)
    got = head_importance(model, [batch], normalize=False)[name]
    assert_close(got.double(), by_moving_the_gates(model, batch, name), atol=1e-5, rtol=1e-3)


def test_nothing_is_float64_before_it_is_on_the_cpu(monkeypatch):
    model = scrambled(decoder_config(), dtype=torch.float32)
    want = layer_importance(model, [text()])
    forbid_float64_before_the_cpu(monkeypatch)
    assert layer_importance(model, [text()]).keys() == want.keys()


def test_all_attentions_of_a_translator():
    model = scrambled(translator_config(n_encoder_layers=1))
    scores = head_importance(model, [pairs()])
    assert set(scores) == {
        "encoder.blocks.0.self_attn",
        *(f"decoder.blocks.{i}.{kind}_attn" for i in range(2) for kind in ("self", "cross")),
    }
    for score in scores.values():
        assert score.shape == (3,)
        assert (score > 0).all()
        assert_close(score.norm(), torch.tensor(1.0))


@pytest.mark.parametrize("score", [head_importance, layer_importance])
def test_how_the_text_is_cut_into_batches_changes_nothing(score):
    model = scrambled(translator_config())
    whole = pairs()
    rows = [
        Batch(
            *(x[i : i + 1] for x in (whole.inputs, whole.targets, whole.target_mask)),
            whole.source[i : i + 1],
            whole.source_mask[i : i + 1],
        )
        for i in range(3)
    ]
    at_once, apart = score(model, [whole]), score(model, iter(rows))
    assert at_once.keys() == apart.keys()
    for name in at_once:
        assert_close(torch.as_tensor(apart[name]), torch.as_tensor(at_once[name]))


def test_padding_counts_for_nothing():
    model = scrambled(translator_config())
    batch = pairs()
    want = head_importance(model, [batch], normalize=False)
    other = Batch(
        batch.inputs.masked_fill(~batch.target_mask, 9),
        batch.targets.masked_fill(~batch.target_mask, 9),
        batch.target_mask,
        batch.source.masked_fill(~batch.source_mask, 9),
        batch.source_mask,
    )
    for name, score in head_importance(model, [other], normalize=False).items():
        assert_close(score, want[name])


def test_a_head_that_is_not_read_has_no_importance():
    model = scrambled(decoder_config())
    with torch.no_grad():
        model.get_submodule(FIRST).o_proj.weight[:, 10:20] = 0  # head 1
        model.get_submodule(SECOND).o_proj.weight[:, 0:10] *= 1e-3  # head 0
    scores = head_importance(model, [text()])
    assert scores[FIRST][1] == 0
    assert scores[FIRST][[0, 2]].min() > 0.01
    assert scores[SECOND].argmin() == 0
    assert weakest_heads(scores, 2) == {FIRST: [1], SECOND: [0]}


def test_a_layer_that_adds_nothing_has_no_importance():
    model = scrambled(decoder_config(n_layers=3))
    with torch.no_grad():
        for writer in ("self_attn.o_proj", "feed_forward.down_proj"):
            for parameter in model.get_submodule(f"decoder.blocks.1.{writer}").parameters():
                parameter.zero_()
    scores = layer_importance(model, [text()])
    assert list(scores) == [f"decoder.blocks.{i}" for i in range(3)]
    assert scores["decoder.blocks.1"] == 0
    assert min(scores["decoder.blocks.0"], scores["decoder.blocks.2"]) > 0.01


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_layer_scores_say_what_a_small_step_does(norm_position):
    """With one token, the score is how far the loss moves for a small step of the gate."""
    model = scrambled(decoder_config(norm_position=norm_position))
    batch = text(rows=1, time=1)
    score = layer_importance(model, [batch])["decoder.blocks.1"]
    losses = []
    for scale in (1 - 1e-6, 1 + 1e-6):
        hook = model.decoder.blocks[1].register_forward_hook(
            lambda module, args, out, scale=scale: args[0] + scale * (out - args[0])
        )
        losses.append(exact_loss(model, batch))
        hook.remove()
    assert score == pytest.approx(abs(losses[1] - losses[0]) / 2e-6, rel=1e-3)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("score", [head_importance, layer_importance])
def test_nothing_stays_behind(score, fails):
    model = scrambled(decoder_config(dropout=0.4, layer_drop=0.3)).train()
    model.decoder.blocks[0].eval()  # somebody's own choice
    before = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    batch, state = text(), torch.get_rng_state()

    def loss(model, batch):
        if fails:
            raise RuntimeError("in the middle")
        return batch_loss(model, batch)

    try:
        first = score(model, [batch], loss=loss)
    except RuntimeError:
        assert fails
    else:
        assert str(score(model, [batch])) == str(first)  # nothing is dropped meanwhile
    assert torch.equal(torch.get_rng_state(), state)
    assert hooks(model) == 0
    assert [module.training for module in model.modules()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert torch.is_grad_enabled()


def test_frozen_models_are_judged_too():
    model = scrambled(decoder_config()).requires_grad_(False)
    with torch.no_grad():
        scores = head_importance(model, [text()])
    assert all((score > 0).all() for score in scores.values())


def test_an_encoder_with_a_loss_of_its_own():
    model = scrambled(encoder_config())
    assert isinstance(model.config, EncoderConfig)

    def loss(model, batch):
        total = model(batch.inputs).square().sum().float()
        return TokenLoss(total, total.detach(), batch.inputs.numel())

    scores = head_importance(model, [text()], loss=loss)
    assert list(scores) == ["encoder.blocks.0.self_attn", "encoder.blocks.1.self_attn"]
    assert list(layer_importance(model, [text()], loss=loss)) == [
        "encoder.blocks.0",
        "encoder.blocks.1",
    ]


def test_scores_of_a_pruned_model_keep_their_numbers():
    model = prune_heads(scrambled(decoder_config()), {FIRST: [1], SECOND: [0, 1, 2]})
    for scores in (head_importance(model, [text()]), random_importance(model)):
        assert scores[FIRST].isnan().tolist() == [False, True, False]
        assert scores[SECOND].isnan().all()
        heads = weakest_heads(scores, 1)
        assert heads in ({FIRST: [0]}, {FIRST: [2]})
        prune_heads(model, heads)
        with pytest.raises(ConfigError, match="n=3 must be from 0 to 2"):
            weakest_heads(scores, 3)


def test_chance_is_repeatable_and_everywhere():
    model = scrambled(translator_config())
    state = torch.get_rng_state()
    scores = random_importance(model, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    names = {n for n, m in model.named_modules() if isinstance(m, MultiHeadAttention)}
    assert scores.keys() == names
    assert str(scores) == str(random_importance(model, seed=3))
    assert str(scores) != str(random_importance(model, seed=4))


def test_weakest_of_groups():
    scores = {"a": torch.tensor([1.0, 9.0, 3.0, 4.0]), "b": torch.tensor([0.5, 6.0, 2.0, 0.0])}
    assert weakest_heads(scores, 3) == {"a": [0], "b": [0, 3]}
    assert weakest_heads(scores, 4, group=2) == {"b": [0, 1, 2, 3]}
    assert weakest_heads(scores, 0) == {}
    for n in (3, 10, -2):
        with pytest.raises(ConfigError, match=f"n={n} must be from 0 to 8, in steps of group=2"):
            weakest_heads(scores, n, group=2)


def test_weakest_groups_can_be_pruned():
    model = scrambled(decoder_config(n_heads=6, n_kv_heads=3, head_size=6))
    scores = head_importance(model, [text()])
    heads = weakest_heads(scores, 4, group=2)
    tokens = ids(2, 7)
    with ablate_heads(model, heads):
        want = model(tokens)
    assert_close(prune_heads(model, heads)(tokens), want, atol=1e-10, rtol=0)


def test_text_without_tokens():
    model = scrambled(decoder_config())
    empty = Batch(ids(1, 3), ids(1, 3), torch.zeros(1, 3, dtype=torch.bool))
    for batches in ([], [empty]):
        with pytest.raises(ConfigError, match="no token counts in these batches"):
            head_importance(model, batches)


def test_a_model_without_heads():
    model = scrambled(decoder_config(n_layers=1))
    bare = prune_heads(model, {"decoder.blocks.0.self_attn": range(3)})
    with pytest.raises(ConfigError, match="no head is left to judge"):
        head_importance(bare, [text()])


def test_models_without_attention():
    with pytest.raises(GlassformerError, match="has no MultiHeadAttention"):
        head_importance(nn.Linear(2, 3), [text()])
    with pytest.raises(GlassformerError, match="has no Block"):
        layer_importance(nn.Linear(2, 3), [text()])
    with pytest.raises(GlassformerError, match="compiled"):
        head_importance(torch.compile(build_model(decoder_config()), backend="eager"), [text()])
