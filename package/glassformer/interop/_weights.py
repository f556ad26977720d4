"""A model from weights that all have their place.

Book: evolution
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from glassformer.config import TransformerConfig
from glassformer.errors import CheckpointError
from glassformer.interop._family import Family
from glassformer.interop._tables import Table, names_and_shapes, to_ours
from glassformer.models import Decoder, Encoder, EncoderDecoder, build_model


def model_with(
    config: TransformerConfig,
    table: Table,
    theirs: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    source: str,
) -> Decoder | Encoder | EncoderDecoder:
    """A model of ``config`` with weights that go by the names of ``table``, all accounted for.

    Args:
        source: what the weights are called in an error.

    Raises:
        CheckpointError: names that are missing or unknown, or shapes that differ.

    Book: evolution
    """
    model = skeleton(config)
    wanted = names_and_shapes(model.state_dict(), table)
    problems = [f"{name} is missing" for name in wanted if name not in theirs]
    problems += [f"{name} is unknown" for name in theirs if name not in wanted]
    problems += [
        f"{name} has shape {tuple(tensor.shape)} instead of {wanted[name]}"
        for name, tensor in theirs.items()
        if name in wanted and tuple(tensor.shape) != wanted[name]
    ]
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError(
            f"{source}: these weights are not those of the config: {'; '.join(problems[:8])}{more}"
        )
    # one by one in float32 at least, so that scales round once; a copy of its own for each weight
    weights: dict[str, Tensor] = {}
    for link in table:
        tensor = theirs[link.theirs]
        exact = {link.theirs: tensor.to(torch.promote_types(tensor.dtype, torch.float32))}
        weights |= {k: v.to(dtype, copy=True) for k, v in to_ours(exact, [link]).items()}
    model.load_state_dict(weights, assign=True)
    return model.eval()


def skeleton(config: TransformerConfig) -> Decoder | Encoder | EncoderDecoder:
    """A model without numbers: names and shapes, no memory, no random state used.

    Book: evolution
    """
    with torch.device("meta"):
        return build_model(config)


def known_names(
    given: Mapping[str, Tensor], family: Family, config: TransformerConfig
) -> dict[str, Tensor]:
    """The tensors under the names of the table, without copies and what is passed over.

    Raises:
        CheckpointError: a copy that differs from what it should equal.

    Book: evolution
    """
    wanted = {link.theirs for link in family.table(config)}
    doubles, computed = family.doubles(config), family.computed(config)
    named: dict[str, Tensor] = {}
    for name, tensor in given.items():
        # BERT's first files call the weight and bias of a norm gamma and beta
        modern = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        modern = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", modern)
        bare = modern.removeprefix(family.prefix)
        known = (s for s in (modern, family.prefix + modern, bare) if s in {*wanted, *doubles})
        if family.prefix + bare in computed:
            _check_computed(name, tensor, computed[family.prefix + bare])
        elif not any(re.fullmatch(pattern, bare) for pattern in family.ignored):
            named[next(known, modern)] = tensor
    for name, original in doubles.items():
        if name in wanted and name not in named and original in named:
            named[name] = named[original]
        elif name in named and name not in wanted:
            copy = named.pop(name)
            if not torch.equal(copy, named.setdefault(original, copy)):
                raise CheckpointError(
                    f"{name} and {original} differ, but the config says that they are one tensor; "
                    "check tie_word_embeddings"
                )
    return named


def _check_computed(name: str, tensor: Tensor, ours: Tensor) -> None:
    """Files in half precision may be off by their rounding."""
    if tensor.shape != ours.shape or not torch.allclose(tensor.float(), ours, atol=4e-3, rtol=0):
        raise CheckpointError(
            f"{name} is not what our models compute in its place; choose a model with plain "
            "sinusoids and the max_position_embeddings of its config"
        )
