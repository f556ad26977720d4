"""What is gone for good computes what masking computes, is smaller, and stays so when saved."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from glassformer import build_model, config_from_dict
from glassformer.errors import ConfigError, GlassformerError
from glassformer.introspect import ablate_heads, capture_attention
from glassformer.pruning import drop_layers, every_other, prune_heads
from glassformer.quantization import add_lora, quantize
from glassformer.training import Batch, load_model, make_optimizer, save_model, train_step
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config
from torch.testing import assert_close

FIRST, SECOND = "decoder.blocks.0.self_attn", "decoder.blocks.1.self_attn"


def grouped(n_heads, n_kv_heads, **changes):
    return decoder_config(n_heads=n_heads, n_kv_heads=n_kv_heads, head_size=6, **changes)


def inputs(model):
    return (ids(2, 7), ids(2, 5)) if model.config.kind == "encoder_decoder" else (ids(2, 7),)


def masked(model, heads, given):
    with ablate_heads(model, heads), torch.no_grad():
        return model(*given)


def check_equal_to_masking(model, heads):
    before = copy.deepcopy(model.state_dict())
    given = inputs(model)
    want = masked(model, heads, given)
    pruned = prune_heads(model, heads)
    with torch.no_grad():
        assert_close(pruned(*given), want, atol=1e-10, rtol=0)
        assert (model(*given) - want).abs().max() > 1e-6
    assert all(torch.equal(model.state_dict()[name], t) for name, t in before.items())
    assert model.config.pruned_heads == ()
    return pruned


def sizes(model, name):
    attention = model.get_submodule(name)
    return attention.n_heads, attention.n_kv_heads


def test_R03_a_pruned_model_is_loaded_in_a_new_process(tmp_path):
    model = scrambled(decoder_config(n_heads=5), dtype=torch.float32)
    pruned = prune_heads(model, {FIRST: [1, 3], SECOND: [2, 0, 4]})
    tokens = ids(2, 7)
    save_model(tmp_path / "pruned", pruned)
    torch.save(tokens, tmp_path / "tokens.pt")
    code = f"""
import torch
from glassformer.training import load_model
model = load_model({str(tmp_path / "pruned")!r})
tokens = torch.load({str(tmp_path / "tokens.pt")!r}, weights_only=True)
with torch.no_grad():
    torch.save(model(tokens), {str(tmp_path / "logits.pt")!r})
print(*(block.self_attn.n_heads for block in model.decoder.blocks))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["3", "2"], done.stderr
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "logits.pt", weights_only=True), pruned(tokens))
    assert (tmp_path / "pruned" / "model.safetensors").stat().st_size < sum(
        4 * p.numel() for p in model.parameters()
    )
    assert load_model(tmp_path / "pruned").config == pruned.config


def test_R04_the_scale_still_uses_the_width_of_a_head():
    """12 heads become 8; a scale of 1/sqrt(d_model / 8) or a reshape by 12 would show."""
    model = scrambled(decoder_config(d_model=24, n_heads=12))
    pruned = check_equal_to_masking(model, {FIRST: [0, 5, 6, 11], SECOND: [1, 2, 3, 4]})
    for name in (FIRST, SECOND):
        assert sizes(pruned, name) == (8, 8)
        assert pruned.get_submodule(name).q_proj.weight.shape == (16, 24)
        assert pruned.get_submodule(name).o_proj.weight.shape == (24, 16)
    assert pruned.config.d_head == 2


@pytest.mark.parametrize("heads", [[1], [0], [3]])
def test_R05_a_part_of_a_group_is_refused(heads):
    model = scrambled(grouped(4, 2))
    with pytest.raises(ConfigError, match="same number from each group of 2, or whole groups"):
        prune_heads(model, {FIRST: heads})


@pytest.mark.parametrize(
    ("heads", "left"),
    [
        ([0, 1], (2, 1)),
        ([2, 3], (2, 1)),
        ([0, 3], (2, 2)),
        ([1, 2], (2, 2)),
        ([3, 1, 2, 0], (0, 0)),
    ],
)
def test_R05_groups_are_kept_or_go_with_their_key_value_head(heads, left):
    pruned = check_equal_to_masking(scrambled(grouped(4, 2)), {SECOND: heads})
    assert sizes(pruned, SECOND) == left
    assert pruned.get_submodule(SECOND).k_proj.weight.shape == (6 * left[1], 30)
    assert sizes(pruned, FIRST) == (4, 2)


