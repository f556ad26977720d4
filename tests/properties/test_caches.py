"""Caches: any split of a prompt equals one pass, and any history its own memory of tokens."""

import itertools

import torch
from glassformer.errors import CacheError
from glassformer.kv_cache import GrowingCache, SlidingWindowCache, StaticCache
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core import SIZES, decoder_config, scrambled, translator_config
from torch.testing import assert_close

TOTAL, WINDOW = 9, 4
KINDS = st.sampled_from(("growing", "static", "sliding"))


@st.composite
def splits(draw, total=TOTAL):
    """Any way to cut ``total`` tokens into chunks."""
    cuts = draw(st.sets(st.integers(1, total - 1)))
    return list(itertools.pairwise([0, *sorted(cuts), total]))


def new_cache(model, kind, batch_size):
    if kind == "growing":
        return GrowingCache(model.config.n_layers)
    return model.new_cache(static=kind == "static", batch_size=batch_size)


@settings(max_examples=50)
@given(
    splits(),
    KINDS,
    st.sampled_from(("rotary", "learned", "relative")),
    st.lists(st.integers(0, TOTAL - 1), min_size=2, max_size=2),
    st.booleans(),
)
def test_any_split_of_a_padded_prompt(chunks, kind, positions, pads, left):
    """With a window and without one (where a sliding cache has nothing to slide)."""
    torch.manual_seed(len(chunks))
    model = MODELS[positions, kind == "sliding"]
    tokens = torch.randint(1, SIZES["vocab_size"], (2, TOTAL))
    mask = torch.arange(TOTAL) >= torch.tensor(pads)[:, None]
    mask = mask if left else mask.flip(1)
    cache = new_cache(model, kind, 2)
    with torch.no_grad():
        want = model(tokens, token_mask=mask)
        got = [model(tokens[:, a:b], token_mask=mask[:, :b], cache=cache) for a, b in chunks]
    assert_close(torch.cat(got, dim=1)[mask], want[mask], atol=1e-5, rtol=0)


@given(splits(), KINDS)
def test_any_split_of_a_target(chunks, kind):
    model = TRANSLATORS[kind == "sliding"]
    torch.manual_seed(len(chunks))
    source, target = (torch.randint(1, SIZES["vocab_size"], (2, n)) for n in (7, TOTAL))
    with torch.no_grad():
        memory = model.encode(source)
        cache, cross = new_cache(model, kind, 2), model.new_cross_cache()
        got = [
            model.decode(target[:, a:b], memory, cache=cache, cross_cache=cross) for a, b in chunks
        ]
        want = model.decode(target, memory)
    assert_close(torch.cat(got, dim=1), want, atol=1e-5, rtol=0)


HISTORY = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("crop"), st.integers(0, 12)),
        st.tuples(st.just("reorder"), st.permutations((0, 1, 1))),
        st.tuples(st.just("interrupted"), st.integers(1, 3)),
        st.tuples(st.just("reset"), st.none()),
    ),
    max_size=9,
)


@settings(max_examples=60)
@given(HISTORY, KINDS, st.integers(0, 99))
def test_any_history_leaves_what_a_list_of_tokens_would(history, kind, seed):
    """Tokens are numbers in a plain tensor; the cache must show the same window of them."""
    torch.manual_seed(seed)
    cache = {
        "growing": lambda: GrowingCache(2),
        "static": lambda: StaticCache(2, 3, 1, 12, 1),
        "sliding": lambda: SlidingWindowCache(2, WINDOW),
    }[kind]()
    kept = torch.zeros(3, 0)
    for action, number in history:
        if action == "add" and kept.shape[1] + number <= 12:
            new = torch.rand(3, number)
            first = cache.first_key
            seen = [
                layer.update(new[:, None, :, None], new[:, None, :, None]) for layer in cache.layers
            ]
            cache.advance(number)
            kept = torch.cat((kept, new), dim=1)
            for k, v in seen:
                assert torch.equal(k[:, 0, : kept.shape[1] - first, 0], kept[:, first:])
                assert torch.equal(v, k)
        elif action == "interrupted" and kept.shape[1] + number <= 12:
            cache.layers[0].update(*torch.full((2, 3, 1, number, 1), 9.0))
        elif action == "crop" and number <= kept.shape[1]:
            try:
                cache.crop(number)
            except CacheError:
                assert kind == "sliding"
                assert kept.shape[1] - number > 1  # a single token can always be taken back
            else:
                kept = kept[:, :number]
        elif action == "reorder":
            cache.reorder(torch.tensor(number))
            kept = kept[torch.tensor(number)]
        elif action == "reset":
            cache.reset()
            kept = kept[:, :0]
        assert cache.length == int(cache.position) == kept.shape[1]
        if kind == "sliding":
            assert cache.bytes <= 2 * 2 * 3 * 4 * (WINDOW + 4)


torch.manual_seed(0)
MODELS = {
    (positions, windowed): scrambled(
        decoder_config(
            positions=positions, n_kv_heads=1, sliding_window=WINDOW if windowed else None
        )
    )
    for positions in ("rotary", "learned", "relative")
    for windowed in (False, True)
}
TRANSLATORS = [
    scrambled(translator_config(sliding_window=window, n_kv_heads=1)) for window in (None, WINDOW)
]
