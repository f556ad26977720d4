"""Multi-head attention: several small attentions side by side.

Book: multi_head
"""

from collections.abc import Callable, Collection, Sequence

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.config import check_heads, kept_heads
from glassformer.errors import ConfigError
from glassformer.functional.attention import attend, attention_weights, weighted_values
from glassformer.functional.positions import apply_rotary
from glassformer.kv_cache import CrossLayerCache, LayerCache

__all__ = ["MultiHeadAttention", "merge_heads", "split_heads"]


def split_heads(
    x: Float[Tensor, "batch time width"], n_heads: int
) -> Float[Tensor, "batch {n_heads} time d_head"]:
    """Cut the last axis into heads and move the heads in front of time. Book: multi_head"""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def merge_heads(
    x: Float[Tensor, "batch n_heads time d_head"],
) -> Float[Tensor, "batch time width"]:
    """The inverse of :func:`split_heads`. Book: multi_head"""
    return x.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Project, split into heads, attend, merge, project.

    Args:
        d_model: width of input and output.
        n_heads: number of query heads; divides ``d_model``.
        n_kv_heads: number of key/value heads; divides ``n_heads``. ``None`` means ``n_heads``.
        d_head: width of a head; ``None`` means ``d_model // n_heads``.
        bias: whether the projections have a bias.
        qkv_bias: whether those to queries, keys and values do; ``None`` means ``bias``.
        dropout: share of the attention weights dropped in training.

    ``eager`` chooses between the fused kernel and explicit weights, which then pass through
    ``weights_tap`` where :func:`glassformer.introspect.capture_attention` looks at them.

    Raises:
        ConfigError: numbers of heads below 1, or that do not divide what they share out.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023 for groups. Book: multi_head
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.heads = tuple(range(n_heads))  # after pruning: those left, by the numbers they had
        self.whole = (self.n_heads, self.n_kv_heads)
        check_heads(d_model, n_heads, self.n_kv_heads, d_head)
        d_head = d_model // n_heads if d_head is None else d_head
        qkv_bias = bias if qkv_bias is None else qkv_bias
        self.q_proj = nn.Linear(d_model, n_heads * d_head, bias=qkv_bias)
        self.k_proj = nn.Linear(d_model, self.n_kv_heads * d_head, bias=qkv_bias)
        self.v_proj = nn.Linear(d_model, self.n_kv_heads * d_head, bias=qkv_bias)
        self.o_proj = nn.Linear(n_heads * d_head, d_model, bias=bias)
        self.dropout = dropout
        self.eager = False
        self.weights_tap = nn.Identity()

    def project_kv(
        self, memory: Float[Tensor, "batch k_len d_model"]
    ) -> tuple[Float[Tensor, "batch n_kv k_len d_head"], Float[Tensor, "batch n_kv k_len d_head"]]:
        """Keys and values of ``memory``, split into heads."""
        k = split_heads(self.k_proj(memory), self.n_kv_heads)
        v = split_heads(self.v_proj(memory), self.n_kv_heads)
        return k, v

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None,
        memory: Float[Tensor, "batch k_len d_model"] | None = None,
        cross_cache: CrossLayerCache | None = None,
        kernel: Callable[..., Tensor] = attend,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Every position of ``x`` listens to ``x`` itself, or to a memory.

        Args:
            x: the positions that ask.
            mask: True = may attend; (T, S) or broadcastable to (B, H, T, S).
            bias: added to the scores, such as that of relative positions.
            is_causal: also hide later positions; the last query stands on the last key.
            rotary: ``(cos, sin)`` of the positions of ``x``; not applied to a memory.
            cache: keeps the keys and values of ``x`` and gives back those of earlier tokens too.
            memory: listen to these vectors (an encoder's output) instead of ``x``.
            cross_cache: keeps the projected memory; once filled, ``memory`` is not read.
            kernel: computes the attention of the heads, with the arguments of
                :func:`glassformer.functional.attend`; not used where ``eager`` is on.
        """
        if not self.heads:  # pruned altogether: what is left is the bias of the output
            return self.o_proj(x[..., :0])
        q = split_heads(self.q_proj(x), self.n_heads)
        if cross_cache is not None:
            k, v = cross_cache.fetch(self.project_kv, memory)
        elif memory is not None:
            k, v = self.project_kv(memory)
        else:
            k, v = self.project_kv(x)
            if rotary is not None:
                q, k = apply_rotary(q, *rotary), apply_rotary(k, *rotary)
            if cache is not None:
                k, v = cache.update(k, v)
        if bias is not None and bias.ndim == 4 and bias.shape[1] > len(self.heads):
            bias = bias[:, list(self.heads)]  # it was made for the heads from before pruning
        context = self._attend(q, k, v, mask, bias, is_causal, kernel)
        return self.o_proj(merge_heads(context))

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        is_causal: bool,
        kernel: Callable[..., Tensor],
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if not self.eager:
            return kernel(q, k, v, mask=mask, bias=bias, is_causal=is_causal, dropout=dropout)
        weights = attention_weights(q, k, mask=mask, bias=bias, is_causal=is_causal)
        weights = self.weights_tap(weights)
        return weighted_values(F.dropout(weights, dropout), v)

    def remove_heads(self, heads: Collection[int]) -> None:
        """Shrink the projections for good, so that these query heads are gone.

        Heads keep the numbers that they had before any pruning. A key/value head goes with the
        last query head that it served; those that stay must serve equally many. All heads may go:
        the output is then the bias of ``o_proj``.

        Raises:
            ConfigError: a head that is not there, or is gone already, or groups that would differ.

        Source: Michel et al. 2019, section 4. Book: pruning
        """
        gone = sorted(set(heads) & set(range(self.whole[0])) - set(self.heads))
        if gone:
            raise ConfigError(
                f"head {gone[0]} is gone already; heads keep the numbers that they had before "
                f"any pruning, and here are {', '.join(map(str, self.heads)) or 'none'}"
            )
        kept = kept_heads(*self.whole, {*range(self.whole[0])} - {*self.heads} | {*heads})
        if kept == self.heads:
            return
        group = self.whole[0] // self.whole[1]
        served, serving = (sorted({head // group for head in hs}) for hs in (self.heads, kept))
        d_head = self.q_proj.out_features // self.n_heads
        queries = [self.heads.index(head) for head in kept]
        keys = [served.index(head) for head in serving]
        _keep_rows(self.q_proj, queries, d_head)
        _keep_rows(self.k_proj, keys, d_head)
        _keep_rows(self.v_proj, keys, d_head)
        columns = self.o_proj.weight.detach().unflatten(1, (-1, d_head))[:, queries]
        self.o_proj.weight = _like(self.o_proj.weight, columns.flatten(1))
        self.o_proj.in_features = len(queries) * d_head
        self.heads, self.n_heads, self.n_kv_heads = kept, len(kept), len(serving)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, dropout={self.dropout}"


def _keep_rows(linear: nn.Linear, blocks: Sequence[int], size: int) -> None:
    """Keep some blocks of ``size`` outputs of a layer."""
    for name in ("weight", "bias"):
        parameter = getattr(linear, name)
        if parameter is not None:
            rows = parameter.detach().unflatten(0, (-1, size))[blocks].flatten(0, 1)
            setattr(linear, name, _like(parameter, rows))
    linear.out_features = len(blocks) * size


def _like(parameter: Tensor, values: Tensor) -> nn.Parameter:
    learns = parameter.requires_grad and values.numel() > 0  # what is empty gets no gradient
    return nn.Parameter(values.clone(), requires_grad=learns)
