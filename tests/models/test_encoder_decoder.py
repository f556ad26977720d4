"""The translator: two masks that never mix, and a target that sees no future."""

import pytest
import torch
from glassformer import capture_attention
from glassformer.errors import CacheError, ShapeError
from support.core import ids, scrambled, translator_config
from torch.testing import assert_close

VARIANTS = [
    {},
    {"positions": "sinusoidal", "norm_position": "post", "activation": "relu"},
    {"positions": "learned", "source_vocab_size": 31, "n_encoder_layers": 1, "n_kv_heads": 1},
    {"norm": "rms", "activation": "swiglu", "bias": False, "tie_embeddings": False},
]
EACH = pytest.mark.parametrize("variant", VARIANTS)


def lengths_mask(*lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


@EACH
def test_target_sees_no_future_and_all_of_the_source(variant):
    model = scrambled(translator_config(**variant))
    source, target = ids(1, 7), ids(1, 5)
    want = model(source, target)
    assert want.shape == (1, 5, 29)
    for t in range(5):
        changed = target.clone()
        changed[:, t] = (changed[:, t] + 1) % 29
        got = model(source, changed)
        assert_close(got[:, :t], want[:, :t], atol=1e-12, rtol=0)
        assert not torch.allclose(got[:, t], want[:, t])
    for s in range(7):
        changed = source.clone()
        changed[:, s] = (changed[:, s] + 1) % 29
        assert ((model(changed, target) - want).abs().amax(-1) > 1e-7).all()


@EACH
@pytest.mark.parametrize("left", [False, True])
def test_padding_and_batch_change_nothing(variant, left):
    model = scrambled(translator_config(**variant))
    source, target = ids(3, 7), ids(3, 5)
    source_mask, target_mask = lengths_mask(7, 2, 4, width=7), lengths_mask(3, 5, 1, width=5)
    if left:
        source_mask, target_mask = source_mask.flip(1), target_mask.flip(1)
    for filler in (0, 5):
        logits = model(
            source.masked_fill(~source_mask, filler),
            target.masked_fill(~target_mask, filler),
            source_mask=source_mask,
            target_mask=target_mask,
        )
        for row in range(3):
            alone = model(source[row, source_mask[row]][None], target[row, target_mask[row]][None])
            assert_close(logits[row, target_mask[row]], alone[0], atol=1e-9, rtol=0)


def test_M16_cross_attention_uses_the_source_mask_alone():
    """Three real source tokens are seen from every target place, pads from none."""
    model = scrambled(translator_config())
    source, target = ids(1, 8), ids(1, 6)
    source_mask, target_mask = lengths_mask(3, width=8), lengths_mask(2, width=6)
    with capture_attention(model) as maps:
        want = model(source, target, source_mask=source_mask, target_mask=target_mask)
    for i in range(2):
        weights = maps[f"decoder.blocks.{i}.cross_attn"]
        assert (weights[..., :3] > 0).all()
        assert (weights[..., 3:] == 0).all()
        assert_close(weights.sum(-1), torch.ones(1, 3, 6).double())
    changed = source.masked_fill(~source_mask, 9)
    got = model(changed, target, source_mask=source_mask, target_mask=target_mask)
    assert_close(got, want)


def test_target_padding_does_not_touch_the_cross_attention():
    model = scrambled(translator_config())
    source, target = ids(1, 7), ids(1, 5)
    with capture_attention(model) as maps:
        model(source, target, target_mask=lengths_mask(3, width=5))
        padded = maps["decoder.blocks.0.cross_attn"]
        model(source, target)
    assert_close(padded[:, :, :3], maps["decoder.blocks.0.cross_attn"][:, :, :3])


def test_forward_is_encode_decode_head():
    model = scrambled(translator_config())
    source, target = ids(2, 7), ids(2, 5)
    mask = lengths_mask(7, 3, width=7)
    memory = model.encode(source, token_mask=mask)
    hidden = model.decode(target, memory, memory_mask=mask)
    assert_close(model(source, target, source_mask=mask), model.head(hidden))


def test_G22_memory_is_projected_once_per_layer():
    model = scrambled(translator_config())
    memory, target = model.encode(ids(2, 7)), ids(2, 5)
    want = model.decode(target, memory)
    calls = []
    for block in model.decoder.blocks:
        block.cross_attn.k_proj.register_forward_hook(lambda *_: calls.append(1))
    cache, cross = model.new_cache(), model.new_cross_cache()
    steps = [
        model.decode(target[:, t : t + 1], memory, cache=cache, cross_cache=cross) for t in range(5)
    ]
    assert_close(torch.cat(steps, dim=1), want, atol=1e-5, rtol=0)
    assert len(calls) == 2
    assert all(layer.kv[0].shape[2] == 7 for layer in cross.layers)


def test_cross_cache_of_another_source():
    model = scrambled(translator_config())
    cross = model.new_cross_cache()
    model.decode(ids(2, 3), model.encode(ids(2, 7)), cross_cache=cross)
    with pytest.raises(CacheError, match=r"2 sources of 7 tokens and was given 2 of 5; reset"):
        model.decode(ids(2, 3), model.encode(ids(2, 5)), cross_cache=cross)


def test_embeddings_are_shared_unless_the_source_has_its_own():
    shared = scrambled(translator_config())
    assert shared.source_embedding is shared.embedding
    own = scrambled(translator_config(source_vocab_size=31))
    assert own.source_embedding is not own.embedding
    assert own.source_embedding.tokens.weight.shape == (31, 30)
    assert own.encode(ids(1, 5, vocab_size=31) * 0 + 30).shape == (1, 5, 30)


@pytest.mark.usefixtures("no_shape_checks")
class TestErrors:
    def test_lengths_name_the_side(self):
        model = scrambled(translator_config())
        with pytest.raises(ShapeError, match="24 tokens exceed max_len=23"):
            model(ids(1, 24), ids(1, 5))
        with pytest.raises(ShapeError, match="24 tokens exceed max_len=23"):
            model(ids(1, 7), ids(1, 24))

    def test_ranks_name_the_side(self):
        model = scrambled(translator_config())
        with pytest.raises(ShapeError, match=r"source must have shape .* source\[None\]"):
            model(ids(7), ids(1, 5))
        with pytest.raises(ShapeError, match=r"target must have shape .* target\[None\]"):
            model(ids(1, 7), ids(5))

    def test_masks(self):
        model = scrambled(translator_config())
        memory = model.encode(ids(2, 7))
        with pytest.raises(ShapeError, match=r"\(2, 5\) but must be \(2, 7\)"):
            model.decode(ids(2, 5), memory, memory_mask=torch.ones(2, 5, dtype=torch.bool))
        with pytest.raises(ShapeError, match=r"\(2, 7\) but must be \(2, 5\)"):
            model.decode(ids(2, 5), memory, token_mask=torch.ones(2, 7, dtype=torch.bool))
