"""Reading: the prompt of a language model, and attention on its own, there and back."""

from collections.abc import Callable, Iterator

import torch
from glassformer.costs import forward_flops
from glassformer.functional import attend
from glassformer.interop import attention_to_torch
from glassformer.nn import MultiHeadAttention
from torch import Tensor

from bench.measure import System, Table, compare, gemm_rate
from bench.peers import hugging_face, language_model


def run(size: str, rounds: int) -> Iterator[Table]:
    """Prompts of both families, then one attention at several lengths."""
    limit = gemm_rate()
    for family in ("gpt2", "llama"):
        yield reading(size, rounds, family, limit)
    for length in (64, 256, 1024) if size == "full" else (13,):
        yield attending(rounds, length)


def reading(size: str, rounds: int, family: str, limit: tuple[str, float]) -> Table:
    """Logits at every position."""
    model = language_model(size, family).eval()
    rows, time = (8, 256) if size == "full" else (3, 11)
    tokens = torch.randint(1, model.config.vocab_size, (rows, time))
    cost = forward_flops(model.config, rows, time)
    systems = [System("ours", torch.no_grad()(lambda: model(tokens)), cost)]
    theirs = hugging_face(model, family)
    if theirs is not None:
        theirs.eval()
        logits = torch.no_grad()(lambda: theirs(input_ids=tokens, use_cache=False).logits)
        systems.insert(0, System(f"Hugging Face {family}", logits, cost))
    job = f"reading, {family}, {rows} x {time} tokens"
    return compare(job, systems, work=rows * time, rounds=rounds, limit=limit)


def attending(rounds: int, length: int) -> Table:
    """Causal self-attention of width 256, forward and backward."""
    torch.manual_seed(0)
    ours = MultiHeadAttention(256, 4)
    theirs = attention_to_torch(ours)
    x = torch.randn(max(1, 2048 // length), length, 256, requires_grad=True)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)

    def both_ways(forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            y = forward()
            (gradient,) = torch.autograd.grad(y.sum(), x)
            return torch.stack((y.detach(), gradient))

        return run

    def module() -> Tensor:
        return theirs(x, x, x, attn_mask=hidden, is_causal=True, need_weights=False)[0]

    def eager() -> Tensor:
        return ours(x, is_causal=True, kernel=lambda *qkv, **how: attend(*qkv, **how, eager=True))

    systems = [
        System("nn.MultiheadAttention", both_ways(module)),
        System("ours, eager", both_ways(eager)),
        System("ours, fused", both_ways(lambda: ours(x, is_causal=True))),
    ]
    job = f"attention, there and back, {len(x)} x {length} tokens"
    return compare(job, systems, work=x.shape[0] * length, rounds=rounds)
