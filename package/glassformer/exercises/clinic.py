"""The mask clinic: nine attentions that look alike, eight of them ill.

They are examined from outside, by what goes in and what comes out. Below stands what ails whom:
read on after your diagnosis.

Book: masking
"""

import math
import random
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.functional import attention_weights, causal_mask, weighted_values

__all__ = ["ILLNESSES", "Patient", "patients"]

ILLNESSES = {
    "healthy": "does what it should",
    "polarity": "takes True for hidden",
    "wrong axis": "lays the padding over the queries, where the keys should be",
    "zeros instead of -inf": "sets hidden scores to 0 before the softmax",
    "mask after softmax": "sets hidden weights to 0 after the softmax, and nothing else",
    "-1e9 in half precision": "writes a number that float16 does not have",
    "blind rows": "does not provide for a query that may see nothing",
    "cache offset": "takes the first query for the first token, whatever came before",
    "padding from the target": "hides the keys where the queries are padding",
}


@dataclass(frozen=True, repr=False)
class Patient:
    """An attention with a letter for a name; what ails it is for the reader to find."""

    name: str
    _illness: str

    def __call__(
        self,
        q: Float[Tensor, "batch n_heads q_len d_head"],
        k: Float[Tensor, "batch n_heads k_len d_head"],
        v: Float[Tensor, "batch n_heads k_len d_value"],
        *,
        q_real: Bool[Tensor, "batch q_len"] | None = None,
        k_real: Bool[Tensor, "batch k_len"] | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "batch n_heads q_len d_value"]:
        """Attention, as a healthy one gives it, or nearly so.

        Args:
            q, k, v: queries, keys and values.
            q_real: True where a query is a real token. Healthy attention has no use for it.
            k_real: True where a key is a real token. Padding is hidden from every query.
            is_causal: hide what comes after the query; the last query stands at the last key.

        Returns:
            One output for each query; zeros for a query that may see nothing.
        """
        mask = _permissions(self._illness, q, k, q_real, k_real, is_causal)
        return weighted_values(_weights(self._illness, q, k, mask), v)

    def __repr__(self) -> str:
        return f"patient {self.name}"


def patients() -> dict[str, Patient]:
    """The nine of the clinic, by letter. Eight are ill, each with a different illness.

    Book: masking
    """
    illnesses = random.Random(6).sample(list(ILLNESSES), len(ILLNESSES))
    return {name: Patient(name, ill) for name, ill in zip("ABCDEFGHI", illnesses, strict=True)}


def _permissions(
    illness: str,
    q: Tensor,
    k: Tensor,
    q_real: Tensor | None,
    k_real: Tensor | None,
    is_causal: bool,
) -> Tensor:
    """Who may attend to whom, (B, 1, T, S), with the illnesses of masks."""
    batch, q_len, k_len = q.shape[0], q.shape[2], k.shape[2]
    mask = torch.ones(batch, 1, q_len, k_len, dtype=torch.bool, device=q.device)
    if illness == "padding from the target":
        k_real = k_real if q_real is None else _fitted(q_real, k_len)
    if k_real is not None and illness == "wrong axis":
        mask = mask & _fitted(k_real, q_len)[:, None, :, None]
    elif k_real is not None:
        mask = mask & k_real[:, None, None, :]
    if is_causal:
        offset = 0 if illness == "cache offset" else k_len - q_len
        mask = mask & causal_mask(q_len, k_len, offset=offset, device=q.device)
    if illness == "polarity" and (is_causal or k_real is not None):
        mask = ~mask
    return mask


def _weights(illness: str, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """The weights under a mask, with the illnesses of softmax."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if illness == "zeros instead of -inf":
        return (scores * mask).softmax(dim=-1)
    if illness == "mask after softmax":
        return scores.softmax(dim=-1) * mask
    if illness == "-1e9 in half precision":
        return scores.masked_fill(~mask, -1e9).softmax(dim=-1).masked_fill(~mask, 0.0)
    if illness == "blind rows":
        return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return attention_weights(q, k, mask=mask)


def _fitted(real: Tensor, length: int) -> Tensor:
    """A padding mask cut or filled up to another length, as careless code does it."""
    rest = torch.ones(real.shape[0], max(0, length - real.shape[1]), dtype=torch.bool)
    return torch.cat([real[:, :length], rest.to(real.device)], dim=1)