@pytest.mark.parametrize("heads", [[0, 1, 2, 3], [1, 4, 6, 7]])
def test_R08_half_of_the_heads_of_one_key_value_head(heads):
    pruned = check_equal_to_masking(scrambled(grouped(8, 1)), {FIRST: heads})
    assert sizes(pruned, FIRST) == (4, 1)
    assert pruned.get_submodule(FIRST).heads == tuple(sorted({*range(8)} - {*heads}))


@pytest.mark.parametrize("heads", [{}, {FIRST: []}, {FIRST: [], SECOND: ()}])
def test_R08_an_unchanged_model_is_never_called_pruned(heads):
    with pytest.raises(ConfigError, match="no head to prune"):
        prune_heads(scrambled(decoder_config()), heads)


@pytest.mark.parametrize("static", [False, True])
def test_R06_caches_follow_dropped_layers(static, tmp_path):
    model = scrambled(decoder_config(n_layers=4), dtype=torch.float32)
    smaller = drop_layers(model, [0, 2])
    tokens = ids(2, 7)
    by_hand = copy.deepcopy(model)
    by_hand.decoder.blocks = torch.nn.ModuleList([model.decoder.blocks[i] for i in (1, 3)])
    save_model(tmp_path, smaller)
    loaded = load_model(tmp_path)
    assert loaded.config == smaller.config
    for each in (smaller, loaded):
        cache = each.new_cache(static=static, batch_size=2)
        assert len(cache.layers) == 2
        with torch.no_grad():
            want = by_hand(tokens)
            assert torch.equal(each(tokens), want)
            steps = [each(tokens[:, i : i + 1], cache=cache) for i in range(7)]
            assert_close(torch.cat(steps, 1), want, atol=1e-5, rtol=1e-4)
        assert cache.length == 7
    assert len(model.decoder.blocks) == 4


@pytest.mark.parametrize(
    "config",
    [
        decoder_config(),
        decoder_config(bias=False, positions="learned"),
        decoder_config(qkv_bias=False, norm_position="post"),
        decoder_config(positions="relative"),
        encoder_config(positions="relative"),
        translator_config(),
        translator_config(positions="relative"),
    ],
)
def test_masked_equals_removed_everywhere(config):
    model = scrambled(config)
    names = [name for name, _ in model.named_modules() if name.endswith("_attn")]
    for name in names:
        check_equal_to_masking(model, {name: [1]})
        check_equal_to_masking(model, {name: [0, 1, 2]})
    check_equal_to_masking(model, {name: [i % 3] for i, name in enumerate(names)})


@pytest.mark.parametrize("bias", [True, False])
def test_without_any_head_only_the_output_bias_is_left(bias):
    model = prune_heads(scrambled(decoder_config(bias=bias)), {FIRST: [0, 1, 2]})
    attention = model.get_submodule(FIRST)
    got = attention(torch.randn(2, 5, 30).double())
    want = attention.o_proj.bias if bias else torch.zeros(30).double()
    assert torch.equal(got, want.expand(2, 5, 30))
    assert list(_captured(model)) == [SECOND]


def _captured(model):
    with capture_attention(model) as maps:
        model(ids(1, 3))
    return maps


@st.composite
def removals(draw):
    """Head counts, and two sets of heads to remove, either of which leaves groups of one size."""
    n_kv, group = draw(st.sampled_from(((1, 1), (3, 1), (5, 1), (1, 4), (2, 2), (2, 3), (3, 2))))
    whole = draw(st.sets(st.integers(0, n_kv - 1), max_size=n_kv))
    first = {kv * group + i for kv in whole for i in range(group)}
    second = set()
    others = [kv for kv in range(n_kv) if kv not in whole]
    if others and draw(st.booleans()):
        each = draw(st.integers(0, group))
        for kv in others:
            places = draw(st.permutations(range(group)))[:each]
            second |= {kv * group + i for i in places}
    return n_kv * group, n_kv, first, second


