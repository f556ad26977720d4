"""The loop: reports, windows of accumulation, resuming, the best model."""

import gc
import math
import random

import numpy as np
import pytest
import torch
from glassformer.errors import CheckpointError, ConfigError, GlassformerError
from glassformer.evaluation import evaluate_nll
from glassformer.generation import generate
from glassformer.training import Batch, BestModel, StepReport, TrainSettings, loop, train_step
from support.runs import NoisyData, digest, make_trainer, tiny_decoder, token_ids, weights_of


def dev_loss(model):
    return evaluate_nll(model, token_ids(61, seed=4), window=11).nll


def test_the_loss_falls():
    trainer = make_trainer(dropout=0.0, steps=61)
    reports = list(trainer.run())
    assert [r.step for r in reports] == list(range(1, 62))
    assert reports[0].loss == pytest.approx(math.log(29), rel=0.05)
    assert reports[-1].loss < 0.6 * reports[0].loss
    assert trainer.history == reports


def test_L05_reports_give_the_plain_loss_whatever_the_smoothing():
    """Before the first update the two runs are one model: smoothing changes only where it goes."""
    first = {}
    for eps in (0.0, 0.3):
        trainer = make_trainer(dropout=0.0, label_smoothing=eps, eval_every=1, dev_loss=dev_loss)
        before = trainer.evaluate()
        (report,) = trainer.run(until=1)
        first[eps] = (before, report.loss)
        assert report.grad_norm > 0
        first[eps, "norm"] = report.grad_norm
    assert first[0.0] == first[0.3]
    assert first[0.0, "norm"] != first[0.3, "norm"]


def test_learning_rates_follow_the_schedule():
    trainer = make_trainer(steps=13, warmup=3)
    assert [r.lr for r in trainer.run()] == [trainer.settings.lr_at(s) for s in range(13)]
    for schedule, last in (("cosine", 0.1), ("inverse_sqrt", (4 / 100) ** 0.5), ("constant", 1)):
        settings = TrainSettings(steps=99, lr=2e-3, warmup=4, schedule=schedule)
        assert settings.lr_at(3) == 2e-3
        assert settings.lr_at(99) == pytest.approx(2e-3 * last)


def test_a_run_stops_and_goes_on():
    trainer = make_trainer()
    assert len(list(trainer.run(until=4))) == 4
    for report in trainer.run():
        if report.step == 7:
            break
    assert trainer.step == 7
    assert next(trainer.run()).step == 8
    assert list(trainer.run(until=3)) == []


class FiveBatches:
    """Five micro-batches an epoch with 1, 2, 3, 4 and 5 rows of 7 tokens."""

    fingerprint = "five"

    def epoch(self, epoch):
        return [[n] for n in range(1, 6)]

    def load(self, indices):
        rows = token_ids(8 * indices[0], seed=indices[0]).reshape(indices[0], 8)
        return Batch(rows[:, :-1], rows[:, 1:])


def test_O04_the_last_window_of_an_epoch_is_a_step_of_its_own():
    trainer = make_trainer(FiveBatches(), accumulate=2, steps=6, dropout=0.0, lr=1e-2, warmup=0)
    reports = list(trainer.run())
    assert [r.n_tokens for r in reports] == [7 * 3, 7 * 7, 7 * 5] * 2
    assert [r.lr for r in reports] == [trainer.settings.lr_at(s) for s in range(6)]
    assert all(p.grad is None for p in trainer.model.parameters())

    by_hand = make_trainer(FiveBatches(), steps=6, dropout=0.0, lr=1e-2, warmup=0)
    load = FiveBatches().load
    for step, window in enumerate([[1, 2], [3, 4], [5]] * 2):
        for group in by_hand.optimizer.param_groups:
            group["lr"] = by_hand.settings.lr_at(step)
        train_step(by_hand.model, [load([n]) for n in window], by_hand.optimizer)
    assert digest(trainer.model) == digest(by_hand.model)


