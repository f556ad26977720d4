"""One optimiser step: the order of its parts, accumulation by tokens, precision, recomputation."""

import math

import pytest
import torch
import torch.nn.functional as F
from glassformer import EncoderDecoder
from glassformer.errors import CacheError, ConfigError, GlassformerError
from glassformer.introspect import collect_router
from glassformer.nn import Stack, load_balancing_loss
from glassformer.training import (
    Batch,
    autocast,
    batch_loss,
    make_optimizer,
    make_scaler,
    train_step,
)
from support.core import translator_config
from support.runs import make_trainer, tiny_decoder, token_ids, weights_of
from torch import nn

CPU = torch.device("cpu")


def batch_of(rows, length=7, seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 29, (rows, length + 1), generator=generator)
    return Batch(tokens[:, :-1], tokens[:, 1:], **changes)


class Recorder(torch.optim.SGD):
    """Keeps the gradients that reach the optimiser."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.1)
        self.seen = []

    def step(self, closure=None):
        self.seen.append([p.grad.clone() for g in self.param_groups for p in g["params"]])
        return super().step(closure)


class Fixed(nn.Module):
    """Predicts ids 0 and 1 with probability exp(-4) and exp(-1) at every place, after training 0.

    ``shift`` is the only parameter, added to all logits of class 0.
    """

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))
        rest = math.log(1 - math.exp(-4) - math.exp(-1))
        self.register_buffer("logits", torch.tensor([-4.0, -1.0, rest]))

    def forward(self, tokens):
        first = F.one_hot(torch.zeros_like(tokens), 3) * self.shift
        return self.logits.expand(*tokens.shape, 3) + first


def test_O03_tokens_weigh_the_same_however_they_are_split():
    """One token with NLL 4 and nine with NLL 1 make 1.3, not 2.5."""
    one = Batch(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64))
    nine = Batch(torch.zeros(3, 3, dtype=torch.int64), torch.ones(3, 3, dtype=torch.int64))
    big = Batch(
        torch.zeros(1, 10, dtype=torch.int64), torch.tensor([[0, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
    )
    gradients = []
    for batches in ([one, nine], [nine, one], [big]):
        model = Fixed()
        optimizer = Recorder(model)
        result = train_step(model, batches, optimizer, clip_norm=None)
        assert result.n_tokens == 10
        assert result.nll / result.n_tokens == pytest.approx(1.3)
        gradients.append(optimizer.seen[0][0])
    torch.testing.assert_close(gradients[0], gradients[2])
    torch.testing.assert_close(gradients[1], gradients[2])


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_O03_accumulated_gradients_equal_those_of_one_big_batch(eps):
    big = batch_of(5)
    mask = torch.rand(big.targets.shape, generator=torch.Generator().manual_seed(4)) < 0.6
    big = Batch(big.inputs, big.targets, mask)
    parts = [Batch(big.inputs[i], big.targets[i], mask[i]) for i in (slice(1), slice(1, 5))]
    seen = []
    for batches in (parts, [big]):
        model = tiny_decoder(pad_id=0)
        optimizer = Recorder(model)
        result = train_step(model, batches, optimizer, clip_norm=None, label_smoothing=eps)
        seen.append((result, optimizer.seen[0]))
    assert seen[0][0].n_tokens == seen[1][0].n_tokens == int(mask.sum())
    assert seen[0][0].nll == pytest.approx(seen[1][0].nll)
    torch.testing.assert_close(seen[0][1], seen[1][1], rtol=1e-4, atol=1e-6)


def test_L03_a_micro_batch_in_which_nothing_counts_changes_nothing():
    real = batch_of(3)
    empty = Batch(real.inputs, real.targets, torch.zeros_like(real.targets, dtype=torch.bool))
    after = []
    for batches in ([real, empty], [real]):
        model = tiny_decoder()
        result = train_step(model, batches, make_optimizer(model, lr=0.1))
        assert result.n_tokens == 21
        after.append(weights_of(model))
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])


def test_L03_a_step_in_which_nothing_counts_is_no_step():
    model = tiny_decoder()
    before = weights_of(model)
    real = batch_of(3)
    empty = Batch(real.inputs, real.targets, torch.zeros_like(real.targets, dtype=torch.bool))
    assert train_step(model, [empty], make_optimizer(model, lr=0.1)) == (0.0, 0, 0.0)
    assert all(torch.equal(before[name], value) for name, value in weights_of(model).items())


class LoudScaler:
    """Multiplies like the scaler of float16, on a CPU, and notes the order of its calls."""

    def __init__(self, factor=1024.0):
        self.factor, self.calls = factor, []

    def scale(self, loss):
        self.calls.append("scale")
        return loss * self.factor

    def unscale_(self, optimizer):
        self.calls.append("unscale")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self.factor

    def step(self, optimizer):
        self.calls.append("step")
        optimizer.step()

    def update(self):
        self.calls.append("update")

    def is_enabled(self):
        return True

    def get_scale(self):
        return self.factor


def test_O05_gradients_are_unscaled_before_they_are_clipped(no_shape_checks):
    batch = batch_of(3)
    results = []
    for scaler in (LoudScaler(), None):
        model = tiny_decoder()
        optimizer = Recorder(model)
        result = train_step(model, [batch], optimizer, clip_norm=0.5, scaler=scaler)
        results.append((result.grad_norm, optimizer.seen[0]))
        if scaler:
            assert scaler.calls == ["scale", "unscale", "step", "update"]
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1])


def test_clipping_shortens_and_the_report_gives_the_length_before():
    batch = batch_of(3)
    model = tiny_decoder()
    optimizer = Recorder(model)
    free = train_step(model, [batch], optimizer, clip_norm=None)
    model = tiny_decoder()
    optimizer = Recorder(model)
    clipped = train_step(model, [batch], optimizer, clip_norm=0.01)
    length = math.sqrt(sum(float(g.pow(2).sum()) for g in optimizer.seen[0]))
    assert clipped.grad_norm == pytest.approx(free.grad_norm)
    assert free.grad_norm > 0.01
    assert length == pytest.approx(0.01, rel=1e-3)


def test_gradients_of_before_and_after_do_not_leak():
    batch = batch_of(3)
    results = []
    for stale in (True, False):
        model = tiny_decoder()
        if stale:
            model(batch.inputs).sum().backward()
        optimizer = Recorder(model)
        train_step(model, [batch], optimizer)
        assert all(p.grad is None for p in model.parameters())
        results.append(optimizer.seen[0])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("poison", ["weights", "gradients"])
def test_what_is_not_finite_stops_the_step_before_the_weights(poison):
    model = tiny_decoder()
    if poison == "weights":
        model.decoder.norm.weight.data[0] = math.nan
    else:
        model.decoder.norm.weight.register_hook(lambda grad: grad * math.inf)
    before = weights_of(model)
    match = "the loss is nan" if poison == "weights" else "the gradient has length"
    with pytest.raises(GlassformerError, match=match):
        train_step(model, [batch_of(3)], make_optimizer(model, lr=0.1))
    for name, value in weights_of(model).items():
        torch.testing.assert_close(value, before[name], equal_nan=True, rtol=0, atol=0)


def test_a_scaler_may_meet_gradients_that_overflow_until_its_scale_is_gone(no_shape_checks):
    """float16 overflows now and then; the scaler then skips the step and scales less."""

    class Skipping(LoudScaler):
        def step(self, optimizer):
            self.calls.append("skip")

    model = tiny_decoder()
    model.decoder.norm.weight.register_hook(lambda grad: grad * math.inf)
    scaler = Skipping()
    result = train_step(model, [batch_of(3)], make_optimizer(model, lr=0.1), scaler=scaler)
    assert math.isnan(result.grad_norm) or math.isinf(result.grad_norm)
    assert scaler.calls[-2:] == ["skip", "update"]
    with pytest.raises(GlassformerError, match="the gradient has length"):
        train_step(model, [batch_of(3)], make_optimizer(model, lr=0.1), scaler=Skipping(factor=1.0))


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_scaler_goes_on_after_a_refused_step(poison):
    model, batch = tiny_decoder(), batch_of(3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    weight = model.decoder.norm.weight
    if poison == "loss":
        good = weight.detach().clone()
        weight.data[0] = math.nan
    else:
        handle = weight.register_hook(lambda grad: grad * math.inf)
    optimizer = make_optimizer(model, lr=0.1)
    with pytest.raises(GlassformerError, match=f"the {poison}"):
        train_step(model, [batch], optimizer, scaler=scaler)
    if poison == "loss":
        weight.data.copy_(good)
    else:
        handle.remove()
    before = weights_of(model)
    result = train_step(model, [batch], optimizer, scaler=scaler)
    assert math.isfinite(result.grad_norm)
    assert any(not torch.equal(before[name], value) for name, value in weights_of(model).items())


def test_bfloat16_is_close_and_keeps_float32_weights():
    batch = batch_of(5, length=13)
    gradients = {}
    for precision in ("float32", "bfloat16"):
        model = tiny_decoder()
        optimizer = Recorder(model)
        result = train_step(model, [batch], optimizer, precision=precision, clip_norm=None)
        assert all(p.dtype == torch.float32 for p in model.parameters())
        gradients[precision] = torch.cat([g.flatten() for g in optimizer.seen[0]])
        gradients[precision, "nll"] = result.nll
    error = gradients["bfloat16"] - gradients["float32"]
    assert 0 < float(error.norm() / gradients["float32"].norm()) < 0.03
    assert gradients["bfloat16", "nll"] == pytest.approx(gradients["float32", "nll"], rel=1e-2)
    assert gradients["bfloat16", "nll"] != gradients["float32", "nll"]


def test_float16_off_cuda_is_refused():
    with pytest.raises(ConfigError, match=r"float16.*needs a CUDA device.*bfloat16"):
        make_scaler("float16", CPU)
    with pytest.raises(ConfigError, match="float16"):
        make_trainer(precision="float16")


def test_an_unknown_precision_is_refused(no_shape_checks):
    with pytest.raises(ConfigError, match="float8"):
        make_scaler("float8", CPU)


def test_autocast_restores_what_was():
    with autocast("bfloat16", CPU):
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
    assert not make_scaler("bfloat16", CPU).is_enabled()


def checkpointed(model):
    for module in model.modules():
        if isinstance(module, Stack):
            module.checkpoint_blocks = True
    return model


@pytest.mark.parametrize("frozen", [False, True], ids=["all", "embedding frozen"])
def test_O12_recomputation_changes_no_gradient(frozen):
    """Also where the input of the first block needs none; warnings are errors here."""
    batch = batch_of(3)
    gradients = []
    for prepare in (lambda model: model, checkpointed):
        model = prepare(tiny_decoder(dropout=0.1, tie_embeddings=False)).train()
        if frozen:
            model.embedding.requires_grad_(False)
        torch.manual_seed(2)
        batch_loss(model, batch).mean.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert ("embedding.tokens.weight" in gradients[0]) is not frozen
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


def test_O14_recomputation_refuses_a_cache():
    model = checkpointed(tiny_decoder()).train()
    cache = model.new_cache()
    with pytest.raises(CacheError, match="runs twice"):
        model(token_ids(5)[None], cache=cache)
    assert cache.length == 0
    with torch.no_grad():
        model(token_ids(5)[None], cache=cache)  # nothing is recomputed without gradients
    assert cache.length == 5


def test_O14_the_trainer_switches_recomputation():
    weights = []
    for on in (False, True):
        trainer = make_trainer(checkpoint_blocks=on)
        list(trainer.run(until=3))
        assert trainer.model.decoder.checkpoint_blocks is on
        weights.append(weights_of(trainer.model))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_translators_train_on_pairs():
    """The chunked path equals the model's own logits, with padding on both sides."""
    torch.manual_seed(0)
    model = EncoderDecoder(translator_config(pad_id=0))
    batch = batch_of(
        3,
        target_mask=torch.arange(7).expand(3, 7) < torch.tensor([[7], [4], [2]]),
        source=torch.randint(1, 29, (3, 5)),
        source_mask=torch.arange(5).expand(3, 5) < torch.tensor([[5], [1], [3]]),
    )
    loss = batch_loss(model, batch, label_smoothing=0.1)
    logits = model(batch.source, batch.inputs, source_mask=batch.source_mask)
    counts = batch.target_mask
    expected = F.cross_entropy(logits[counts], batch.targets[counts], reduction="sum")
    assert loss.n_tokens == 13
    torch.testing.assert_close(loss.nll, expected.detach())

    class Wrapped(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **keywords):
            return self.module(*args, **keywords)

    wrapped = batch_loss(Wrapped(model), batch, label_smoothing=0.1)
    torch.testing.assert_close(wrapped.total, loss.total)


