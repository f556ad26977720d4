"""One forward pass of generation: read tokens, predict what follows the last one.

Both kinds of model that write are read by the same two functions. A decoder continues a prompt;
an encoder-decoder also listens to a :class:`Source`, which is encoded once.

Book: kv_cache
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from glassformer.errors import GenerationError
from glassformer.kv_cache import CrossCache, KVCache
from glassformer.models.decoder import Decoder
from glassformer.models.encoder_decoder import EncoderDecoder

__all__ = ["Source", "Writer", "decode_step", "encode_source", "predict", "prefill"]

Writer = Decoder | EncoderDecoder


@dataclass(frozen=True, eq=False)
class Source:
    """What an encoder-decoder listens to while it writes.

    Book: kv_cache
    """

    memory: Float[Tensor, "batch source d_model"]
    mask: Bool[Tensor, "batch source"] | None
    """True where a source token is real; None where all are."""
    cross_cache: CrossCache | None
    """Keys and values of the memory: empty until the first pass, the same ever after."""

    def select(self, rows: Int64[Tensor, " rows"]) -> "Source":
        """The source whose row ``i`` is row ``rows[i]`` of this one; the cross cache moves on."""
        if self.cross_cache is not None:
            self.cross_cache.reorder(rows)
        mask = None if self.mask is None else self.mask.index_select(0, rows)
        return Source(self.memory.index_select(0, rows), mask, self.cross_cache)


def encode_source(
    model: EncoderDecoder,
    tokens: Int64[Tensor, "batch source"],
    *,
    token_mask: Bool[Tensor, "batch source"] | None = None,
    use_cache: bool = True,
) -> Source:
    """Run the encoder once; ``use_cache=False`` projects its output again at every pass.

    Book: kv_cache
    """
    memory = model.encode(tokens, token_mask=token_mask)
    return Source(memory, token_mask, model.new_cross_cache() if use_cache else None)


def prefill(
    model: Writer,
    tokens: Int64[Tensor, "batch time"],
    cache: KVCache | None,
    *,
    token_mask: Bool[Tensor, "batch k_len"] | None = None,
    source: Source | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Read tokens into the cache and predict what follows the last one.

    Only the last position goes through the output layer, which saves most of its cost.
    ``token_mask`` covers the tokens already cached and the new ones; ``source`` is what
    :func:`encode_source` made, for an encoder-decoder.

    Raises:
        GenerationError: a decoder with a source, or an encoder-decoder without one.

    Book: kv_cache
    """
    return predict(model, tokens, cache, token_mask=token_mask, source=source)[:, -1]


def decode_step(
    model: Writer,
    token: Int64[Tensor, " batch"],
    cache: KVCache | None,
    *,
    token_mask: Bool[Tensor, "batch k_len"] | None = None,
    source: Source | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Add one token per row to the cache and predict the next: a prefill of length 1.

    Book: kv_cache
    """
    return prefill(model, token[:, None], cache, token_mask=token_mask, source=source)


def predict(
    model: Writer,
    tokens: Int64[Tensor, "batch time"],
    cache: KVCache | None,
    *,
    token_mask: Bool[Tensor, "batch k_len"] | None = None,
    source: Source | None = None,
    n_last: int = 1,
) -> Float[Tensor, "batch n_last vocab"]:
    """:func:`prefill` that predicts what follows each of the last ``n_last`` tokens.

    Raises:
        GenerationError: as :func:`prefill`.

    Book: kv_cache
    """
    if isinstance(model, Decoder):
        if source is not None:
            raise GenerationError("a Decoder listens to no source; give its tokens as the prompt")
        hidden = model.hidden(tokens, token_mask=token_mask, cache=cache)
    elif source is None:
        raise GenerationError("an EncoderDecoder needs a source; make one with encode_source()")
    else:
        hidden = model.decode(
            tokens,
            source.memory,
            memory_mask=source.mask,
            token_mask=token_mask,
            cache=cache,
            cross_cache=source.cross_cache,
        )
    logits: Tensor = model.head(hidden[:, -n_last:])
    return logits