@pytest.mark.parametrize(
    ("stop", "accumulate"),
    [(3, 1), (10, 1), (17, 1), (6, 3)],
    ids=["mid-epoch", "end of epoch", "second epoch", "accumulating"],
)
def test_O09_resuming_changes_no_bit(stop, accumulate, no_shape_checks):
    """Ten batches an epoch, dropout, and noise in the data drawn from torch's random numbers."""
    keywords = {"accumulate": accumulate, "eval_every": 5, "dev_loss": dev_loss}
    whole = make_trainer(NoisyData(), **keywords)
    expected = list(whole.run(until=23))
    orders = [list(batch) for epoch in range(8) for batch in NoisyData().epoch(epoch)]
    assert whole.data.seen == orders[: len(whole.data.seen)]  # every epoch in its own order

    first = make_trainer(NoisyData(), **keywords)
    list(first.run(until=stop))
    state = first.state_dict()
    second = make_trainer(NoisyData(), model=tiny_decoder(seed=9, dropout=0.1), **keywords)
    torch.manual_seed(77)
    second.load_state_dict(state)
    got = list(second.run(until=23))

    assert first.data.seen + second.data.seen == whole.data.seen
    assert [(r.step, r.loss, r.dev_loss) for r in first.history + got] == [
        (r.step, r.loss, r.dev_loss) for r in expected
    ]
    assert second.history[:stop] == first.history
    assert digest(second.model) == digest(whole.model)
    assert (second.best.loss, second.best.step) == (whole.best.loss, whole.best.step)


def test_a_loaded_state_shares_no_memory_with_the_trainer_it_came_from():
    first, second = make_trainer(), make_trainer()
    list(first.run(until=3))
    second.load_state_dict(first.state_dict())
    before = digest(first.model), first.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    list(second.run(until=6))
    assert digest(first.model) == before[0]
    assert torch.equal(first.optimizer.state_dict()["state"][0]["exp_avg"], before[1])


def test_training_leaves_the_random_numbers_of_python_and_numpy_alone(no_shape_checks):
    """The checks of annotations draw from Python's random numbers; users run without them."""
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = random.random(), np.random.rand()  # noqa: NPY002
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    trainer = make_trainer()
    list(trainer.run(until=3))
    trainer.load_state_dict(trainer.state_dict())
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"lr": 2e-2}, r"other settings: lr=0\.01 there, 0\.02 here"),
        ({"data": NoisyData()}, "other data: 'text .*' there, 'noisy' here"),
        ({"dropout": 0.2}, r"other config: dropout=0\.1 there, 0\.2 here"),
    ],
)
def test_a_state_of_another_run_is_refused_and_nothing_changes(changes, match):
    state = make_trainer().state_dict()
    other = make_trainer(**changes)
    before = digest(other.model)
    with pytest.raises(CheckpointError, match=match):
        other.load_state_dict(state)
    assert digest(other.model) == before


def test_a_state_from_before_a_field_was_there_has_its_default():
    first, second = make_trainer(patience=None), make_trainer(model=tiny_decoder(9, dropout=0.1))
    list(first.run(until=3))
    state = first.state_dict()
    for saved, name in ((state["settings"], "patience"), (state["config"], "layer_drop")):
        del saved[name]
    second.load_state_dict(state)
    assert (second.step, digest(second.model)) == (3, digest(first.model))
    state["settings"]["speed"] = 7
    with pytest.raises(CheckpointError, match="other settings: speed=7 there, None here"):
        second.load_state_dict(state)


class Generators:
    """The state of each GPU of a machine, or of its only one, as torch's modules give it."""

    def __init__(self, *states):
        self.states = [torch.tensor([state]) for state in states]

    def get_rng_state(self, device=None):
        return self.states[0 if device is None else device.index]

    def set_rng_state(self, state, device=None):
        self.states[0 if device is None else device.index] = state


@pytest.mark.parametrize(
    ("device", "generators", "kept", "after"),
    [("cuda:1", Generators(2, 3, 5), 3, [2, 7, 5]), ("mps", Generators(2), 2, [7])],
)
def test_the_random_numbers_are_those_of_the_gpu_that_trains(
    device, generators, kept, after, monkeypatch
):
    monkeypatch.setattr(torch, "get_device_module", lambda kind: generators)
    device = torch.device(device)
    state = loop._random_state(device)
    assert state[device.type] == kept
    loop._set_random_state({**state, device.type: torch.tensor([7])}, device)
    assert torch.cat(generators.states).tolist() == after


