"""The most bytes that one training step of a language model holds at a time."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from glassformer.lab.measure import peak_bytes
from glassformer.training import Batch, batch_loss, token_loss
from torch import Tensor

from bench.measure import Row, Table
from bench.peers import hugging_face, language_model


def run(size: str, rounds: int) -> Iterator[Table]:
    """Loss and gradient of one batch; counted, not timed, so ``rounds`` changes nothing."""
    for family in ("gpt2", "llama"):
        yield training(size, family)


def training(size: str, family: str) -> Table:
    """Activations and gradients; the weights themselves were there before."""
    model = language_model(size, family).train()
    rows, time = (8, 256) if size == "full" else (3, 11)
    tokens = torch.randint(1, model.config.vocab_size, (rows, time + 1))
    batch = Batch(tokens[:, :-1], tokens[:, 1:])

    def all_logits() -> Tensor:
        return token_loss(model(batch.inputs), batch.targets).mean

    def ours() -> Tensor:
        return batch_loss(model, batch).mean

    def checkpointed() -> Tensor:
        model.decoder.checkpoint_blocks = True
        try:
            loss = batch_loss(model, batch).mean
            return loss
        finally:
            model.decoder.checkpoint_blocks = False

    ways: dict[str, Callable[[], Tensor]] = {
        "ours, all logits at once": all_logits,
        "ours": ours,
        "ours, blocks recomputed": checkpointed,
    }
    theirs = hugging_face(model, family)
    if theirs is not None:
        theirs.train()

        def loss() -> Tensor:
            logits = theirs(input_ids=batch.inputs, use_cache=False).logits
            return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

        ways = {f"Hugging Face {family}": loss, **ways}
    peaks, losses = {}, {}
    for name, way in ways.items():
        losses[name] = float(way().detach())
        peaks[name] = peak_bytes(lambda way=way: way().backward())
        for part in (model, theirs):
            if part is not None:
                part.zero_grad()
    first = next(iter(ways))
    rows_of = [
        Row(
            name=name,
            seconds=0.0,
            rate=peak / 2**20,
            ratio=peaks[first] / peak,
            share=None,
            spread=1.0,
            difference=abs(losses[name] - losses[first]) / losses[first],
        )
        for name, peak in peaks.items()
    ]
    return Table(f"memory of a training step, {family}, {rows} x {time} tokens", "MiB", "", rows_of)
