"""Curves of a run for TensorBoard, if it is installed.

Book: training
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.errors import optional
from glassformer.training.loop import StepReport

__all__ = ["tensorboard_writer"]

_NAMES = {
    "loss": "loss/train",
    "dev_loss": "loss/dev",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "n_tokens": "tokens per step",
    "seconds": "seconds per step",
}


@contextmanager
def tensorboard_writer(
    folder: str | Path, *, resumed_at: int | None = None
) -> Iterator[Callable[[StepReport], None]]:
    """Write the reports of a run where ``tensorboard --logdir folder`` finds them::

        with tensorboard_writer("runs/first/log") as write:
            for report in trainer.run():
                write(report)

    Args:
        folder: of the event files; made if it is missing.
        resumed_at: step of the checkpoint that the run goes on from. What an earlier process
            wrote of later steps is hidden then, for the run takes these steps again.

    Raises:
        ConfigError: TensorBoard is not installed.

    Book: training
    """
    with optional("this needs TensorBoard, which is not installed", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    purged = None if resumed_at is None else resumed_at + 1
    writer = SummaryWriter(str(folder), purge_step=purged)

    def write(report: StepReport) -> None:
        for name, shown in _NAMES.items():
            value = getattr(report, name)
            if value is not None:
                writer.add_scalar(shown, value, report.step)

    try:
        yield write
    finally:
        writer.close()