@settings(max_examples=20)
@given(removals(), st.sampled_from((FIRST, SECOND)), st.booleans())
def test_masked_equals_removed_and_the_order_does_not_matter(drawn, name, rotary):
    n_heads, n_kv, first, second = drawn
    torch.manual_seed(0)
    model = scrambled(grouped(n_heads, n_kv, positions="rotary" if rotary else "relative"))
    both = first | second
    if not both:
        return
    tokens = ids(2, 5)
    want = masked(model, {name: both}, (tokens,))
    at_once = prune_heads(model, {name: both})
    results = [at_once]
    for one, other in ((first, second), (second, first)):
        if one and other:
            results.append(prune_heads(prune_heads(model, {name: one}), {name: other}))
    for pruned in results:
        assert pruned.config == at_once.config
        assert pruned.state_dict().keys() == at_once.state_dict().keys()
        for key, tensor in at_once.state_dict().items():
            assert torch.equal(pruned.state_dict()[key], tensor)
        with torch.no_grad():
            assert_close(pruned(tokens), want, atol=1e-10, rtol=0)
            for static in (False, True):
                cache = pruned.new_cache(static=static, batch_size=2)
                parts = [pruned(tokens[:, :3], cache=cache), pruned(tokens[:, 3:], cache=cache)]
                assert_close(torch.cat(parts, 1), want, atol=1e-5, rtol=0)


def test_heads_keep_their_numbers():
    model = scrambled(decoder_config(n_heads=5))
    pruned = prune_heads(prune_heads(model, {FIRST: [1]}), {FIRST: [2]})
    assert pruned.get_submodule(FIRST).heads == (0, 3, 4)
    assert pruned.config.pruned_heads == ((FIRST, (1, 2)),)
    assert pruned.config.kept_heads(FIRST) == (0, 3, 4)
    assert pruned.config.kept_heads(SECOND) == (0, 1, 2, 3, 4)
    with pytest.raises(ConfigError, match=r"head 1 is gone already; .* here are 0, 3, 4"):
        prune_heads(pruned, {FIRST: [1, 3]})


def test_masking_a_pruned_model_counts_as_before():
    model = scrambled(decoder_config(n_heads=5))
    pruned = prune_heads(model, {FIRST: [0, 2]})
    given = inputs(model)
    want = masked(model, {FIRST: [0, 2, 3]}, given)
    assert_close(masked(pruned, {FIRST: [3]}, given), want, atol=1e-10, rtol=0)
    with pytest.raises(GlassformerError, match="has 3 heads and no head 2; give some of 1, 3, 4"):
        masked(pruned, {FIRST: [2]}, given)


def test_layers_keep_their_numbers():
    model = scrambled(decoder_config(n_layers=5))
    tokens = ids(2, 7)
    steps = drop_layers(drop_layers(model, [3]), [0, 4])
    at_once = drop_layers(model, [0, 3, 4])
    assert steps.config == at_once.config
    assert steps.config.n_layers == 2
    assert steps.config.dropped_layers == (("decoder", (0, 3, 4)),)
    assert torch.equal(steps(tokens), at_once(tokens))
    with pytest.raises(ConfigError, match="cannot drop blocks 3 of the decoder: it has 1, 2"):
        drop_layers(steps, [3])


def test_both_kinds_of_pruning_commute():
    model = scrambled(decoder_config(n_layers=3))
    heads = {FIRST: [0], SECOND: [1], "decoder.blocks.2.self_attn": [2]}
    heads_first = drop_layers(prune_heads(model, heads), [0])
    layers_first = prune_heads(drop_layers(model, [0]), {FIRST: [1], SECOND: [2]})
    assert heads_first.config == layers_first.config
    assert heads_first.config.pruned_heads == ((FIRST, (1,)), (SECOND, (2,)))
    tokens = ids(2, 7)
    assert torch.equal(heads_first(tokens), layers_first(tokens))


def test_layers_of_a_translator(tmp_path):
    model = scrambled(translator_config(n_layers=3), dtype=torch.float32)
    model = prune_heads(
        model, {"decoder.blocks.2.cross_attn": [1], "encoder.blocks.0.self_attn": [2]}
    )
    smaller = drop_layers(drop_layers(model, [1], stack="encoder"), [0, 1], stack="decoder")
    assert (smaller.config.encoder_layers, smaller.config.n_layers) == (2, 1)
    assert smaller.config.pruned_heads == (
        ("decoder.blocks.0.cross_attn", (1,)),
        ("encoder.blocks.0.self_attn", (2,)),
    )
    save_model(tmp_path, smaller)
    given = inputs(smaller)
    assert torch.equal(load_model(tmp_path)(*given), smaller(*given))
    cache, cross = smaller.new_cache(static=True, batch_size=2), smaller.new_cross_cache()
    memory = smaller.encode(given[0])
    steps = [
        smaller.decode(given[1][:, i : i + 1], memory, cache=cache, cross_cache=cross)
        for i in range(5)
    ]
    assert_close(smaller.head(torch.cat(steps, 1)), smaller(*given), atol=1e-5, rtol=1e-4)
    assert len(cross.layers) == 1


