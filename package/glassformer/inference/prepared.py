"""A trained model prepared once, so that every further token costs as little as possible.

Making one token reads every weight once and computes little, so the reading decides. Prepared
weights lie in memory as the fastest product of this machine reads them; queries, keys and values
come from one product; keys and values go into buffers with room to spare; and a step is a few
plain functions instead of a hundred modules.

Book: kv_cache
"""

from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import ConfigError
from glassformer.functional.masking import padding_mask
from glassformer.inference._cache import RoomyCache
from glassformer.inference._products import frozen
from glassformer.inference._writing import Writing
from glassformer.kv_cache import CrossCache, KVCache
from glassformer.models import Decoder, EncoderDecoder
from glassformer.models._parts import (
    cache_length,
    causal_pass,
    check_token_mask,
    check_tokens,
    make_cache,
)

__all__ = ["PreparedDecoder", "PreparedTranslator", "prepare"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@overload
def prepare(
    model: Decoder, *, dtype: torch.dtype = ..., batch_size: int = ...
) -> "PreparedDecoder": ...


@overload
def prepare(
    model: EncoderDecoder, *, dtype: torch.dtype = ..., batch_size: int = ...
) -> "PreparedTranslator": ...


def prepare(
    model: Decoder | EncoderDecoder, *, dtype: torch.dtype = torch.float32, batch_size: int = 1
) -> "PreparedDecoder | PreparedTranslator":
    """A copy of ``model`` that writes the same text faster; use it wherever the model writes.

    ``generate(prepare(model), prompt, max_new_tokens=64)`` is all it takes. In float32 the logits
    are the model's own up to rounding (1e-5 of their size). With 16-bit weights a step reads half
    the bytes; on the CPU the stream, the caches and the norms stay in float32. A change of
    ``model`` afterwards does not reach the copy.

    Args:
        model: a trained decoder or translator. The copy stays on its device.
        dtype: of the weights: float32, bfloat16 (up to about 2e-2 of the size of the logits) or
            float16 (about 2e-3). On other devices than the CPU the stream has it too.
        batch_size: rows, or beams, that will mostly be written together; any number works.

    Raises:
        ConfigError: another dtype, or a model with a part that is unknown here or that is prepared.

    Source: Pope et al. 2023, section 2, for what a step costs. Book: kv_cache
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype} may be {', '.join(str(d) for d in DTYPES)}")
    with torch.no_grad():
        if isinstance(model, Decoder):
            return PreparedDecoder(model, dtype=dtype, batch_size=batch_size)
        return PreparedTranslator(model, dtype=dtype, batch_size=batch_size)


class _Gone:
    """A part that only the model has."""

    def __get__(self, prepared: nn.Module | None, kind: type) -> Any:
        if prepared is None:
            return self
        raise ConfigError(
            "a prepared model has no embedding of its own; take the model that it was made of"
        )


class _Prepared(nn.Module):
    """What prepared models share: an output layer and caches of their own, and what they refuse."""

    table: Tensor
    embedding: Any = _Gone()

    def _take(self, model: Decoder | EncoderDecoder, dtype: torch.dtype, rows: int) -> None:
        nn.Module.__init__(self)
        self.config: Any = model.config
        self._writing = Writing(model, dtype, rows)
        self.register_buffer("table", self._writing.table)  # shows the device

    def head(self, hidden: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead vocab_size"]:
        """Logits of a hidden state."""
        return self._writing.head(hidden)

    @property
    def head_weight(self) -> Float[Tensor, "vocab_size d_model"]:
        """The matrix of the output head is packed: only :meth:`head` can read it."""
        raise ConfigError(
            "a prepared model has no head_weight of its own; call head(hidden), or take the "
            "matrix from the model that it was made of"
        )

    def new_cache(
        self, *, static: bool = False, batch_size: int | None = None, max_len: int | None = None
    ) -> KVCache:
        """An empty cache; arguments are those of ``Decoder.new_cache``.

        Without ``static`` its buffers have room to spare and double when that is used up.
        """
        if not static:
            return RoomyCache(len(self._writing.blocks))
        example = self.table.new_empty(0, dtype=self._writing.stream)
        return make_cache(self.config, example, static=True, batch_size=batch_size, max_len=max_len)

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """Packed weights are not for saving; they fit one machine and one dtype."""
        raise ConfigError("a prepared model cannot be saved; save the model that it was made of")

    def _apply(self, *args: Any, **keywords: Any) -> Any:
        raise ConfigError(
            "a prepared model cannot move or change its dtype; move the model, then prepare it"
        )


class PreparedDecoder(_Prepared, Decoder):
    """A :class:`glassformer.Decoder` that :func:`prepare` made; it cannot be trained.

    Book: kv_cache
    """

    def __init__(self, model: Decoder, *, dtype: torch.dtype, batch_size: int) -> None:
        self._take(model, dtype, batch_size)

    def hidden(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        token_mask: Bool[Tensor, "batch k_len"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """The stream before the output head. Arguments are those of ``Decoder.forward``."""
        check_tokens(tokens, self.config, cached=cache_length(cache))
        step = causal_pass(tokens, token_mask, cache, self.config.sliding_window)
        return self._writing.run(tokens, step, cache)


class PreparedTranslator(_Prepared, EncoderDecoder):
    """A :class:`glassformer.EncoderDecoder` that :func:`prepare` made; it cannot be trained.

    The source is read once, so its side is as it was, but for the dtype on other devices than the
    CPU; what is prepared is the side that writes.

    Book: kv_cache
    """

    def __init__(self, model: EncoderDecoder, *, dtype: torch.dtype, batch_size: int) -> None:
        self._take(model, dtype, batch_size)
        stream = self._writing.stream
        self.own_source_embedding = frozen(model.source_embedding, stream)
        self.rotary = model.rotary
        self.encoder = frozen(model.encoder, stream)

    def decode(
        self,
        target: Int[Tensor, "batch time"],
        memory: Float[Tensor, "batch source d_model"],
        *,
        memory_mask: Bool[Tensor, "batch source"] | None = None,
        token_mask: Bool[Tensor, "batch k_len"] | None = None,
        cache: KVCache | None = None,
        cross_cache: CrossCache | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """The stream before the output head. Arguments are those of ``EncoderDecoder.decode``."""
        check_tokens(target, self.config, cached=cache_length(cache), name="target")
        if memory_mask is not None:
            check_token_mask(memory_mask, memory.shape[0], (memory.shape[1],))
        step = causal_pass(target, token_mask, cache, self.config.sliding_window)
        seen = None if memory_mask is None else padding_mask(memory_mask)
        return self._writing.run(target, step, cache, memory, seen, cross_cache)

    def new_cross_cache(self) -> CrossCache:
        """An empty cache for the projected source."""
        return CrossCache(len(self._writing.blocks))
