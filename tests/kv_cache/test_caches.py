"""Caches on their own: what they keep, forget, reorder and refuse."""

import pytest
import torch
from glassformer.errors import CacheError, ShapeError
from glassformer.kv_cache import CrossCache, GrowingCache, StaticCache
from support.core import decoder_config, ids, scrambled, translator_config
from torch.testing import assert_close

N_LAYERS, B, K, L, E = 2, 3, 2, 11, 5


def growing():
    return GrowingCache(N_LAYERS)


def static():
    return StaticCache(N_LAYERS, B, K, L, E)


KINDS = pytest.mark.parametrize("make", [growing, static])


def fill(cache, *lengths):
    """Add random keys and values as a model would; return all of them, per layer."""
    kept = [[], []]
    for n in lengths:
        for layer, given in zip(cache.layers, kept, strict=True):
            kv = torch.randn(2, B, K, n, E)
            layer.update(*kv)
            given.append(kv)
        cache.advance(n)
    return [torch.cat(given, dim=3) for given in kept]


def read(cache, layer):
    """Keys and values of the tokens that the cache says it holds."""
    kept = cache.layers[layer]
    k, v = kept.kv if isinstance(cache, GrowingCache) else (kept.k, kept.v)
    return torch.stack((k, v))[:, :, :, : cache.length]


@KINDS
class TestKeeping:
    def test_gives_back_everything_in_order(self, make):
        cache = make()
        want = fill(cache, 3, 1, 4)
        assert cache.length == int(cache.position) == 8
        for i in range(N_LAYERS):
            assert torch.equal(read(cache, i), want[i])

    def test_update_returns_the_new_ones_too(self, make):
        cache = make()
        want = fill(cache, 3)
        k, v = torch.randn(2, B, K, 2, E)
        got_k, got_v = cache.layers[0].update(k, v)
        assert torch.equal(got_k[:, :, :5], torch.cat((want[0][0], k), dim=2))
        assert torch.equal(got_v[:, :, :5], torch.cat((want[0][1], v), dim=2))
        assert got_k.shape[2] == cache.k_len(2)
        assert cache.length == 3  # counted by advance alone

    def test_interrupted_pass_leaves_no_trace(self, make):
        """A forward pass that failed in layer 1 has already written into layer 0."""
        cache = make()
        fill(cache, 3)
        cache.layers[0].update(*torch.full((2, B, K, 2, E), 9.0))
        kept = read(cache, 0).clone()
        new = fill(cache, 1)
        assert torch.equal(read(cache, 0), torch.cat((kept, new[0]), dim=3))

    @pytest.mark.parametrize("indices", [[2, 0, 1], [1, 1, 0], [0, 0, 0]])
    def test_reorder(self, make, indices):
        cache = make()
        want = fill(cache, 4)
        assert cache.reorder(torch.tensor(indices)) is None
        for i in range(N_LAYERS):
            for row, source in enumerate(indices):
                assert torch.equal(read(cache, i)[:, row], want[i][:, source])
        assert cache.length == 4

    def test_G21_rows_share_no_memory_after_reorder(self, make):
        """One beam's row must not write into another's."""
        cache = make()
        fill(cache, 4)
        cache.reorder(torch.tensor([0, 0, 0]))
        before = read(cache, 0).clone()
        read_back = cache.layers[0].kv[0] if make is growing else cache.layers[0].k
        read_back[0].zero_()
        assert torch.equal(read(cache, 0)[0, 1:], before[0, 1:])

    @pytest.mark.parametrize("length", [0, 1, 4, 7])
    def test_crop(self, make, length):
        cache = make()
        want = fill(cache, 7)
        cache.crop(length)
        assert cache.length == int(cache.position) == length
        more = fill(cache, 2)
        for i in range(N_LAYERS):
            assert torch.equal(read(cache, i), torch.cat((want[i][..., :length, :], more[i]), 3))

    def test_reset(self, make):
        cache = make()
        fill(cache, 7)
        cache.reset()
        assert cache.length == 0
        want = fill(cache, 2)
        assert torch.equal(read(cache, 1), want[1])

    @pytest.mark.parametrize("length", [-1, 5])
    def test_crop_to_what_is_not_there(self, make, length):
        cache = make()
        fill(cache, 4)
        message = f"cannot crop a cache of 4 tokens to {length}; give a length from 0 to 4"
        with pytest.raises(CacheError, match=message):
            cache.crop(length)
        assert cache.length == 4

    def test_rows_of_another_batch(self, make):
        cache = make()
        want = fill(cache, 4)
        with pytest.raises(CacheError, match=r"holds 3 rows and was given 2; make one cache per"):
            cache.layers[0].update(*torch.randn(2, B - 1, K, 1, E))
        assert torch.equal(read(cache, 0), want[0])

    @pytest.mark.parametrize("shape", [(B, K + 1, 1, E), (B, K, 1, E + 1)])
    def test_heads_of_another_model(self, make, shape):
        cache = make()
        want = fill(cache, 4)
        with pytest.raises(CacheError, match=r"holds 2 heads of width 5 and was given"):
            cache.layers[0].update(*torch.randn(2, *shape))
        assert torch.equal(read(cache, 0), want[0])


class TestGrowing:
    def test_bytes_follow_the_length(self):
        cache = growing()
        assert cache.bytes == 0
        fill(cache, 7)
        assert cache.bytes == 2 * N_LAYERS * B * K * 7 * E * 4
        cache.crop(4)
        assert cache.bytes == 2 * N_LAYERS * B * K * 4 * E * 4
        held = [x.untyped_storage().nbytes() for layer in cache.layers for x in layer.kv]
        assert sum(held) == cache.bytes  # really given back, and no view of the old tensor
        cache.reset()
        assert cache.bytes == 0

    def test_reorder_may_widen_the_batch(self):
        """Beams start as copies of one row."""
        cache = growing()
        want = fill(cache, 4)
        cache.reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
        assert torch.equal(read(cache, 0), want[0].repeat_interleave(2, dim=1))


