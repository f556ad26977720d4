"""The sliding window: bounded bytes, positions that go on, and nothing needed is forgotten."""

import pytest
import torch
from glassformer import capture_attention
from glassformer.errors import CacheError
from glassformer.kv_cache import GrowingCache, SlidingWindowCache
from support.core import decoder_config, ids, scrambled, translator_config
from torch.testing import assert_close

N_LAYERS, B, K, E, W, L = 2, 3, 2, 5, 4, 13


def fill(cache, *lengths):
    """Add random keys and values as a model would; return all of them, and what the last saw."""
    kept, seen = [[], []], []
    for n in lengths:
        seen = []
        for layer, given in zip(cache.layers, kept, strict=True):
            kv = torch.randn(2, B, K, n, E)
            seen.append(torch.stack(layer.update(*(x.clone() for x in kv))))
            given.append(kv)
        cache.advance(n)
    return [torch.cat(given, dim=3) for given in kept], seen


class TestKeeping:
    @pytest.mark.parametrize("window", [1, 2, 4, 20])
    @pytest.mark.parametrize("chunks", [(1,) * 9, (6, 1, 1, 1), (3, 5, 1), (2, 7)], ids=str)
    def test_gives_the_window_before_the_new_ones(self, window, chunks):
        cache = SlidingWindowCache(N_LAYERS, window)
        want, seen = fill(cache, *chunks)
        assert cache.length == cache.position == 9
        before = min(9 - chunks[-1], window - 1)
        for i in range(N_LAYERS):
            assert torch.equal(seen[i], want[i][:, :, :, 9 - chunks[-1] - before :])
        assert cache.first_key == max(0, 9 - window + 1)
        assert cache.k_len(2) == min(9, window - 1) + 2

    @pytest.mark.parametrize("first", [1, 3, 4, 11])
    def test_bytes_stay_once_the_window_is_full(self, first):
        cache = SlidingWindowCache(N_LAYERS, W)
        assert cache.bytes == 0
        fill(cache, first)
        sizes = []
        for _ in range(7):
            sizes.append(cache.bytes)
            held = [x.untyped_storage().nbytes() for layer in cache.layers for x in layer.kv]
            assert sum(held) == cache.bytes  # really given back, and no view of a longer tensor
            fill(cache, 1)
        full = 2 * N_LAYERS * B * K * W * E * 4
        assert sizes[3:] == [full] * 4
        assert sizes[0] == full * min(first, W) // W

    def test_interrupted_pass_leaves_no_trace(self):
        """A forward pass that failed in layer 1 has already written into layer 0."""
        cache = SlidingWindowCache(N_LAYERS, W)
        want, _ = fill(cache, 6)
        cache.layers[0].update(*torch.full((2, B, K, 3, E), 9.0))
        new, seen = fill(cache, 1)
        for i in range(N_LAYERS):
            assert torch.equal(seen[i], torch.cat((want[i][:, :, :, 3:], new[i]), dim=3))
        assert cache.bytes == 2 * N_LAYERS * B * K * W * E * 4

    def test_reorder_and_rows_share_no_memory(self):
        cache = SlidingWindowCache(N_LAYERS, W)
        want, _ = fill(cache, 6)
        cache.reorder(torch.tensor([2, 0, 0]))
        cache.layers[0].kv[0][1].zero_()
        new, seen = fill(cache, 1)
        assert torch.equal(seen[1][:, 0], torch.cat((want[1][:, 2, :, 3:], new[1][:, 0]), dim=2))
        assert torch.equal(seen[0][:, 2], torch.cat((want[0][:, 0, :, 3:], new[0][:, 2]), dim=2))

    def test_reset(self):
        cache = SlidingWindowCache(N_LAYERS, W)
        fill(cache, 9)
        cache.reset()
        assert cache.length == cache.bytes == cache.first_key == 0
        want, seen = fill(cache, 2)
        assert torch.equal(seen[0], want[0])


