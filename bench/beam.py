"""Beam search of a translator."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from glassformer.generation import beam_search
from glassformer.inference import prepare
from torch import Tensor

from bench.measure import System, Table, compare
from bench.peers import hugging_face, translator

N_BEAMS, START = 4, 0


def run(size: str, rounds: int) -> Iterator[Table]:
    """One sentence and eight sentences at a time."""
    for rows in (1, 8):
        yield searching(size, rounds, rows)


def searching(size: str, rounds: int, rows: int) -> Table:
    """Four beams, all texts of full length, so that all systems do the same work."""
    model = translator(size).eval()
    n_new = 24 if size == "full" else 5
    source = torch.randint(1, model.config.vocab_size, (rows, 15))

    def ours(writer: Any) -> Callable[[], Tensor]:
        def search() -> Tensor:
            found = beam_search(
                writer, source, n_beams=N_BEAMS, max_new_tokens=n_new, bos_id=START, stop_ids=()
            )
            return torch.tensor([best[0].tokens for best in found])

        return search

    prepared = prepare(model, batch_size=rows * N_BEAMS)
    systems = [System("ours, as trained", ours(model)), System("ours, prepared", ours(prepared))]
    theirs = hugging_face(model, "marian")
    if theirs is not None:
        theirs.eval()

        def search() -> Tensor:
            with torch.no_grad():
                texts = theirs.generate(
                    source,
                    attention_mask=torch.ones_like(source),
                    num_beams=N_BEAMS,
                    max_new_tokens=n_new,
                    do_sample=False,
                    decoder_start_token_id=START,
                )
            return texts[:, 1:]

        systems.insert(0, System("Hugging Face marian", search))
    job = f"beam search, {N_BEAMS} beams, {n_new} tokens, {rows} sentences of 15 at a time"
    return compare(job, systems, work=rows * n_new, rounds=rounds)
