"""What each of two processes does; ``test_distributed.py`` starts them and reads the results."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from glassformer import _files
from glassformer.training import load_checkpoint, load_model, save_checkpoint
from glassformer.training.distributed import gather, process_group, rank, share, whole_model
from support.together import digest, figures, trainer, weights


def resumed(strategy, folder):
    """Hashes of a run of 4 steps, and of one that was saved after 2 and goes on in a new trainer.

    With dropout: each process must get its own random numbers back.
    """
    whole = trainer(strategy, dropout=0.3, steps=4)
    list(whole.run())
    first = trainer(strategy, dropout=0.3, steps=4)
    list(first.run(until=2))
    save_checkpoint(folder, first)
    saved = load_model(folder).state_dict()  # at once: nobody may read a half-written file
    second = trainer(strategy, dropout=0.3, steps=4)
    load_checkpoint(folder, second)
    list(second.run())
    complete = all(torch.equal(saved[n], w.float()) for n, w in weights(first).items())
    return {"whole": digest(whole), "resumed": digest(second), "complete": complete}


def unequal_use(strategy):
    """Only one process uses the model, twice, and all go on training."""
    run = trainer(strategy, steps=2)
    list(run.run(until=1))
    model = whole_model(run.model)
    if rank() == 1:
        model(torch.tensor([[3, 5, 7]]))
        model(torch.tensor([[3, 5]]))
    return [report.loss for report in run.run()]


def die_while_saving(folder):
    run = trainer(steps=1)
    list(run.run())
    write = _files._write_synced

    def write_one_and_die(path, data):
        write(path, data)
        os.kill(os.getpid(), signal.SIGKILL)

    _files._write_synced = write_one_and_die
    save_checkpoint(folder, run)


def main(strategy, folder):
    with process_group("cpu"):
        results = {
            "figures": figures(strategy),
            "gathered": gather([i * i for i in share(range(5))]),
            "shares": [share(range(5))],
            "resumed": resumed(strategy, folder / "run"),
            "unequal": unequal_use(strategy),
        }
        if strategy == "ddp":
            dropped = trainer(layer_drop=0.5, steps=4)
            results["layer_drop"] = [r.step for r in dropped.run()], digest(dropped)
        (folder / f"{rank()}.json").write_text(json.dumps(results))
        if strategy == "ddp":
            die_while_saving(folder / "run")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