def test_what_is_not_finite_names_the_step_and_keeps_the_weights():
    trainer = make_trainer(dropout=0.0)
    list(trainer.run(until=4))
    trainer.model.decoder.norm.weight.data[0] = math.inf
    before = weights_of(trainer.model)
    with pytest.raises(GlassformerError, match="step 5: the loss is nan"):
        next(trainer.run())
    assert trainer.step == 4
    after = weights_of(trainer.model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_O20_the_best_weights_are_a_copy():
    trainer = make_trainer(dev_loss=dev_loss)
    list(trainer.run(until=3))
    best_at_3 = trainer.evaluate()
    tokens = token_ids(9)[None]
    logits = trainer.model.eval()(tokens)
    for parameter in trainer.model.parameters():
        parameter.data.mul_(3.0)  # a worse model
    assert trainer.evaluate() > best_at_3
    assert (trainer.best.loss, trainer.best.step) == (best_at_3, 3)
    trainer.best.restore(trainer.model)
    assert torch.equal(trainer.model.eval()(tokens), logits)
    assert trainer.evaluate() == best_at_3


@pytest.mark.parametrize(
    ("losses", "taken"),
    [((1.0, math.nan, 0.9), [True, False, True]), ((math.nan, 1.0, 1.0), [False, True, False])],
)
def test_O21_nan_is_never_best_and_never_in_the_way(losses, taken):
    best, model = BestModel(), tiny_decoder()
    assert [best.update(loss, model, step) for step, loss in enumerate(losses)] == taken
    assert best.loss == min(loss for loss in losses if not math.isnan(loss))
    assert best.weights


def test_a_best_model_without_weights_restores_nothing():
    model = tiny_decoder()
    before = digest(model)
    BestModel().restore(model)
    assert digest(model) == before


def test_O22_history_is_plain_and_memory_stays_flat(no_shape_checks):
    def live_tensors():
        gc.collect()
        return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())

    gc.collect()
    gc.freeze()  # what earlier tests left behind is not counted: it may go meanwhile
    try:
        trainer = make_trainer(steps=60, dev_loss=dev_loss, eval_every=20)
        counts = [live_tensors() for report in trainer.run() if report.step in (25, 59)]
    finally:
        gc.unfreeze()
    assert counts[0] == counts[1] > 0
    for report in trainer.history:
        for name in StepReport.__dataclass_fields__:
            assert type(getattr(report, name)) in (int, float, type(None)), name


def test_O23_sampling_and_evaluating_inside_the_loop_change_nothing():
    plain, curious = make_trainer(), make_trainer(dev_loss=dev_loss)
    torch.manual_seed(1)
    list(plain.run(until=6))
    torch.manual_seed(1)
    curious.model.decoder.blocks[0].eval()
    for report in curious.run(until=6):
        if report.step == 3:
            flags = [module.training for module in curious.model.modules()]
            samples = [
                generate(curious.model, token_ids(4)[None], max_new_tokens=5).tokens
                for _ in range(2)
            ]
            curious.evaluate()
            assert torch.equal(*samples)
            assert [module.training for module in curious.model.modules()] == flags
    assert digest(plain.model) == digest(curious.model)


def test_dev_losses_come_when_it_is_time():
    trainer = make_trainer(steps=8, eval_every=3, dev_loss=dev_loss)
    reports = list(trainer.run())
    assert [r.step for r in reports if r.dev_loss is not None] == [3, 6, 8]
    assert trainer.best.loss == min(r.dev_loss for r in reports if r.dev_loss is not None)
    assert reports[-1].dev_loss == dev_loss(trainer.model)


def test_a_trainer_without_dev_loss_says_so():
    with pytest.raises(ConfigError, match="no dev_loss"):
        make_trainer().evaluate()
    with pytest.raises(ConfigError, match="eval_every=3 but nothing"):
        make_trainer(eval_every=3)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": None}, "steps=None must be a number"),
        ({"steps": 1.5}, "steps=1.5 must be a whole number"),
        ({"eval_every": 2.0}, "eval_every=2.0 must be a whole number"),
        ({"lr": None}, "lr=None must be a number"),
        ({"clip_norm": "1"}, "clip_norm='1' must be a number"),
        ({"warmup": -1}, "warmup=-1"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"eval_every": 0}, "eval_every=0"),
        ({"lr": math.nan}, "lr=nan"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"schedule": "linear"}, "schedule='linear' may be cosine"),
        ({"precision": "float8"}, "precision='float8' may be"),
    ],
)
def test_settings_refuse_nonsense(changes, match, no_shape_checks):
    with pytest.raises(ConfigError, match=match):
        TrainSettings(**{"steps": 7, **changes})


def test_settings_are_plain_data():
    settings = TrainSettings(steps=7, clip_norm=None)
    assert TrainSettings(**settings.to_dict()) == settings