def test_the_balance_of_every_mixture_is_added_for_each_token():
    """And only of real tokens: a row with more padding behind it is as crowded as before."""
    torch.manual_seed(0)
    model = tiny_decoder(n_experts=5, experts_per_token=2)
    batch = batch_of(1, length=11, target_mask=torch.arange(11)[None] < 7)
    plain, balanced = batch_loss(model, batch), batch_loss(model, batch, balance=0.3)
    with collect_router(model) as routings:
        model(batch.inputs[:, :7])
    crowding = sum(load_balancing_loss(r.probs, r.chosen) for r in routings.values())
    assert len(routings) > 1
    torch.testing.assert_close(balanced.total, plain.total + 0.3 * 7 * crowding)
    torch.testing.assert_close(balanced.nll, plain.nll)


def test_accumulation_weighs_balance_by_tokens():
    torch.manual_seed(0)
    model = tiny_decoder(n_experts=5)
    batches = [batch_of(2, length=3), batch_of(1, length=7, seed=1)]
    losses = [batch_loss(model, batch, balance=0.3) for batch in batches]
    sum(loss.total for loss in losses).div(13).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    recorder = Recorder(model)
    train_step(model, batches, recorder, balance=0.3, clip_norm=None)
    torch.testing.assert_close(recorder.seen[0], expected)


def test_a_trainer_keeps_the_experts_in_balance():
    """All routers start at one expert; the balancing loss brings the others back."""

    def busiest(balance):
        model = tiny_decoder(n_experts=4, experts_per_token=1, n_layers=1)
        block = model.decoder.blocks[0]
        with torch.no_grad():
            block.feed_forward_norm.bias.fill_(1.0)
            block.feed_forward.router.weight[0] += 0.1
        trainer = make_trainer(model=model, steps=30, warmup=0, balance=balance)
        for _ in trainer.run():
            pass
        with collect_router(model) as routings:
            model(token_ids(400).view(40, 10))
        (routing,) = routings.values()
        return routing.chosen.flatten().bincount(minlength=4).max() / routing.chosen.numel()

    alone, balanced = busiest(0.0), busiest(0.1)
    assert balanced < 0.5 < alone


def test_a_balance_without_experts_is_refused():
    with pytest.raises(GlassformerError, match="no MixtureOfExperts"):
        batch_loss(tiny_decoder(), batch_of(2), balance=0.01)
