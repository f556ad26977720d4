"""Several processes train one model: each takes its share of the batches, all take the same step.

``torchrun`` starts the processes; PyTorch's own engines keep them together. DDP
(``strategy="ddp"``) has a whole copy of the model in every process and averages the gradients;
FSDP2 (``strategy="fsdp"``) also divides weights, gradients and optimiser among the processes and
collects the weights of one layer at a time, so that a model may be larger than one device::

    with process_group() as device:
        model = wrap(build_model(config).to(device), strategy="ddp")
        trainer = Trainer(model, sharded(data), settings)
        for report in trainer.run():
            ...
        save_checkpoint(folder, trainer)

Run by itself, the same script trains in one process. A step of W processes has the gradient that
one process would get from the same W times ``accumulate`` micro-batches: the mean over all their
tokens, however unevenly they are shared.

Book: translation
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, cast, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from glassformer.devices import pick_device
from glassformer.errors import ConfigError
from glassformer.evaluation import device_of
from glassformer.models import Decoder, EncoderDecoder, build_model
from glassformer.nn import Block, Stack
from glassformer.training._ranks import Replica, is_replica, rank, sum_over_ranks, whole, world_size
from glassformer.training._wrappers import unwrap
from glassformer.training.batches import Batch, TrainingData
from glassformer.training.loss import TokenLoss
from glassformer.training.step import batch_loss, total_loss

__all__ = [
    "ShardedData",
    "Strategy",
    "agree",
    "gather",
    "process_group",
    "rank",
    "sharded",
    "share",
    "shared_loss",
    "whole_model",
    "world_size",
    "wrap",
]

Strategy = Literal["ddp", "fsdp"]

T = TypeVar("T")


@contextmanager
def process_group(
    device: str | torch.device = "auto", *, given_as: str = "device"
) -> Iterator[torch.device]:
    """Join the processes that ``torchrun`` started, and leave them at the end.

    Started any other way, this process trains alone and nothing happens.

    Args:
        device: ``auto`` gives each process of a machine its own GPU, or the CPU if there is none.
        given_as: what the user set, for the message.

    Returns:
        The device of this process. GPUs talk through NCCL, CPUs through Gloo.

    Raises:
        ConfigError: this machine has no such device.

    Book: translation
    """
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if started and device == "auto" and torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    elif started and device == "auto":
        device = "cpu"
    device = pick_device(str(device), given_as=given_as)
    if not started:
        yield device
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def wrap(model: nn.Module, *, strategy: Strategy = "ddp") -> nn.Module:
    """Hand a model to the engine that keeps the processes together; alone, give it back as it is.

    Every process must hold a model of the same shape on its own device. All start from the
    weights of process 0, and from here on each draws its own dropout.
    :func:`glassformer.training.save_checkpoint` and the other functions of training find the
    model inside, under its plain names.

    Raises:
        ConfigError: an unknown strategy, or ``fsdp`` for a model with LayerDrop, whose processes
            would wait for layers that others skip.

    Source: Li et al. 2020 for DDP; Zhao et al. 2023 for FSDP. Book: translation
    """
    if strategy not in get_args(Strategy):
        raise ConfigError(f"strategy={strategy!r} may be {' or '.join(get_args(Strategy))}")
    skips = any(isinstance(part, Stack) and part.layer_drop for part in model.modules())
    if strategy == "fsdp" and skips:
        raise ConfigError(
            "strategy='fsdp' collects every layer in all processes at once, and layer_drop skips "
            "different ones; use strategy='ddp', or layer_drop=0"
        )
    if world_size() == 1:
        return model
    replica = Replica(model, batch_loss)
    if strategy == "ddp":
        wrapped: nn.Module = DistributedDataParallel(replica, find_unused_parameters=skips)
    else:
        wrapped = _fully_sharded(replica)
    if rank():
        torch.manual_seed(torch.initial_seed() + rank())
    return wrapped


def _fully_sharded(replica: Replica) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for tensor in (*replica.parameters(), *replica.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    for part in replica.modules():
        if isinstance(part, Block):
            fully_shard(part)
    return cast(nn.Module, fully_shard(replica))


def whole_model(model: nn.Module) -> nn.Module:
    """A plain model that each process may use as it likes, for a dev loss or to generate.

    With DDP it is the very model that trains. With FSDP it is a copy that has collected all
    weights as they are now, so all processes must ask for it together. A model that was never
    wrapped comes back as it is.

    Book: translation
    """
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return unwrap(model) if is_replica(model) else model
    inner = cast(Decoder | EncoderDecoder, unwrap(model))
    weights = whole(inner.state_dict())
    with torch.random.fork_rng(devices=[]):
        copy = build_model(inner.config)
    example = next(iter(weights.values()))
    copy.to(example.device, example.dtype).load_state_dict(weights)
    return copy.train(inner.training)


class ShardedData:
    """The share of this process in the micro-batches of ``data``.

    Of each W neighbours in the order of ``data``, process r takes number r. All processes get the
    same number of micro-batches; where the last ones do not suffice for all, the others read a
    copy whose targets do not count, so they keep step and add nothing. Alone, a process takes all.

    Args:
        data: the micro-batches of one process.

    Book: translation
    """

    def __init__(self, data: TrainingData) -> None:
        self.data = data

    @property
    def fingerprint(self) -> str:
        """That of the data, with the number of processes, which decides what a step consists of."""
        n = world_size()
        return self.data.fingerprint if n == 1 else f"{self.data.fingerprint}, {n} processes"

    def epoch(self, epoch: int) -> list[list[int]]:
        """The micro-batches of this process; one that only keeps step has numbers below 0."""
        order = [list(batch) for batch in self.data.epoch(epoch)]
        mine = []
        for first in range(0, len(order), world_size()):
            group = order[first : first + world_size()]
            mine.append(group[rank()] if rank() < len(group) else [~i for i in group[0]])
        return mine

    def load(self, indices: Sequence[int]) -> Batch:
        """The tensors of one micro-batch."""
        if all(i >= 0 for i in indices):
            return self.data.load(indices)
        batch = self.data.load([~i for i in indices])
        nothing = torch.zeros_like(batch.targets, dtype=torch.bool)
        return dataclasses.replace(batch, target_mask=nothing)


def sharded(data: TrainingData) -> TrainingData:
    """The share of this process in ``data``; alone, the data itself. Book: translation"""
    return data if world_size() == 1 else ShardedData(data)


def agree(wish: bool, device: torch.device) -> bool:
    """Whether any process wishes it, such as to stop; all must ask at the same place.

    Book: translation
    """
    return sum_over_ranks([wish], device)[0] > 0


def share(items: Sequence[T]) -> list[T]:
    """The items that this process looks after: every W-th from its own number on.

    Book: translation
    """
    return list(items[rank() :: world_size()])


def gather(results: Sequence[T]) -> list[T]:
    """What all processes made of their :func:`share`, in the order of the items, in all of them.

    Each item is there exactly once, also where the processes had shares of unequal size.

    Book: translation
    """
    if world_size() == 1:
        return list(results)
    parts: list[Any] = [None] * world_size()
    dist.all_gather_object(parts, list(results))
    n_items = sum(len(part) for part in parts)
    return [cast(T, parts[i % len(parts)][i // len(parts)]) for i in range(n_items)]


class _Share:
    """The examples of ``data`` that this process scores, in batches as they come."""

    def __init__(self, data: TrainingData) -> None:
        self.fingerprint = data.fingerprint
        self.load = data.load
        self._data = data

    def epoch(self, epoch: int) -> list[list[int]]:
        batches = [share(list(batch)) for batch in self._data.epoch(epoch)]
        return [batch for batch in batches if batch]


def shared_loss(model: nn.Module, data: TrainingData) -> TokenLoss:
    """:func:`glassformer.training.total_loss` with the examples shared out among the processes.

    Every example is scored once, in one of them, and all get the sum.

    Book: translation
    """
    mine = total_loss(whole_model(model), _Share(data))
    nll, n_tokens = sum_over_ranks([float(mine.nll), mine.n_tokens], device_of(model))
    return TokenLoss(torch.tensor(nll), torch.tensor(nll), int(n_tokens))
