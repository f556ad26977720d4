"""Parity with Hugging Face: random models of each family, read from the files they wrote."""

import copy

import pytest
import torch
from glassformer.generation import generate
from glassformer.interop import save_hugging_face, weight_table
from glassformer.interop._tables import to_ours, to_theirs
from parity.families import DECODERS, ENCODERS, TRANSLATORS, D, L, family_of, pair, transformers
from support.core import ids
from torch.testing import assert_close


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Each pair is built once; tests leave weights and modes as they were."""
    built = {}

    def get(name):
        if name not in built:
            built[name] = pair(name, tmp_path_factory.mktemp(name))
        ours, theirs = built[name]
        return ours.eval(), theirs.eval()

    return get


def compare(ours, theirs, tolerance=1e-5):
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert_close(ours.float(), theirs.float(), atol=tolerance, rtol=0)
    assert theirs.std() > 0.1  # no two vectors of zeros


def left_padded(lengths, width):
    mask = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return mask, positions


def right_padded(lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def output(model, *tokens):
    """Logits, or hidden states of an encoder, of either library's model."""
    if not isinstance(model, transformers.PreTrainedModel):
        return model(*tokens)
    result = model(**dict(zip(("input_ids", "decoder_input_ids"), tokens, strict=False)))
    return result.last_hidden_state if "logits" not in result else result.logits


def scale_of(link):
    """What the steps of a link multiply numbers by: 1 if they only move them."""
    ones = torch.ones(D, D)
    for step in link.steps:
        ones = step.to_ours(ones)
    return float(ones.max())


def compare_gradients(name, ours, theirs, *tokens):
    """A loss flows back into every weight alike."""
    for model in (ours, theirs):
        model.zero_grad()
        output(model, *tokens).square().mean().backward()
    table = weight_table(ours.config, family_of(name))
    mine = {key: p.grad for key, p in ours.named_parameters()}
    want = {key: p.grad for key, p in theirs.named_parameters() if p.grad is not None}
    for link in table:
        if link.ours == "head_bias":  # a buffer over there, never trained
            continue
        # where ours is c times theirs, their gradient is c times ours
        expected = to_ours(want, [link])[link.ours] / scale_of(link) ** 2
        assert_close(mine[link.ours], expected, atol=1e-5, rtol=1e-4, msg=link.ours)
        assert expected.abs().max() > 0


class TestDecoders:
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("name", DECODERS)
    @torch.no_grad()
    def test_logits(self, pairs, name, training):
        ours, theirs = (model.train(training) for model in pairs(name))
        for length in (1, 7, L):
            tokens = ids(2, length)
            compare(output(ours, tokens), output(theirs, tokens))

    @pytest.mark.parametrize("name", DECODERS)
    @torch.no_grad()
    def test_left_padding(self, pairs, name):
        ours, theirs = pairs(name)
        tokens = ids(2, 7)
        mask, positions = left_padded([7, 3], 7)
        want = theirs(tokens, attention_mask=mask.long(), position_ids=positions).logits
        compare(ours(tokens, token_mask=mask)[mask], want[mask])

    @pytest.mark.parametrize("static", [False, True])
    @pytest.mark.parametrize("name", DECODERS)
    @torch.no_grad()
    def test_our_cache_against_their_full_pass(self, pairs, name, static):
        ours, theirs = pairs(name)
        tokens = ids(2, 11)
        mask, positions = left_padded([11, 5], 11)
        want = theirs(tokens, attention_mask=mask.long(), position_ids=positions).logits
        cache = ours.new_cache(static=static, batch_size=2)
        for start, stop in ((0, 7), (7, 8), (8, 11)):
            got = ours(tokens[:, start:stop], token_mask=mask[:, :stop], cache=cache)
            seen = mask[:, start:stop]
            compare(got[seen], want[:, start:stop][seen])

    @pytest.mark.parametrize("name", DECODERS)
    def test_greedy_text(self, pairs, name):
        ours, theirs = pairs(name)
        prompts = [ids(7).tolist(), ids(4).tolist()]
        tokens = torch.tensor([prompts[0], [0] * 3 + prompts[1]])
        mask, _ = left_padded([7, 4], 7)
        want = theirs.generate(
            tokens, attention_mask=mask.long(), max_new_tokens=11, do_sample=False, pad_token_id=0
        )
        got = generate(ours, prompts, max_new_tokens=11)
        assert got.tokens.tolist() == want[:, 7:].tolist()
        assert got.tokens.unique().numel() > 1

    @pytest.mark.parametrize("name", DECODERS)
    def test_gradients(self, pairs, name):
        ours, theirs = pairs(name)
        compare_gradients(name, ours, theirs, ids(2, 7))


class TestEncoders:
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("name", ENCODERS)
    @torch.no_grad()
    def test_segments_and_padding(self, pairs, name, training):
        ours, theirs = (model.train(training) for model in pairs(name))
        mask = right_padded([7, 3], 7)
        # RoBERTa finds padding by its id when it counts positions
        tokens = ids(2, 7, low=2).masked_fill(~mask, ours.config.pad_id)
        segments = torch.randint(0, ours.config.n_segments, (2, 7))
        want = theirs(tokens, attention_mask=mask.long(), token_type_ids=segments).last_hidden_state
        compare(ours(tokens, token_mask=mask, segments=segments)[mask], want[mask])

    @pytest.mark.parametrize("name", ENCODERS)
    @torch.no_grad()
    def test_without_either(self, pairs, name):
        ours, theirs = pairs(name)
        tokens = ids(2, L, low=2)
        compare(output(ours, tokens), output(theirs, tokens))

    @pytest.mark.parametrize("name", ENCODERS)
    def test_gradients(self, pairs, name):
        ours, theirs = pairs(name)
        compare_gradients(name, ours, theirs, ids(2, 7, low=2))