class TestStatic:
    def test_bytes_and_buffers_never_change(self):
        cache = static()
        pointers = [cache.layers[0].k.data_ptr(), cache.position.data_ptr()]
        assert cache.bytes == 2 * N_LAYERS * B * K * L * E * 4
        fill(cache, 7)
        cache.reorder(torch.tensor([2, 0, 1]))
        cache.crop(2)
        cache.reset()
        assert cache.bytes == 2 * N_LAYERS * B * K * L * E * 4
        assert pointers == [cache.layers[0].k.data_ptr(), cache.position.data_ptr()]

    @pytest.mark.parametrize("indices", [[0], [0, 1], [0, 1, 2, 2]])
    def test_reorder_to_another_number_of_rows(self, indices):
        """A single index would be copied into every row."""
        cache = static()
        want = fill(cache, 4)
        message = f"keeps its 3 rows and was given {len(indices)} indices"
        with pytest.raises(CacheError, match=message):
            cache.reorder(torch.tensor(indices))
        assert torch.equal(read(cache, 0), want[0])

    def test_full_to_the_last_place(self):
        cache = static()
        fill(cache, L - 1)
        assert cache.k_len(1) == L
        fill(cache, 1)
        with pytest.raises(CacheError, match="1 new tokens do not fit behind the 11 in a cache of"):
            cache.k_len(1)

    def test_dtype_and_device(self):
        cache = StaticCache(1, B, K, L, E, device="meta", dtype=torch.float16)
        assert cache.layers[0].k.device.type == cache.position.device.type == "meta"
        assert cache.layers[0].v.dtype == torch.float16


class TestFullCacheInAModel:
    @pytest.mark.parametrize("new", [1, 4])
    def test_nothing_is_written(self, new):
        model = scrambled(decoder_config())
        cache = model.new_cache(static=True, batch_size=2, max_len=7)
        tokens = ids(2, 7)
        model(tokens, cache=cache)
        before = [layer.k.clone() for layer in cache.layers]
        message = f"{new} new tokens do not fit behind the 7 in a cache of max_len=7"
        with pytest.raises(CacheError, match=message):
            model(ids(2, new), cache=cache)
        assert cache.length == 7
        for layer, kept in zip(cache.layers, before, strict=True):
            assert torch.equal(layer.k, kept)

    def test_still_usable_after_the_error(self):
        model = scrambled(decoder_config())
        tokens = ids(2, 7)
        cache = model.new_cache(static=True, batch_size=2, max_len=7)
        model(tokens[:, :5], cache=cache)
        with pytest.raises(CacheError):
            model(ids(2, 3), cache=cache)
        assert_close(model(tokens[:, 5:], cache=cache), model(tokens)[:, 5:])

    @pytest.mark.parametrize("static", [False, True])
    def test_batch_of_another_size(self, static):
        model = scrambled(decoder_config())
        cache = model.new_cache(static=static, batch_size=3)
        model(ids(3, 5), cache=cache)
        with pytest.raises(CacheError, match="holds 3 rows and was given 2"):
            model(ids(2, 1), cache=cache)
        assert cache.length == 5

    def test_longer_than_the_model(self):
        model = scrambled(decoder_config())
        cache = model.new_cache()
        model(ids(2, 20), cache=cache)
        with pytest.raises(ShapeError, match="4 tokens behind 20 cached exceed max_len=23"):
            model(ids(2, 4), cache=cache)
        assert cache.length == 20
        assert model(ids(2, 3), cache=cache).shape == (2, 3, 29)

    def test_static_cache_needs_its_rows(self):
        with pytest.raises(ShapeError, match="give batch_size"):
            scrambled(decoder_config()).new_cache(static=True)

    def test_static_cache_fits_the_model(self):
        model = scrambled(decoder_config(n_kv_heads=1)).to(torch.bfloat16)
        cache = model.new_cache(static=True, batch_size=2)
        assert cache.layers[0].k.shape == (2, 1, 23, 10)
        assert cache.layers[0].k.dtype == torch.bfloat16
        assert len(cache.layers) == 2


class TestCross:
    def test_bytes_reorder_reset(self):
        model = scrambled(translator_config(n_kv_heads=1))
        memory = model.encode(ids(3, 7))
        cache = model.new_cross_cache()
        assert isinstance(cache, CrossCache)
        assert cache.bytes == 0
        target = ids(3, 2)
        model.decode(target, memory, cross_cache=cache)
        assert cache.bytes == 2 * 2 * 3 * 7 * 10 * 8
        order = torch.tensor([2, 0, 0])
        cache.reorder(order)
        got = model.decode(target, memory[order], cross_cache=cache)
        assert_close(got, model.decode(target, memory[order]))
        cache.reset()
        assert cache.bytes == 0

    def test_G22_next_source_gives_its_own_result(self):
        model = scrambled(translator_config())
        target = ids(2, 3)
        cache = model.new_cross_cache()
        first, second = model.encode(ids(2, 7)), model.encode(ids(2, 7))
        model.decode(target, first, cross_cache=cache)
        cache.reset()
        got = model.decode(target, second, cross_cache=cache)
        assert_close(got, model.decode(target, second))
        assert not torch.allclose(got, model.decode(target, first))
