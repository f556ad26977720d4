"""A mixture of experts: many feed-forward networks, of which each token visits a few.

Axes: N tokens, X experts, k experts that one token visits.

Book: evolution
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.config import Activation
from glassformer.errors import ConfigError, ShapeError
from glassformer.nn.feed_forward import FeedForward

__all__ = ["MixtureOfExperts", "Routing", "load_balancing_loss", "route"]


class Routing(NamedTuple):
    """Where a router sent its tokens. Book: evolution"""

    probs: Float[Tensor, "tokens n_experts"]
    """Probability of every expert, before the choice; carries the gradient of a balancing loss."""
    chosen: Int[Tensor, "tokens k"]
    """The experts of each token, the most likely one first."""
    weights: Float[Tensor, "tokens k"]
    """What the outputs of the chosen are multiplied by; several sum to one."""
    kept: Bool[Tensor, "tokens k"]
    """False where the expert was already full."""

    @property
    def overflow(self) -> Int[Tensor, ""]:
        """How many visits found their expert full."""
        return (~self.kept).sum()


def route(
    scores: Float[Tensor, "tokens n_experts"], k: int, *, places: int | None = None
) -> tuple[Routing, Int[Tensor, "tokens k"]]:
    """Send each token to its ``k`` best experts.

    Args:
        scores: what the router thinks of every expert, before the softmax.
        k: experts per token.
        places: tokens that one expert takes; ``None`` for any number. First choices of all tokens
            are seated before second ones, and among equals the earlier token first.

    Returns:
        The routing, and the place of each visit in its expert's queue. The weights of several
        experts are scaled to sum to one; a single one keeps its probability, for a weight that is
        always one would teach the router nothing.

    Source: Shazeer et al. 2017, equations 3-5; Fedus et al. 2022, section 2.1 for a single expert;
    Lepikhin et al. 2021, section 2.2 for the order.
    Book: evolution
    """
    probs = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(dim=-1)
    best, chosen = probs.topk(k, dim=-1)
    visits = F.one_hot(chosen.T.flatten(), scores.shape[1])  # (k N, X), first choices first
    queue = (visits.cumsum(dim=0) * visits).sum(dim=-1) - 1  # how many came before to this expert
    place = queue.unflatten(0, (k, -1)).T
    kept = place < (len(scores) if places is None else places)
    weights = best if k == 1 else best / best.sum(dim=-1, keepdim=True)
    return Routing(probs, chosen, weights, kept), place


def load_balancing_loss(
    probs: Float[Tensor, "*lead n_experts"],
    chosen: Int[Tensor, "*lead k"],
    *,
    token_mask: Bool[Tensor, "*lead"] | None = None,
) -> Float[Tensor, ""]:
    """``X * sum_i f_i P_i``: 1 where all experts get equal shares, up to X where one gets all.

    ``f_i`` is the share of the visits that went to expert i, ``P_i`` the mean probability that it
    was given. Only ``P`` has a gradient, and it lowers the probability of crowded experts. Add a
    small multiple (0.01 in the source) to the loss of the task, for every layer.

    Args:
        probs, chosen: of a :class:`Routing`, as :func:`glassformer.introspect.collect_router`
            gathers them.
        token_mask: True where a token is real; padding then does not count.

    Source: Fedus et al. 2022, equations 4-6; Shazeer et al. 2017, section 4 for the idea.
    Book: evolution
    """
    n_experts = probs.shape[-1]
    visits = F.one_hot(chosen, n_experts).sum(dim=-2).float() / chosen.shape[-1]
    if token_mask is None:
        real = torch.ones(probs.shape[:-1], device=probs.device)
    else:
        real = token_mask.float()
    lead = tuple(range(real.ndim))
    n_real = real.sum().clamp(min=1)
    shares = (visits * real[..., None]).sum(dim=lead) / n_real
    means = (probs.float() * real[..., None]).sum(dim=lead) / n_real
    return n_experts * (shares * means).sum()


class MixtureOfExperts(nn.Module):
    """A router and ``n_experts`` feed-forward networks; each token visits ``experts_per_token``.

    The output is the average of the visited experts' outputs, weighted by the router's
    probabilities, as in :func:`route`. A visit to a full expert
    adds nothing: a token all of whose experts are full gets zeros, and in a block the residual
    carries it on. Without a capacity no token depends on another, and padding on none; with one,
    every token of the batch, padding too, takes a place.

    What the router did passes through ``router_tap``, where
    :func:`glassformer.introspect.collect_router` looks at it; the module keeps nothing.

    Args:
        d_model: width of the input and output.
        d_ff: width in between, of each expert.
        n_experts: number of experts.
        experts_per_token: how many of them a token visits.
        capacity: places of an expert, as a multiple of its fair share of the visits, N k / X.
            ``None`` for as many as come. With a capacity shapes do not depend on the choices, so
            the module compiles to one graph.
        activation, bias, dropout: of the experts, as in :class:`FeedForward`.

    Raises:
        ConfigError: fewer experts than a token visits, or a capacity that is not positive
            and finite.

    Source: Shazeer et al. 2017, section 2; Fedus et al. 2022, section 2.2 for the capacity.
    Book: evolution
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        n_experts: int,
        experts_per_token: int = 2,
        capacity: float | None = None,
        activation: Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not 1 <= experts_per_token <= n_experts:
            raise ConfigError(
                f"experts_per_token={experts_per_token} of n_experts={n_experts}: a token visits "
                f"at least one expert and at most all; give a number from 1 to {n_experts}"
            )
        if capacity is not None and not 0 < capacity < math.inf:
            raise ConfigError(
                f"capacity={capacity} must be a positive and finite multiple of the fair share, "
                "such as 1.25, or None for no bound"
            )
        self.n_experts = n_experts
        self.experts_per_token = experts_per_token
        self.capacity = capacity
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.router_tap = nn.Identity()
        self.experts = nn.ModuleList(
            FeedForward(d_model, d_ff, activation=activation, bias=bias, dropout=dropout)
            for _ in range(n_experts)
        )

    def forward(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Each token goes to its experts and comes back as their weighted average.

        Raises:
            ShapeError: vectors of another width.
        """
        if x.shape[-1] != self.router.in_features:
            raise ShapeError(
                f"vectors of width {x.shape[-1]} were given to a mixture of width "
                f"{self.router.in_features}; the last axis must be d_model"
            )
        tokens = x.reshape(-1, x.shape[-1])
        places = self._places(len(tokens))
        routing, place = route(self.router(tokens), self.experts_per_token, places=places)
        routing = self.router_tap(routing)
        if places is None:
            sizes = torch.bincount(routing.chosen.flatten(), minlength=self.n_experts).tolist()
        else:
            sizes = [places] * self.n_experts
        return self._visit(tokens, routing, place, sizes).to(x.dtype).view_as(x)

    def _places(self, n_tokens: int) -> int | None:
        if self.capacity is None:
            return None
        return math.ceil(self.capacity * n_tokens * self.experts_per_token / self.n_experts)

    def _visit(self, tokens: Tensor, routing: Routing, place: Tensor, sizes: list[int]) -> Tensor:
        """Gather each expert's tokens side by side, run it once, send the results back."""
        ends = torch.tensor(sizes, device=tokens.device).cumsum(dim=0)
        starts = F.pad(ends[:-1], (1, 0))
        n_places = sum(sizes)  # behind them lies one more, for all who found their expert full
        seat = torch.where(routing.kept, starts[routing.chosen] + place, n_places)  # (N, k)
        visitor = torch.arange(len(tokens), device=tokens.device).repeat_interleave(seat.shape[1])
        guest = visitor.new_full((n_places + 1,), len(tokens))  # an empty place has row N, of zeros
        guest = guest.index_copy(0, seat.flatten(), visitor)[:n_places]
        seated = F.pad(tokens, (0, 0, 0, 1))[guest]
        parts = seated.split(sizes)
        results = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        nothing = results[0].new_zeros(1, tokens.shape[1])
        served = torch.cat([*results, nothing])[seat]  # (N, k, D)
        return (served * routing.weights[..., None]).sum(dim=1)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return (
            f"n_experts={self.n_experts}, experts_per_token={self.experts_per_token}, "
            f"capacity={self.capacity}"
        )