class TestCrop:
    @pytest.mark.parametrize("length", [0, 1, 2, 4])
    def test_anything_while_nothing_is_forgotten(self, length):
        cache = SlidingWindowCache(N_LAYERS, W)
        want, _ = fill(cache, 4)
        cache.crop(length)
        assert cache.length == length
        assert cache.bytes == 2 * N_LAYERS * B * K * length * E * 4
        new, seen = fill(cache, 1)
        kept = want[0][:, :, :, max(0, length - 3) : length]
        assert torch.equal(seen[0], torch.cat((kept, new[0]), dim=3))

    def test_one_token_behind_a_full_window(self):
        """Of ``window`` kept tokens the next query needs ``window - 1``."""
        cache = SlidingWindowCache(N_LAYERS, W)
        want, _ = fill(cache, 5, 1, 1, 1)
        cache.crop(7)
        new, seen = fill(cache, 1)
        assert torch.equal(seen[1], torch.cat((want[1][:, :, :, 4:7], new[1]), dim=3))

    def test_two_tokens_would_need_what_is_forgotten(self):
        cache = SlidingWindowCache(N_LAYERS, W)
        want, _ = fill(cache, 8)
        message = r"crop to 6 .* needs those from position 3 on, and this cache forgot all before 4"
        with pytest.raises(CacheError, match=message):
            cache.crop(6)
        assert cache.length == 8
        new, seen = fill(cache, 1)
        assert torch.equal(seen[0], torch.cat((want[0][:, :, :, 5:], new[0]), dim=3))

    def test_window_of_one_needs_nothing(self):
        cache = SlidingWindowCache(N_LAYERS, 1)
        fill(cache, 8)
        cache.crop(3)
        new, seen = fill(cache, 2)
        assert torch.equal(seen[0], new[0])
        assert cache.length == 5

    def test_to_what_is_not_there(self):
        cache = SlidingWindowCache(N_LAYERS, W)
        fill(cache, 4)
        with pytest.raises(CacheError, match="cannot crop a cache of 4 tokens to 5"):
            cache.crop(5)


def test_no_window_at_all():
    with pytest.raises(CacheError, match="window=0 keeps not even the token itself"):
        SlidingWindowCache(N_LAYERS, 0)


def test_rows_of_another_batch():
    cache = SlidingWindowCache(N_LAYERS, W)
    fill(cache, 6)
    with pytest.raises(CacheError, match="holds 3 rows and was given 2"):
        cache.layers[0].update(*torch.randn(2, B - 1, K, 1, E))


def cache_of(model, kind):
    if kind == "growing":
        return GrowingCache(model.config.n_layers)
    if kind == "wider":
        return SlidingWindowCache(model.config.n_layers, model.config.sliding_window + 3)
    return model.new_cache(static=kind == "static", batch_size=2)


KINDS = pytest.mark.parametrize("kind", ["sliding", "wider", "static", "growing"])
CHUNKS = pytest.mark.parametrize(
    "chunks", [(1,) * L, (6, 1, 1, 1, 4), (2, 3, 8), (L - 1, 1), (L,)], ids=str
)


