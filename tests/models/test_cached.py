"""Cached equals uncached: every split, both caches, padding on both sides, all positions."""

import pytest
import torch
from support.core import decoder_config, ids, scrambled, translator_config
from torch.testing import assert_close

L = 7
POSITIONS = pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned", "none"])
STATIC = pytest.mark.parametrize("static", [False, True])
# every way to cut the prompt into two, one token at a time, and an uneven cut into three
SPLITS = [(n, L - n) for n in range(1, L)] + [(1,) * L, (2, 4, 1), (L,)]


def in_chunks(model, tokens, cache, chunks, token_mask=None):
    """Logits of all positions, read in chunks; the mask grows with the tokens."""
    found, start = [], 0
    for n in chunks:
        stop = start + n
        seen = None if token_mask is None else token_mask[:, :stop]
        found.append(model(tokens[:, start:stop], token_mask=seen, cache=cache))
        start = stop
        assert cache.length == stop
    return torch.cat(found, dim=1)


@STATIC
@pytest.mark.parametrize("chunks", SPLITS, ids=str)
def test_every_split(static, chunks):
    model = scrambled(decoder_config(n_kv_heads=1))
    tokens = ids(2, L)
    cache = model.new_cache(static=static, batch_size=2, max_len=11)
    assert_close(in_chunks(model, tokens, cache, chunks), model(tokens), atol=1e-5, rtol=0)


@STATIC
@POSITIONS
@pytest.mark.parametrize("n_kv_heads", [None, 1])
@pytest.mark.parametrize("chunks", [(3, 1, 3), (1,) * L], ids=str)
def test_every_kind_of_position(static, positions, n_kv_heads, chunks):
    model = scrambled(decoder_config(positions=positions, n_kv_heads=n_kv_heads))
    tokens = ids(2, L)
    cache = model.new_cache(static=static, batch_size=2)
    assert_close(in_chunks(model, tokens, cache, chunks), model(tokens), atol=1e-5, rtol=0)


@STATIC
@POSITIONS
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("chunks", [(5, 1, 1), (2, 3, 2), (1,) * L, (L,)], ids=str)
def test_E10_padded_rows_equal_their_own_run(static, positions, left, chunks):
    """Each row equals itself without padding, and what stands at the pads is nothing."""
    model = scrambled(decoder_config(positions=positions, n_kv_heads=1))
    tokens, lengths = ids(3, L), [L, 4, 2]
    token_mask = torch.arange(L) < torch.tensor(lengths)[:, None]
    if left:
        token_mask = token_mask.flip(1)
    got = []
    for filler in (0, 5):
        filled = tokens.masked_fill(~token_mask, filler)
        cache = model.new_cache(static=static, batch_size=3)
        logits = in_chunks(model, filled, cache, chunks, token_mask)
        assert logits.isfinite().all()
        got.append(logits)
    for row in range(3):
        real = token_mask[row]
        alone = model(tokens[row, real][None])[0]
        for logits in got:
            assert_close(logits[row, real], alone, atol=1e-5, rtol=0)


@STATIC
@pytest.mark.parametrize("chunks", [(5, 1, 1), (2, 3, 2), (L,)], ids=str)
def test_experts_choose_for_each_token_alone(static, chunks):
    """Without a capacity neither padding, nor batch, nor how a prompt is cut moves a token."""
    model = scrambled(decoder_config(n_experts=5))
    tokens = ids(2, L)
    token_mask = torch.arange(L) < torch.tensor([L, 4])[:, None]
    cache = model.new_cache(static=static, batch_size=2)
    logits = in_chunks(model, tokens, cache, chunks, token_mask)
    for row in range(2):
        alone = model(tokens[row, token_mask[row]][None])[0]
        assert_close(logits[row, token_mask[row]], alone, atol=1e-5, rtol=0)


