"""Writing: a prompt, then one token after the other."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from glassformer.generation import generate
from glassformer.inference import prepare
from torch import Tensor

from bench.measure import System, Table, compare, read_rate
from bench.peers import hugging_face, language_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run(size: str, rounds: int) -> Iterator[Table]:
    """One row and eight rows, of both families."""
    limit = read_rate()
    for family in ("gpt2", "llama"):
        for rows in (1, 8):
            yield writing(size, rounds, family, rows, limit)


def writing(size: str, rounds: int, family: str, rows: int, limit: tuple[str, float]) -> Table:
    """Greedy, with caches. The limit is reading all weights once per token."""
    model = language_model(size, family).eval()
    n_prompt, n_new = (64, 64) if size == "full" else (11, 13)
    prompt = torch.randint(1, model.config.vocab_size, (rows, n_prompt))
    weights = sum(p.numel() for p in model.parameters())

    def ours(writer: Any, same: bool = True) -> Callable[[], Tensor | None]:
        def write() -> Tensor | None:
            tokens = generate(writer, prompt, max_new_tokens=n_new).tokens
            return tokens if same else None

        return write

    systems = [System("ours, as trained", ours(model), 4 * weights * n_new)]
    for name, dtype in DTYPES.items():
        writer, cost = prepare(model, dtype=dtype, batch_size=rows), dtype.itemsize * weights
        same = dtype == torch.float32  # other weights write other texts
        systems.append(System(f"ours, prepared, {name}", ours(writer, same), cost * n_new))
    theirs = hugging_face(model, family)
    if theirs is not None:
        theirs.eval()

        def write() -> Tensor:
            with torch.no_grad():
                texts = theirs.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=n_new,
                    do_sample=False,
                )
            return texts[:, n_prompt:]

        systems.insert(0, System(f"Hugging Face {family}", write, 4 * weights * n_new))
    job = f"{n_new} tokens behind {n_prompt}, {family} of {weights / 1e6:.1f} M, {rows} at a time"
    return compare(job, systems, work=rows * n_new, rounds=rounds, limit=limit)
