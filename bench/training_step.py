"""One step of training: loss, gradient, clipping, AdamW."""

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from glassformer.costs import training_flops
from glassformer.training import Batch, make_optimizer, train_step
from torch import Tensor, nn

from bench.measure import System, Table, compare, gemm_rate
from bench.peers import TorchTransformer, hugging_face, language_model, translator


def run(size: str, rounds: int) -> Iterator[Table]:
    """Language models, and translators on sentences of equal and of unequal length."""
    limit = gemm_rate()
    for family in ("gpt2", "llama"):
        yield language_models(size, rounds, family, limit)
    for lengths in ("equal", "unequal"):
        yield translators(size, rounds, lengths, limit)


def language_models(size: str, rounds: int, family: str, limit: tuple[str, float]) -> Table:
    """Full rows of tokens."""
    model = language_model(size, family)
    theirs = hugging_face(model, family)
    rows, time = (8, 256) if size == "full" else (3, 11)
    tokens = torch.randint(1, model.config.vocab_size, (rows, time + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    cost = training_flops(model.config, rows, time)
    systems = [_ours("ours", model, Batch(inputs, targets), cost)]
    if theirs is not None:
        theirs.train()
        step = _step(theirs, lambda: theirs(input_ids=inputs).logits, targets)
        systems.insert(0, System(f"Hugging Face {family}", step, cost))
    job = f"training step, {family} of {_millions(model)}, {rows} x {time} tokens"
    return compare(job, systems, work=rows * time, rounds=rounds, limit=limit)


def translators(size: str, rounds: int, lengths: str, limit: tuple[str, float]) -> Table:
    """Pairs of sentences; rates count real target tokens, and so do the operations."""
    model = translator(size)
    batch = _pairs(128 if size == "full" else 5, lengths, model.config.vocab_size)
    assert batch.source is not None
    assert batch.source_mask is not None
    assert batch.target_mask is not None
    source, inputs, mask = batch.source, batch.inputs, batch.source_mask
    targets = batch.targets.where(batch.target_mask, -100)
    cost = sum(
        training_flops(model.config, 1, int(t), source_length=int(s))
        for s, t in zip(mask.sum(1), batch.target_mask.sum(1), strict=True)
    )
    reference = TorchTransformer(model).train()
    step = _step(reference, lambda: reference(source, inputs, mask), targets)
    systems = [System("nn.Transformer", step, cost)]
    marian = hugging_face(model, "marian")
    if marian is not None:
        marian.train()

        def logits() -> Tensor:
            return marian(
                input_ids=source, attention_mask=mask.long(), decoder_input_ids=inputs
            ).logits

        systems.append(System("Hugging Face marian", _step(marian, logits, targets), cost))
    systems.append(_ours("ours", model, batch, cost))
    real = int(batch.target_mask.sum())
    job = (
        f"training step, translator of {_millions(model)}, {len(source)} pairs of {lengths} length "
        f"({real / batch.target_mask.numel():.0%} of the places are real)"
    )
    return compare(job, systems, work=real, rounds=rounds, limit=limit)


def _ours(name: str, model: nn.Module, batch: Batch, cost: float) -> System:
    model = copy.deepcopy(model).train()
    optimizer = make_optimizer(model, lr=1e-4)

    def step() -> float:
        result = train_step(model, [batch], optimizer)
        return result.nll / result.n_tokens

    return System(name, step, cost)


def _step(model: nn.Module, logits: Callable[[], Tensor], targets: Tensor) -> Callable[[], float]:
    """The usual step, with the same optimiser."""
    optimizer = make_optimizer(model, lr=1e-4)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits().flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def _pairs(n: int, lengths: str, vocab_size: int) -> Batch:
    """Sentences of 16 tokens, or of lengths as in text: log-normal, mean 16, at most 60."""
    generator = torch.Generator().manual_seed(0)
    sides = []
    for _ in range(2):
        drawn = torch.empty(n).log_normal_(2.6, 0.6, generator=generator).round().clamp(2, 60)
        drawn = drawn if lengths == "unequal" else torch.full((n,), 16.0)
        mask = torch.arange(int(drawn.max())) < drawn[:, None]
        tokens = torch.randint(1, vocab_size, mask.shape, generator=generator)
        sides.append((tokens.where(mask, 0), mask))
    (source, source_mask), (targets, target_mask) = sides
    inputs = F.pad(targets[:, :-1], (1, 0), value=1)
    return Batch(inputs, targets, target_mask, source, source_mask)


def _millions(model: nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M"
