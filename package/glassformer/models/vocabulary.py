"""Rows for new tokens at the end of a trained table.

Book: adaptation
"""

import copy
from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import ShapeError
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder

__all__ = ["extend_embeddings"]

M = TypeVar("M", Decoder, Encoder, EncoderDecoder)


def extend_embeddings(
    model: M,
    rows: Float[Tensor, "n_new d_model"],
    *,
    head_rows: Float[Tensor, "n_new d_model"] | None = None,
) -> M:
    """A copy of ``model`` that knows more tokens; what it says about the others is as before.

    Old ids keep their rows, bit for bit, and the new ids follow them. A tied output head grows
    with the table. One of its own grows by ``head_rows``, and a bias of the head by zeros. Where
    the source has a table of its own, only that of the target grows.

    Args:
        model: left untouched.
        rows: the vectors that the new tokens start with, such as the mean over the pieces that
            spelt them before.
        head_rows: rows of an output head that is not tied; ``None`` means the mean of its rows,
            which gives a new token the average logit.

    Raises:
        ShapeError: rows of another width, none at all, or ``head_rows`` where no head is untied.
        ConfigError: a prepared model, which has no table any more.

    Source: Hewitt 2021 for the mean. Book: adaptation
    """
    width = model.config.d_model
    head: nn.Linear | None = getattr(model, "lm_head", None)
    wanted = [rows] if head_rows is None else [rows, head_rows]
    if not len(rows) or any(given.shape != (len(rows), width) for given in wanted):
        raise ShapeError(
            f"rows of shape {[tuple(given.shape) for given in wanted]} for a table of width "
            f"{width}; give (n_new, {width}), at least one row, and as many to the head"
        )
    if head_rows is not None and head is None:
        raise ShapeError("the output head is tied to the table or missing; leave out head_rows")
    grown = copy.deepcopy(model)
    grown.config = replace(model.config, vocab_size=model.config.vocab_size + len(rows))
    table = grown.embedding.tokens
    table.weight = _longer(table.weight, rows)
    if head is not None:
        mean = head.weight.detach().mean(dim=0, keepdim=True).expand(len(rows), -1)
        grown_head: nn.Linear = grown.get_submodule("lm_head")  # type: ignore[assignment]
        grown_head.weight = _longer(head.weight, mean if head_rows is None else head_rows)
        grown_head.out_features += len(rows)
    if getattr(model, "head_bias", None) is not None:
        bias = grown.get_parameter("head_bias")
        grown.head_bias = _longer(bias, bias.new_zeros(len(rows)))
    return grown


def _longer(table: Tensor, rows: Tensor) -> nn.Parameter:
    joined = torch.cat((table.detach(), rows.detach().to(table)))
    return nn.Parameter(joined, requires_grad=table.requires_grad)
