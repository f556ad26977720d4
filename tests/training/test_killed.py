"""Killed at any moment, resumed, killed again: the end is that of a run left in peace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

RUNS = '''
import os, random, shutil, signal, sys, time
from pathlib import Path

import torch._dynamo  # as every optimiser does, which takes a second
from glassformer.errors import CheckpointError
from glassformer.training import load_checkpoint, read_record, save_checkpoint, total_loss
from support.runs import NoisyData, digest, make_trainer, pair_data, tiny_translator


def trainer_of(kind):
    settings = {"steps": 36, "accumulate": 3, "eval_every": 4, "average": 2}
    if kind == "language model":
        data, dev = NoisyData(), NoisyData(n_items=7)
        return make_trainer(data, dev_loss=lambda m: total_loss(m, dev).mean_nll, **settings)
    data, dev = pair_data(n=61), pair_data(n=11, seed=8)
    settings["label_smoothing"] = 0.1
    return make_trainer(
        data,
        model=tiny_translator(dropout=0.1),
        dev_loss=lambda m: total_loss(m, dev).mean_nll,
        **settings,
    )


def train(kind, folder):
    trainer = trainer_of(kind)
    try:
        load_checkpoint(folder, trainer)
    except CheckpointError:
        save_checkpoint(folder, trainer)
    for report in trainer.run():
        if report.step % 3 == 0 or trainer.done:
            save_checkpoint(folder, trainer)
    losses = [(r.step, r.loss, r.grad_norm, r.dev_loss) for r in trainer.history]
    return f"{digest(trainer.model)} {hash((trainer.best.loss, *losses))}"


def in_a_process_of_its_own(work, *, die_after=None):
    """Nothing of torch has run here, so the child begins as a fresh process does.

    It is killed ``die_after`` seconds after its next checkpoint, if it lives that long.
    """
    before = saved_step()
    child = os.fork()
    if child == 0:
        print(work(), flush=True)
        os._exit(0)
    if die_after is not None:
        while saved_step() == before and os.waitid(os.P_PID, child, LOOK) is None:
            time.sleep(0.002)
        time.sleep(die_after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def saved_step():
    try:
        return read_record(folder)["step"]
    except CheckpointError:  # there is none yet
        return 0


def dying_in(module, name, n):
    """The process is killed when a function is called for the n-th time."""
    original, calls = getattr(module, name), []

    def call(*args, **keywords):
        calls.append(0)
        if len(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **keywords)

    setattr(module, name, call)


LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
kind, folder, dice = sys.argv[1], Path(sys.argv[2], "killed"), random.Random(5)
in_a_process_of_its_own(lambda: train(kind, folder.with_name("left in peace")))
steps, killed = [0], 0
for module, name, n in ((os, "fsync", 14), (Path, "rename", 6), (shutil, "rmtree", 3)):
    def die_writing():
        dying_in(module, name, n)
        return train(kind, folder)

    killed += in_a_process_of_its_own(die_writing)
    steps.append(saved_step())
for _ in range(3):
    killed += in_a_process_of_its_own(
        lambda: train(kind, folder), die_after=dice.uniform(0.0, 0.05)
    )
    steps.append(saved_step())
print(killed, steps, flush=True)
in_a_process_of_its_own(lambda: train(kind, folder))
'''


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")
@pytest.mark.parametrize("kind", ["language model", "translator"])
def test_O08_O09_a_run_killed_again_and_again_ends_bit_for_bit_the_same(kind, tmp_path):
    """Three times in the middle of a write, then at random moments.

    With dropout, accumulation, noise in the data, several epochs, averaging and evaluation.
    """
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", RUNS, kind, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected, *between, (final) = done.stdout.splitlines()
    killed, steps = between[-1].split(" ", 1)
    steps = [int(step) for step in steps.strip("[]").split(",")]

    assert int(killed) >= 3
    assert steps == sorted(steps)  # no kill lost what was saved
    assert len(set(steps)) >= 3
    assert final == expected
    assert {p.name for p in tmp_path.iterdir()} == {"left in peace", "killed"}
