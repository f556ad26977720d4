"""Tables that translate another library's weights into ours, and back.

A table is a list of links, one for each of our parameters: where it stands over there, and the
reversible steps from their layout to ours. The same table reads and writes, so whatever is loaded
can be saved again.

Book: evolution
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """One change of layout and its inverse. Book: evolution"""

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor], Tensor]


class Link(NamedTuple):
    """Where one parameter of ours stands in their weights.

    Args:
        ours, theirs: names in the two state dicts.
        steps: from their layout to ours, in this order.
        part: ``(dim, start, stop)`` of their tensor, where several of ours share one of theirs.

    Book: evolution
    """

    ours: str
    theirs: str
    steps: tuple[Step, ...] = ()
    part: tuple[int, int, int] | None = None


Table = list[Link]


def _transpose(tensor: Tensor) -> Tensor:
    return tensor.mT


TRANSPOSED = Step(_transpose, _transpose)


def scaled(factor: float) -> Step:
    """Ours is theirs times ``factor``: exact for powers of two, else to one unit of rounding.

    Book: evolution
    """
    return Step(lambda tensor: tensor * factor, lambda tensor: tensor / factor)


def flattened(*shape: int) -> Step:
    """Theirs has ``shape``, ours one axis. Book: evolution"""
    return Step(lambda tensor: tensor.flatten(), lambda tensor: tensor.reshape(shape))


def skip_rows(count: int) -> Step:
    """Their table begins with ``count`` rows that no token reads; written back, they are zero.

    Book: evolution
    """
    return Step(
        lambda tensor: tensor[count:],
        lambda tensor: torch.cat((tensor.new_zeros(count, *tensor.shape[1:]), tensor)),
    )


def half_split(n_heads: int) -> Step:
    """Rows of a query or key projection from neighbouring rotary pairs to our two halves.

    The layout of Meta's LLaMA files and of GGUF turns the pairs ``(x[2i], x[2i + 1])`` of a head;
    ours and Hugging Face's turns ``(x[i], x[i + d_head/2])``. As queries and keys move alike, all
    scores stay what they were.

    Source: Su et al. 2021, equation 34, for the neighbouring pairs. Book: evolution
    """

    def swap(tensor: Tensor, inner: tuple[int, int]) -> Tensor:
        return tensor.unflatten(0, (n_heads, *inner)).transpose(1, 2).flatten(0, 2)

    return Step(lambda tensor: swap(tensor, (-1, 2)), lambda tensor: swap(tensor, (2, -1)))


def alternate_halves(dim: int) -> Step:
    """Axis ``dim`` from all even places before all odd ones (sines, then cosines) to our order.

    Book: evolution
    """

    def swap(tensor: Tensor, inner: tuple[int, int]) -> Tensor:
        return tensor.unflatten(dim, inner).transpose(dim, dim + 1).flatten(dim, dim + 1)

    return Step(lambda tensor: swap(tensor, (2, -1)), lambda tensor: swap(tensor, (-1, 2)))


def both(ours: str, theirs: str, *, bias: bool = True) -> Table:
    """Weight and bias of one layer. Book: evolution"""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Link(f"{ours}.{kind}", f"{theirs}.{kind}") for kind in kinds]


def fused(theirs: str, parts: Mapping[str, int], *steps: Step, dim: int = 0) -> Table:
    """Several of our parameters, name and size, side by side along ``dim`` of one of theirs.

    Book: evolution
    """
    table, start = [], 0
    for ours, size in parts.items():
        table.append(Link(ours, theirs, steps, (dim, start, start + size)))
        start += size
    return table


def layers(ours: str, theirs: str, count: int, table: Table) -> Table:
    """The table of one layer for each of ``count``; ``{i}`` in the prefixes is its number.

    Book: evolution
    """
    return [
        link._replace(
            ours=f"{ours.format(i=i)}.{link.ours}", theirs=f"{theirs.format(i=i)}.{link.theirs}"
        )
        for i in range(count)
        for link in table
    ]


def to_ours(theirs: Mapping[str, Tensor], table: Table) -> dict[str, Tensor]:
    """A state dict of ours from one of theirs that has all names of the table.

    Book: evolution
    """
    ours = {}
    for link in table:
        tensor = theirs[link.theirs]
        if link.part is not None:
            dim, start, stop = link.part
            tensor = tensor.narrow(dim, start, stop - start)
        for step in link.steps:
            tensor = step.to_ours(tensor)
        ours[link.ours] = tensor.contiguous()
    return ours


def to_theirs(ours: Mapping[str, Tensor], table: Table) -> dict[str, Tensor]:
    """The inverse of :func:`to_ours`. Book: evolution"""
    found: dict[str, list[tuple[Link, Tensor]]] = {}
    for link in table:
        tensor = ours[link.ours]
        for step in reversed(link.steps):
            tensor = step.to_theirs(tensor)
        found.setdefault(link.theirs, []).append((link, tensor))
    return {name: _join(pieces).contiguous() for name, pieces in found.items()}


def names_and_shapes(ours: Mapping[str, Tensor], table: Table) -> dict[str, tuple[int, ...]]:
    """What their state dict must hold for ours. Tensors on the meta device are enough.

    Book: evolution
    """
    return {name: tuple(tensor.shape) for name, tensor in to_theirs(ours, table).items()}


def _join(pieces: Sequence[tuple[Link, Tensor]]) -> Tensor:
    first = pieces[0][0].part
    tensors = [tensor for _, tensor in pieces]
    return tensors[0] if first is None else torch.cat(tensors, dim=first[0])
