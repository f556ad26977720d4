"""Event files, read back with TensorBoard's own reader."""

import sys

import pytest
from glassformer.errors import ConfigError
from glassformer.training import tensorboard_writer
from support.runs import make_trainer

pytest.importorskip("tensorboard")


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: {event.step: event.value for event in events.Scalars(name)}
        for name in events.Tags()["scalars"]
    }


def test_what_is_written_is_what_was_reported(tmp_path, no_shape_checks):
    trainer = make_trainer(steps=5, eval_every=2, dev_loss=lambda model: 1.5)
    with tensorboard_writer(tmp_path) as write:
        for report in trainer.run():
            write(report)
    curves = read(tmp_path)
    assert curves["loss/dev"] == {2: 1.5, 4: 1.5, 5: 1.5}
    for name, shown in (("loss", "loss/train"), ("lr", "lr"), ("grad_norm", "grad_norm")):
        expected = {r.step: pytest.approx(getattr(r, name)) for r in trainer.history}
        assert curves[shown] == expected


def test_a_resumed_run_hides_the_steps_it_takes_again(tmp_path, no_shape_checks):
    reports = list(make_trainer(steps=6).run())
    with tensorboard_writer(tmp_path) as write:
        for report in reports:
            write(report)
    with tensorboard_writer(tmp_path, resumed_at=2) as write:
        write(reports[2])
    assert sorted(read(tmp_path)["lr"]) == [1, 2, 3]


def test_without_tensorboard_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with (
        pytest.raises(ConfigError, match="pip install tensorboard"),
        tensorboard_writer(tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
