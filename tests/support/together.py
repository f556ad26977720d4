"""One training run, the same for one process and for several that train together."""

import hashlib
import socket

import torch
from glassformer.data import shuffled_batches
from glassformer.training import Batch, Trainer, TrainSettings, total_loss
from glassformer.training.distributed import ShardedData, shared_loss, world_size, wrap
from support.core import decoder_config, scrambled

N_SENTENCES = 23


class Sentences:
    """Sentences of unequal length in micro-batches of unequal size, five in an epoch."""

    fingerprint = "23 sentences"

    def __init__(self, n=N_SENTENCES):
        generator = torch.Generator().manual_seed(7)
        lengths = [2 + i % 11 for i in range(n)]
        self.rows = [torch.randint(1, 29, (k + 1,), generator=generator) for k in lengths]

    def epoch(self, epoch):
        return shuffled_batches(len(self.rows), 5, seed=3, epoch=epoch)

    def load(self, indices):
        rows = [self.rows[i] for i in indices]
        time = max(len(row) - 1 for row in rows)
        inputs, targets = (torch.zeros(len(rows), time, dtype=torch.int64) for _ in range(2))
        mask = torch.zeros(len(rows), time, dtype=torch.bool)
        for i, row in enumerate(rows):
            k = len(row) - 1
            inputs[i, :k], targets[i, :k], mask[i, :k] = row[:-1], row[1:], True
        return Batch(inputs, targets, mask)


def settings(**changes):
    """Two micro-batches per step: of one process, or one of each of two."""
    choices = {"steps": 7, "lr": 1e-2, "warmup": 2, "accumulate": 2 // world_size()}
    return TrainSettings(**{**choices, **changes})


def trainer(strategy="ddp", *, layer_drop=0.0, dropout=0.0, **changes):
    torch.manual_seed(5)
    config = decoder_config(layer_drop=layer_drop, dropout=dropout)
    model = wrap(scrambled(config), strategy=strategy)
    held_out = Sentences(5)
    return Trainer(
        model,
        ShardedData(Sentences()),
        settings(**changes),
        dev_loss=lambda model: total_loss(model, held_out).mean_nll,
    )


def figures(strategy="ddp"):
    """A run, in numbers that do not depend on how many processes made it."""
    run = trainer(strategy, eval_every=3, average=2)
    reports = list(run.run())
    score = shared_loss(run.model, Sentences(5))
    return {
        "steps": [[r.loss, r.n_tokens, r.grad_norm, r.dev_loss] for r in reports],
        "score": [float(score.nll), score.n_tokens],
        "best": [run.best.step, run.best.loss],
        "weights": {n: w.flatten().tolist() for n, w in weights(run).items()},
    }


def weights(run):
    return run.state_dict()["model"]


def digest(run):
    """A hash of all weights, to the last bit."""
    data = b"".join(w.numpy().tobytes() for w in weights(run).values())
    return hashlib.sha256(data).hexdigest()


def one_process():
    """The environment in which torchrun starts a single process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