@pytest.mark.parametrize(
    ("n_layers", "keep", "dropped"),
    [(6, 3, (0, 2, 4)), (6, 2, (0, 1, 3, 4)), (5, 5, ()), (7, 3, (0, 2, 4, 5)), (4, 1, (0, 1, 2))],
)
def test_every_other_layer(n_layers, keep, dropped):
    assert every_other(n_layers, keep) == dropped


def test_a_model_trained_with_layer_drop_is_cut_like_any_other():
    model = scrambled(decoder_config(n_layers=4, layer_drop=0.5), dtype=torch.float32).train()
    train_step(model, [Batch(ids(2, 5), ids(2, 5))], make_optimizer(model, lr=0.01))
    smaller = drop_layers(model, every_other(4, 2)).eval()
    plain = build_model(decoder_config(n_layers=2)).eval()
    plain.load_state_dict(smaller.state_dict())
    tokens = ids(2, 7)
    assert torch.equal(smaller(tokens), plain(tokens))


def test_pruned_models_learn():
    model = prune_heads(build_model(decoder_config()), {FIRST: [0, 1, 2], SECOND: [1]}).train()
    optimizer = make_optimizer(model, lr=0.05)
    batch = Batch(ids(3, 7), ids(3, 7))
    losses = [train_step(model, [batch], optimizer).nll for _ in range(7)]
    assert losses[-1] < losses[0]
    model.zero_grad()
    model(ids(2, 5)).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_the_config_survives_json():
    model = drop_layers(
        prune_heads(scrambled(decoder_config(n_layers=3)), {FIRST: [2, 0], SECOND: [1]}), [2]
    )
    config = model.config
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert hash(config) == hash(copy.deepcopy(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pruned_heads": (("decoder.blocks.2.self_attn", (0,)),)}, "is no attention of this"),
        ({"pruned_heads": (("decoder.blocks.0.cross_attn", (0,)),)}, "is no attention of this"),
        ({"pruned_heads": ((FIRST, (3,)),)}, "no head 3 among 3"),
        ({"pruned_heads": ((FIRST, (1, 1)),)}, "each of them once"),
        ({"pruned_heads": ((FIRST, (1,)), (FIRST, (2,)))}, "every name once"),
        ({"pruned_heads": ((FIRST, ("1",)),)}, "numbers from 0"),
        ({"pruned_heads": ((FIRST, (True,)),)}, "numbers from 0"),
        ({"pruned_heads": (3,)}, "must be pairs of a name"),
        ({"dropped_layers": (("encoder", (0,)),)}, "the stacks are decoder"),
        ({"dropped_layers": (("decoder", (3,)),)}, "would have had 3 blocks"),
    ],
)
def test_impossible_configs(changes, message, no_shape_checks):
    with pytest.raises(ConfigError, match=message):
        decoder_config(**changes)


def test_what_cannot_be_pruned():
    model = scrambled(decoder_config(), dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"'decoder\.blocks\.7\.self_attn' is no attention"):
        prune_heads(model, {"decoder.blocks.7.self_attn": [0]})
    with pytest.raises(ConfigError, match="no head 3 among 3"):
        prune_heads(model, {FIRST: [3]})
    for other in (quantize(model), add_lora(model)):
        with pytest.raises(ConfigError, match="that cannot be cut; prune the plain model first"):
            prune_heads(other, {FIRST: [0]})
    for layers in ([], [0, 1], [2], [-1]):
        with pytest.raises(ConfigError, match="cannot drop blocks"):
            drop_layers(model, layers)
    with pytest.raises(ConfigError, match="stack='encoder' is none of this model's"):
        drop_layers(model, [0], stack="encoder")
    with pytest.raises(ConfigError, match="give encoder or decoder"):
        drop_layers(scrambled(translator_config()), [0])
    with pytest.raises(ConfigError, match="keep=0 must be from 1"):
        every_other(3, 0)


def test_a_quantised_pruned_model():
    model = prune_heads(scrambled(decoder_config(), dtype=torch.float32), {FIRST: [0, 1, 2]})
    quantized = quantize(model)
    tokens = ids(2, 7)
    assert_close(quantized(tokens), model(tokens), atol=0.6, rtol=0)
