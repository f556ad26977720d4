"""The mean of the last weights: by hand, in the loop, and over a resumption."""

import math

import pytest
import torch
from glassformer.errors import CheckpointError, ConfigError
from glassformer.training import (
    TrainSettings,
    WeightAverage,
    average_checkpoints,
    load_checkpoint,
    load_model,
    load_weights,
    mean_weights,
    save_checkpoint,
    save_model,
)
from support.runs import digest, make_trainer, tiny_decoder, weights_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def test_the_mean_by_hand():
    weights = [{"w": torch.tensor([float(n), 2.0 * n]), "n": torch.tensor(n)} for n in (1, 2, 6)]
    mean = mean_weights(weights)
    assert torch.equal(mean["w"], torch.tensor([3.0, 6.0]))
    assert mean["n"] == 6
    mean["n"] += 1
    assert weights[-1]["n"] == 6


def test_half_precision_is_added_in_float32():
    """In bfloat16, 256 + 1 is 256."""
    weights = [{"w": torch.tensor([x], dtype=torch.bfloat16)} for x in (256.0, *[2.0] * 127)]
    mean = mean_weights(weights)["w"]
    assert mean.dtype == torch.bfloat16
    assert float(mean) == pytest.approx((256 + 254) / 128, rel=1e-2)


def test_weights_from_a_checkpoint_lie_on_the_cpu_and_later_ones_on_the_gpu():
    with FakeTensorMode(allow_non_fake_inputs=True):
        early, late = ({"w": torch.empty(3, device=device)} for device in ("cpu", "cuda"))
        assert mean_weights([early, late])["w"].shape == (3,)


def test_weights_of_different_models_have_no_mean():
    with pytest.raises(CheckpointError, match="0 sets of weights"):
        mean_weights([])
    with pytest.raises(CheckpointError, match="different names or shapes"):
        mean_weights([{"w": torch.zeros(2)}, {"w": torch.zeros(3)}])
    with pytest.raises(ConfigError, match="size=0"):
        WeightAverage(0)


def test_only_the_last_ones_are_kept_and_the_model_gets_its_own_back():
    model, average = nn.Linear(3, 5), WeightAverage(2)
    for step in (10, 20, 30):
        model.weight.data.fill_(float(step))
        average.add(model, step)
    average.add(model, 30)  # the same moment again
    assert sorted(average.weights) == [20, 30]
    own = model.weight
    with average.applied(model):
        assert model.weight is own
        assert torch.equal(model.weight, torch.full((5, 3), 25.0))
    assert torch.equal(model.weight, torch.full((5, 3), 30.0))
    with pytest.raises(KeyError), average.applied(model):
        raise KeyError
    assert torch.equal(model.weight, torch.full((5, 3), 30.0))


def measured(model):
    """A dev loss that knows the weights it was asked about."""
    return float(sum(p.detach().double().abs().sum() for p in model.parameters()))


def test_the_loop_evaluates_and_keeps_the_mean():
    """Training itself is not changed by it."""
    settings = {"steps": 8, "eval_every": 2, "dev_loss": measured}
    plain, averaging = make_trainer(**settings), make_trainer(**settings, average=3)
    torch.manual_seed(1)
    moments = [weights_of(plain.model) for r in plain.run() if r.dev_loss is not None]
    torch.manual_seed(1)
    reports = [r for r in averaging.run() if r.dev_loss is not None]
    assert digest(plain.model) == digest(averaging.model)
    model = tiny_decoder()
    for number, report in enumerate(reports):
        mean = mean_weights(moments[max(number - 2, 0) : number + 1])
        load_weights(model, mean)
        assert report.dev_loss == measured(model)
        if report.step == averaging.best.step:
            assert all(torch.equal(averaging.best.weights[name], mean[name]) for name in mean)


def test_an_average_survives_a_checkpoint(tmp_path):
    settings = {"steps": 9, "eval_every": 2, "dev_loss": measured, "average": 3}
    whole = make_trainer(**settings)
    list(whole.run())
    first = make_trainer(**settings)
    list(first.run(until=5))
    save_checkpoint(tmp_path / "c", first)
    second = make_trainer(**settings, model=tiny_decoder(seed=9, dropout=0.1))
    load_checkpoint(tmp_path / "c", second)
    list(second.run())
    assert [r.dev_loss for r in second.history] == [r.dev_loss for r in whole.history]
    save_checkpoint(tmp_path / "c", second)
    load_weights(whole.model, whole.best.weights)
    assert digest(load_model(tmp_path / "c")) == digest(whole.model)


def test_checkpoints_of_one_run_are_averaged(tmp_path):
    models = [tiny_decoder(seed=seed) for seed in range(3)]
    for number, model in enumerate(models):
        save_model(tmp_path / str(number), model)
    save_model(tmp_path / "other", tiny_decoder(n_heads=5))
    folders = [tmp_path / str(number) for number in range(3)]
    mean = average_checkpoints(folders)
    expected = sum(model.decoder.norm.weight for model in models) / 3
    torch.testing.assert_close(mean["decoder.norm.weight"], expected.detach())
    with pytest.raises(CheckpointError, match="different configs"):
        average_checkpoints([*folders, tmp_path / "other"])
    with pytest.raises(CheckpointError, match="0 sets"):
        average_checkpoints([])


@pytest.mark.parametrize(
    ("losses", "last"),
    [
        ((3.0, math.nan, 2.0, 2.5, 2.2), 10),  # 2.5 and 2.2 are no better than 2.0
        ((math.nan, 1.0, 1.0, math.nan), 8),
        ((math.nan, math.nan), 4),
        ((5.0, math.nan, 4.0, math.nan, 3.0, math.nan, 2.0), 14),
    ],
)
def test_O21_patience_ends_a_run_and_nan_neither_ends_nor_saves_it(losses, last, tmp_path):
    """Interrupted and resumed after every evaluation, it ends at the same step."""
    settings = {"steps": 14, "eval_every": 2, "patience": 2}
    given = iter(losses)
    trainer = make_trainer(**settings, dev_loss=lambda model: next(given))
    assert [r.step for r in trainer.run()] == list(range(1, last + 1))
    assert trainer.done
    finite = [loss for loss in losses if not math.isnan(loss)]
    assert trainer.best.loss == min(finite, default=math.inf)

    given, resumed = iter(losses), make_trainer(**settings, dev_loss=lambda model: next(given))
    while not resumed.done:
        list(resumed.run(until=resumed.step + 2))
        save_checkpoint(tmp_path / "c", resumed)
        resumed = make_trainer(**settings, dev_loss=lambda model: next(given))
        load_checkpoint(tmp_path / "c", resumed)
    assert (resumed.step, resumed.best.step) == (trainer.step, trainer.best.step)
    assert digest(resumed.model) == digest(trainer.model)


@pytest.mark.parametrize("changes", [{"average": 2}, {"patience": 1}])
def test_both_need_evaluations(changes):
    with pytest.raises(ConfigError, match="give eval_every"):
        TrainSettings(steps=7, **changes)
    for name in changes:
        with pytest.raises(ConfigError, match=f"{name}=0"):
            TrainSettings(steps=7, eval_every=1, **{name: 0})