@KINDS
class TestInAModel:
    @CHUNKS
    @pytest.mark.parametrize("positions", ["rotary", "relative", "learned"])
    def test_cached_equals_uncached(self, kind, positions, chunks):
        model = scrambled(decoder_config(sliding_window=W, n_kv_heads=1, positions=positions))
        tokens = ids(2, L)
        cache, found, start = cache_of(model, kind), [], 0
        for n in chunks:
            found.append(model(tokens[:, start : start + n], cache=cache))
            start += n
        assert_close(torch.cat(found, dim=1), model(tokens), atol=1e-5, rtol=0)

    @CHUNKS
    @pytest.mark.parametrize("left", [False, True])
    def test_padded_rows_equal_their_own_run(self, kind, left, chunks):
        model = scrambled(decoder_config(sliding_window=W))
        tokens = ids(2, L)
        token_mask = torch.arange(L) < torch.tensor([L, 7])[:, None]
        token_mask = token_mask.flip(1) if left else token_mask
        cache, found, start = cache_of(model, kind), [], 0
        for n in chunks:
            seen = token_mask[:, : start + n]
            found.append(model(tokens[:, start : start + n], token_mask=seen, cache=cache))
            start += n
        got = torch.cat(found, dim=1)
        assert got.isfinite().all()
        for row in range(2):
            real = token_mask[row]
            assert_close(got[row, real], model(tokens[row, real][None])[0], atol=1e-5, rtol=0)

    def test_G20_weights_on_older_keys_are_exactly_zero(self, kind):
        """Window 4, ten cached tokens, one query: the single-token shortcut is bounded too."""
        model = scrambled(decoder_config(sliding_window=W))
        tokens = ids(2, 11)
        cache = cache_of(model, kind)
        model(tokens[:, :10], cache=cache)
        first = cache.first_key
        with capture_attention(model) as maps:
            model(tokens[:, 10:], cache=cache)
        for weights in maps.values():
            before = 11 - W - first  # columns of keys that are older than the window
            assert (weights[..., :before] == 0).all()
            assert (weights[..., before : before + W] > 0).all()
            assert (weights[..., before + W :] == 0).all()  # places of a static cache still empty
            assert_close(weights.sum(-1), torch.ones(2, 3, 1).double())

    def test_what_lies_behind_the_window_has_no_effect(self, kind):
        """Two layers see twice as far back: 2 (W - 1) tokens, and not one more."""
        model = scrambled(decoder_config(sliding_window=W))
        tokens = ids(2, 11)
        changed = tokens.clone()
        changed[:, :4] = 1 + changed[:, :4] % 28
        results = []
        for given in (tokens, changed):
            cache = cache_of(model, kind)
            model(given[:, :10], cache=cache)
            results.append(model(given[:, 10:], cache=cache))
        assert torch.equal(*results)
        changed = tokens.clone()
        changed[:, 4] = 1 + changed[:, 4] % 28
        assert not torch.equal(model(changed)[:, 10], model(tokens)[:, 10])

    def test_rows_continue_after_reorder_and_crop(self, kind):
        model = scrambled(decoder_config(sliding_window=W))
        tokens, order = ids(2, 11), torch.tensor([1, 1])
        cache = cache_of(model, kind)
        model(tokens[:, :9], cache=cache)
        cache.reorder(order)
        cache.crop(8)
        crossed = torch.cat((tokens[order, :8], tokens[:, 8:]), dim=1)
        got = model(crossed[:, 8:], cache=cache)
        assert_close(got, model(crossed)[:, 8:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["sliding", "static", "growing"])
def test_translator_with_a_window(kind):
    model = scrambled(translator_config(sliding_window=3))
    source, target = ids(2, 7), ids(2, 9)
    want = model(source, target)
    memory, cross = model.encode(source), model.new_cross_cache()
    cache, found = cache_of(model, kind), []
    for t in range(9):
        hidden = model.decode(target[:, t : t + 1], memory, cache=cache, cross_cache=cross)
        found.append(model.head(hidden))
    assert_close(torch.cat(found, dim=1), want, atol=1e-5, rtol=0)
    assert cross.layers[0].kv[0].shape[2] == 7  # the window is not for the source


def test_a_model_with_a_window_gets_a_cache_that_forgets():
    model = scrambled(decoder_config(sliding_window=W))
    cache = model.new_cache()
    assert isinstance(cache, SlidingWindowCache)
    assert cache.window == W
    model(ids(2, 17), cache=cache)
    assert cache.bytes == 2 * 2 * 2 * 3 * W * 10 * 8
    assert isinstance(scrambled(decoder_config()).new_cache(), GrowingCache)


@pytest.mark.parametrize(("window", "seen"), [(None, "all tokens"), (5, "the last 5")])
def test_cache_that_forgets_what_the_model_looks_at(window, seen):
    model = scrambled(decoder_config(sliding_window=window))
    cache = SlidingWindowCache(2, W)
    message = f"keeps the last 4 tokens and this model looks back at {seen}; make one with this"
    with pytest.raises(CacheError, match=message):
        model(ids(2, 3), cache=cache)
    assert cache.length == 0