@POSITIONS
def test_mask_as_wide_as_a_static_cache(positions):
    """One shape for all steps, so that a compiled step is compiled once."""
    model = scrambled(decoder_config(positions=positions))
    tokens = ids(2, L)
    token_mask = torch.ones(2, 11, dtype=torch.bool)
    token_mask[1, :3] = False
    cache = model.new_cache(static=True, batch_size=2, max_len=11)
    got = [model(tokens[:, :4], token_mask=token_mask, cache=cache)]
    got += [model(tokens[:, t : t + 1], token_mask=token_mask, cache=cache) for t in (4, 5, 6)]
    want = model(tokens, token_mask=token_mask[:, :L])
    assert_close(torch.cat(got, dim=1)[token_mask[:, :L]], want[token_mask[:, :L]])


@STATIC
def test_G01_rows_continue_after_reorder_and_crop(static):
    """Beams cross, and a rejected draft is forgotten."""
    model = scrambled(decoder_config(n_kv_heads=1))
    tokens, order = ids(3, L), torch.tensor([2, 0, 0])
    cache = model.new_cache(static=static, batch_size=3)
    model(tokens[:, :5], cache=cache)
    cache.reorder(order)
    crossed = torch.cat((tokens[order, :5], tokens[:, 5:]), dim=1)
    assert_close(model(crossed[:, 5:], cache=cache), model(crossed)[:, 5:], atol=1e-5, rtol=0)
    cache.crop(3)
    again = torch.cat((crossed[:, :3], ids(3, 2)), dim=1)
    assert_close(model(again[:, 3:], cache=cache), model(again)[:, 3:], atol=1e-5, rtol=0)
    cache.reset()
    assert_close(model(tokens, cache=cache), model(tokens), atol=1e-5, rtol=0)


@STATIC
def test_E09_all_layers_use_the_same_positions(static):
    """Three layers, and not one shifted by the layer before."""
    model = scrambled(decoder_config(n_layers=3, positions="rotary"))
    seen = []
    for block in model.decoder.blocks:
        block.register_forward_pre_hook(
            lambda module, args, options: seen.append(options["rotary"][0]), with_kwargs=True
        )
    cache = model.new_cache(static=static, batch_size=1)
    model(ids(1, 5), cache=cache)
    seen.clear()
    model(ids(1, 1), cache=cache)
    want, _ = model.rotary(torch.tensor([5]))
    assert len(seen) == 3
    assert all(torch.equal(cos, want) for cos in seen)


@STATIC
@POSITIONS
@pytest.mark.parametrize("chunks", [(3, 1, 1), (1,) * 5, (5,)], ids=str)
def test_decoder_that_listens_to_an_encoder(static, positions, chunks):
    model = scrambled(translator_config(positions=positions, n_kv_heads=1))
    source, target = ids(2, L), ids(2, 5)
    source_mask = torch.tensor([[1] * L, [1] * 4 + [0] * 3]).bool()
    want = model(source, target, source_mask=source_mask)
    memory = model.encode(source, token_mask=source_mask)
    cache, cross = model.new_cache(static=static, batch_size=2), model.new_cross_cache()
    found, start = [], 0
    for n in chunks:
        hidden = model.decode(
            target[:, start : start + n],
            memory,
            memory_mask=source_mask,
            cache=cache,
            cross_cache=cross,
        )
        found.append(model.head(hidden))
        start += n
    assert_close(torch.cat(found, dim=1), want, atol=1e-5, rtol=0)


@STATIC
def test_token_mask_that_does_not_cover_the_cache(static):
    from glassformer.errors import ShapeError

    model = scrambled(decoder_config())
    cache = model.new_cache(static=static, batch_size=2, max_len=11)
    model(ids(2, 5), cache=cache)
    with pytest.raises(ShapeError, match=r"\(2, 1\) but must be \(2, 6\).*cached ones included"):
        model(ids(2, 1), token_mask=torch.ones(2, 1, dtype=torch.bool), cache=cache)
    assert cache.length == 5
