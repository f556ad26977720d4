"""A decoder that follows a rule, so that a test can work out by hand what it must write."""

import torch
from glassformer.config import DecoderConfig
from glassformer.kv_cache import GrowingCache, StaticCache
from glassformer.models import Decoder
from support.core import scrambled, translator_config
from torch import nn


class Toy(Decoder):
    """Its next token has the probabilities ``rule(ids so far)``.

    The ids so far are read from the cache where there is one: a cache that is not reordered or
    cropped as the text is gives another text. ``fed`` records the shape of every pass.
    """

    def __init__(self, rule, vocab_size: int = 7) -> None:
        nn.Module.__init__(self)
        self.config = DecoderConfig(
            vocab_size=vocab_size, max_len=97, d_model=2, n_heads=1, n_layers=1
        )
        self.rule, self.fed = rule, []

    def new_cache(self, *, static=False, batch_size=None, max_len=None):
        if static:
            return StaticCache(1, batch_size, 1, max_len or 97, 1)
        return GrowingCache(1)

    def hidden(self, tokens, *, token_mask=None, cache=None):
        self.fed.append(tuple(tokens.shape))
        seen, new = tokens, tokens.shape[1]
        if cache is not None:
            keys = tokens[:, None, :, None].float()
            kept, _ = cache.layers[0].update(keys, keys)
            cache.advance(new)
            seen = kept[:, 0, : cache.length, 0].long()
        real = torch.ones_like(seen, dtype=torch.bool) if token_mask is None else token_mask
        first = seen.shape[1] - new + 1
        return torch.stack(
            [
                torch.stack(
                    [self._log_probs(row[:end][mask[:end]]) for end in range(first, first + new)]
                )
                for row, mask in zip(seen, real, strict=True)
            ]
        )

    def _log_probs(self, ids):
        return torch.as_tensor(self.rule(ids.tolist()), dtype=torch.float32).log()

    def head(self, hidden):
        return hidden


def table_rule(seed: int, vocab_size: int, *, spread: float = 2.0):
    """Random probabilities that depend on the last two ids and on how many there are."""
    tables = torch.randn(
        11, vocab_size, vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)
    )

    def rule(ids):
        before, last = ([0] * 2 + ids)[-2:]
        return (spread * tables[len(ids) % 11, before, last]).softmax(-1)

    return rule


def listener(**changes):
    """A translator with random weights that listens: other sources, other texts."""
    model = scrambled(translator_config(tie_embeddings=False, **changes)).float()
    with torch.no_grad():
        for block in model.decoder.blocks:
            block.cross_attn.o_proj.weight.mul_(7)
        for embedding in (model.embedding, model.source_embedding):
            embedding.tokens.weight.normal_()
    return model