class TestTranslators:
    def batch(self):
        source, target = ids(2, 7), ids(2, 5)
        return source, target, right_padded([7, 3], 7), right_padded([2, 5], 5)

    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("name", TRANSLATORS)
    @torch.no_grad()
    def test_logits_with_padding_on_both_sides(self, pairs, name, training):
        ours, theirs = (model.train(training) for model in pairs(name))
        source, target, source_mask, target_mask = self.batch()
        want = theirs(
            input_ids=source,
            attention_mask=source_mask.long(),
            decoder_input_ids=target,
            decoder_attention_mask=target_mask.long(),
        ).logits
        got = ours(source, target, source_mask=source_mask, target_mask=target_mask)
        compare(got[target_mask], want[target_mask])

    @pytest.mark.parametrize("name", TRANSLATORS)
    @torch.no_grad()
    def test_long_sequences(self, pairs, name):
        """Beyond the exact buckets of T5, and up to the last sinusoid of Marian."""
        ours, theirs = pairs(name)
        source, target = ids(2, L), ids(2, L)
        compare(output(ours, source, target), output(theirs, source, target))

    @pytest.mark.parametrize("static", [False, True])
    @pytest.mark.parametrize("name", TRANSLATORS)
    @torch.no_grad()
    def test_step_by_step(self, pairs, name, static):
        ours, theirs = pairs(name)
        source, target, source_mask, _ = self.batch()
        want = theirs(
            input_ids=source, attention_mask=source_mask.long(), decoder_input_ids=target
        ).logits
        memory = ours.encode(source, token_mask=source_mask)
        cache, cross = ours.new_cache(static=static, batch_size=2), ours.new_cross_cache()
        for t in range(5):
            hidden = ours.decode(
                target[:, t : t + 1],
                memory,
                memory_mask=source_mask,
                cache=cache,
                cross_cache=cross,
            )
            compare(ours.head(hidden), want[:, t : t + 1])

    @pytest.mark.parametrize("name", TRANSLATORS)
    @torch.no_grad()
    def test_greedy_text(self, pairs, name):
        ours, theirs = pairs(name)
        source, _, source_mask, _ = self.batch()
        want = theirs.generate(  # their cache of T5 wants as many decoder layers as encoder layers
            source,
            attention_mask=source_mask.long(),
            max_new_tokens=11,
            do_sample=False,
            use_cache=False,
        )
        written = torch.zeros(2, 1, dtype=torch.long)
        for _ in range(11):
            logits = ours(source, written, source_mask=source_mask)[:, -1]
            written = torch.cat((written, logits.argmax(-1, keepdim=True)), dim=1)
        assert written.tolist() == want.tolist()
        assert written.unique().numel() > 1

    @pytest.mark.parametrize("name", TRANSLATORS)
    def test_gradients(self, pairs, name):
        ours, theirs = pairs(name)
        source, target, *_ = self.batch()
        compare_gradients(name, ours, theirs, source, target)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS, *TRANSLATORS])
@torch.no_grad()
def test_half_precision(pairs, name, dtype):
    """Within eight roundings of float32, and no further from it than theirs is, give or take."""
    ours, theirs = pairs(name)
    tokens = ids(2, 7, low=2)
    inputs = (tokens, tokens) if name in TRANSLATORS else (tokens,)
    exact = output(theirs, *inputs)
    got, want = (output(copy.deepcopy(model).to(dtype), *inputs) for model in (ours, theirs))
    assert got.dtype == dtype
    error, their_error = ((half - exact).square().mean().sqrt() for half in (got, want))
    assert error < 8 * torch.finfo(dtype).eps * exact.std()
    assert error < 1.5 * their_error


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS, *TRANSLATORS])
@torch.no_grad()
def test_their_library_loads_what_we_save(pairs, name, tmp_path):
    ours, theirs = pairs(name)
    save_hugging_face(tmp_path / "ours", ours, family=family_of(name))
    auto = transformers.AutoModel
    if name in TRANSLATORS:
        auto = transformers.AutoModelForSeq2SeqLM
    elif name in DECODERS:
        auto = transformers.AutoModelForCausalLM
    back, report = auto.from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert type(back) is type(theirs)
    back.eval()
    assert {key for key in report["missing_keys"] if "pooler" not in key} == set()
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    tokens = ids(2, 7, low=2)
    inputs = (tokens, tokens) if name in TRANSLATORS else (tokens,)
    compare(output(ours, *inputs), output(back, *inputs))
    compare_weights(name, back.state_dict(), theirs.state_dict())


def compare_weights(name, back, first):
    """Bit for bit what was read, but for scales, padding of tables and fresh poolers."""
    for key, tensor in first.items():
        if "pooler" in key:
            continue
        if name == "roberta" and key.endswith("position_embeddings.weight"):
            assert torch.equal(back[key][2:], tensor[2:])
        elif name.startswith("t5") and key.endswith(
            (
                "SelfAttention.q.weight",
                "EncDecAttention.q.weight",
                "decoder.final_layer_norm.weight",
            )
        ):
            assert_close(back[key], tensor, atol=0, rtol=2**-22)  # d_kv is 7: two roundings
        else:
            assert torch.equal(back[key], tensor), key


def test_where_heads_have_a_power_of_four_numbers_t5_comes_back_bit_for_bit(tmp_path):
    ours, theirs = pair("t5", tmp_path / "theirs", d_kv=16, d_model=4)
    back = to_theirs(ours.state_dict(), weight_table(ours.config, "t5"))
    weights = theirs.state_dict()
    assert all(torch.equal(back[key], weights[key]) for key in back)
