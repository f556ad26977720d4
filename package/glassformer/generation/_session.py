"""Texts while they are written: what the loops of this package share, and all they know of models.

Greedy decoding, sampling, beam search and speculative decoding each append tokens to a
:class:`Session` and ask it what may follow.

Book: kv_cache
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from glassformer.data.batches import pad_batch
from glassformer.errors import GenerationError
from glassformer.evaluation.mode import device_of
from glassformer.generation.samplers import Choice, Text
from glassformer.generation.step import Source, Writer, encode_source, predict
from glassformer.kv_cache import KVCache, StaticCache
from glassformer.models.encoder_decoder import EncoderDecoder

Rows = Tensor | Sequence[Sequence[int]]


class Request(NamedTuple):
    """What was asked for, checked, on the model's device; nothing is computed yet.

    Book: kv_cache
    """

    model: Writer
    text: Text
    source: Text | None
    """What an encoder reads, right-padded."""
    max_new_tokens: int
    stop_ids: Int64[Tensor, " stops"]
    pad_id: int
    cache: KVCache | None


class Session:
    """Rows of text that grow, shrink and change places, and a model that has read some of them.

    Book: kv_cache
    """

    def __init__(
        self, model: Writer, text: Text, cache: KVCache | None, source: Source | None
    ) -> None:
        self.model = model
        self.text = text
        self.cache = cache
        self.source = source
        self._padded = not bool(text.token_mask.all())
        self._n_read = 0

    @property
    def length(self) -> int:
        """Columns of the text."""
        return self.text.tokens.shape[1]

    def logits(self, n_last: int = 1) -> Float32[Tensor, "rows n_last vocab"]:
        """Read what is unread and predict what follows each of the last ``n_last`` tokens.

        The last ``n_last`` tokens must be unread. Without a cache everything is read again.
        """
        logits = predict(
            self.model,
            self.text.tokens[:, self._n_read :],
            self.cache,
            token_mask=self.text.token_mask if self._padded else None,
            source=self.source,
            n_last=n_last,
        )
        if self.cache is not None:
            self._n_read = self.length
        return logits.float()

    def append(
        self, tokens: Int64[Tensor, "rows new"], real: Bool[Tensor, " rows"] | None = None
    ) -> None:
        """Add tokens to every row; in rows that are not ``real`` they are padding."""
        mask = torch.ones_like(tokens, dtype=torch.bool)
        if real is not None:
            mask = mask & real[:, None]
        self.text = Text(
            torch.cat((self.text.tokens, tokens), dim=1),
            torch.cat((self.text.token_mask, mask), dim=1),
        )

    def crop(self, length: int) -> None:
        """Forget all columns from ``length`` on."""
        self.text = Text(self.text.tokens[:, :length], self.text.token_mask[:, :length])
        if self.cache is not None and length < self._n_read:
            self.cache.crop(length)
            self._n_read = length

    def select(self, rows: Int64[Tensor, " kept"], *, same_source: bool = False) -> None:
        """Row ``i`` becomes what row ``rows[i]`` was; rows may come several times or not at all.

        ``same_source`` says that every row goes to a place with the same source, which then need
        not move.
        """
        self.text = Text(*(part.index_select(0, rows) for part in self.text))
        if self.cache is not None and self._n_read:
            self.cache.reorder(rows)
        if self.source is not None and not same_source:
            self.source = self.source.select(rows)


def open_session(request: Request) -> Session:
    """Encode the source, if there is one; the text is read at the first ``logits()``.

    Book: kv_cache
    """
    model, source = request.model, None
    if isinstance(model, EncoderDecoder) and request.source is not None:
        tokens, real = request.source
        source = encode_source(
            model,
            tokens,
            token_mask=None if bool(real.all()) else real,
            use_cache=request.cache is not None,
        )
    return Session(model, request.text, request.cache, source)


class Step(NamedTuple):
    """One token per row, and where it came from.

    Book: kv_cache
    """

    tokens: Int64[Tensor, " batch"]
    log_probs: Float32[Tensor, " batch"]
    logits: Float32[Tensor, "batch vocab"]


def steps(request: Request, choose: Choice) -> Iterator[Step]:
    """The loop: predict, choose, append, until every row has ended.

    Book: kv_cache
    """
    session = open_session(request)
    running = torch.ones_like(request.text.token_mask[:, 0])
    for _ in range(request.max_new_tokens):
        logits = session.logits()[:, -1]
        chosen = choose(logits, session.text)
        log_probs = logits.log_softmax(dim=-1).gather(-1, chosen[:, None])[:, 0]
        chosen = chosen.where(running, request.pad_id)
        yield Step(chosen, log_probs.where(running, 0.0), logits)
        session.append(chosen[:, None], running)
        running = running & ~torch.isin(chosen, request.stop_ids)
        if len(request.stop_ids) and not running.any():
            return


def prepare(
    model: Writer,
    prompt: Rows,
    *,
    max_new_tokens: int,
    bos_id: int | None,
    stop_ids: Sequence[int],
    pad_id: int | None = None,
    cache: KVCache | None = None,
    use_cache: bool = True,
) -> Request:
    """Check a request before anything is computed.

    Book: kv_cache
    """
    config, source = model.config, None
    fill = pad_id if pad_id is not None else config.pad_id or 0
    listens = isinstance(model, EncoderDecoder)
    text = _as_text(prompt, fill, left=not listens)
    _check_start(model, bos_id)
    if isinstance(model, EncoderDecoder):
        source_size = model.config.source_vocab_size or config.vocab_size
        _check_ids(text.tokens, source_size)
        if text.tokens.shape[1] > config.max_len:
            raise GenerationError(
                f"a source of {text.tokens.shape[1]} tokens exceeds max_len={config.max_len}; "
                "shorten it, or use a model with a larger max_len"
            )
        source = text
        start = torch.full((len(source.tokens), 1), bos_id or 0)
        text = Text(start, torch.ones_like(start, dtype=torch.bool))
    _check_ids(text.tokens, config.vocab_size)
    _check_ids([fill], config.vocab_size, "pad_id")
    _check_ids(list(stop_ids), config.vocab_size, "stop_ids")
    if cache is not None and not use_cache:
        raise GenerationError("a cache was given together with use_cache=False; drop one of them")
    if use_cache and cache is None:
        cache = model.new_cache()
    _check_room(model, text.tokens.shape[1], max_new_tokens, cache)
    device = device_of(model)
    return Request(
        model,
        Text(*(part.to(device) for part in text)),
        None if source is None else Text(*(part.to(device) for part in source)),
        max_new_tokens,
        torch.tensor(list(stop_ids), dtype=torch.int64, device=device),
        fill,
        cache,
    )


def _as_text(prompt: Rows, pad_id: int, *, left: bool) -> Text:
    """Tokens (batch, time) and where they are real."""
    if isinstance(prompt, Tensor):
        if prompt.dim() != 2 or prompt.numel() == 0:
            raise GenerationError(
                f"prompt of shape {tuple(prompt.shape)} must be (batch, time) with at least one "
                "token; begin an empty prompt with bos"
            )
        return Text(prompt, torch.ones_like(prompt, dtype=torch.bool))
    if not prompt or not all(prompt):
        raise GenerationError(
            f"prompts of lengths {[len(row) for row in prompt]} must each have at least one "
            "token; begin an empty prompt with bos"
        )
    return Text(*pad_batch(prompt, pad_id, left=left))


def _check_start(model: Writer, bos_id: int | None) -> None:
    if isinstance(model, EncoderDecoder) and bos_id is None:
        raise GenerationError(
            "an EncoderDecoder reads the source and begins its own text; give the bos_id that "
            "its targets began with in training"
        )
    if not isinstance(model, EncoderDecoder) and bos_id is not None:
        raise GenerationError(
            f"a Decoder continues its prompt, so bos_id={bos_id} has no place; put it in front "
            "of the prompt"
        )


def _check_ids(ids: Tensor | Sequence[int], vocab_size: int, name: str = "") -> None:
    """Refuse ids outside the vocabulary; the message shows the extremes, or ``name=ids``."""
    flat = torch.as_tensor(ids).flatten().tolist()
    if flat and not (min(flat) >= 0 and max(flat) < vocab_size):
        given = f"{name}={ids}" if name else f"ids from {min(flat)} to {max(flat)}"
        raise GenerationError(
            f"{given} must lie in a vocabulary of {vocab_size}; "
            "use the tokenizer that the model was trained with"
        )


def _check_room(model: Writer, n_text: int, max_new: int, cache: KVCache | None) -> None:
    if max_new < 1:
        raise GenerationError(f"max_new_tokens={max_new} must be at least 1")
    if cache is not None and cache.length:
        raise GenerationError(
            f"the cache holds {cache.length} tokens of another text; reset it or give a new one"
        )
    room = model.config.max_len
    if isinstance(cache, StaticCache):
        room = min(room, cache.max_len)
    if n_text >= room:
        raise GenerationError(
            f"a prompt of {n_text} tokens is too long to write on from, as there is room for "
            f"{room}; shorten it"
        )
    if n_text + max_new > room:
        raise GenerationError(
            f"a prompt of {n_text} tokens and max_new_tokens={max_new} make "
            f"{n_text + max_new}, and there is room for {room}; shorten the prompt or ask for "
            f"at most {room - n_text} new tokens"
        )
