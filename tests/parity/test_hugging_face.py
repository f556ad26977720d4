"""Parity with Hugging Face: random models built from small configs, nothing downloaded."""

import pytest
import torch
from glassformer import DecoderConfig, EncoderConfig, EncoderDecoderConfig, build_model
from glassformer.functional import sinusoidal_positions
from parity.mapping import BERT, GPT2, LLAMA, MARIAN, to_ours, to_theirs
from support.core import ids, scramble
from torch.testing import assert_close

transformers = pytest.importorskip("transformers")

V, L, D, H, N, F = 29, 23, 30, 3, 2, 37
SIZES = {"vocab_size": V, "max_len": L, "d_model": D, "n_heads": H, "n_layers": N}
EAGER = {"attn_implementation": "eager"}


def pair(theirs, table, config):
    """Their model with random weights, and ours with the same."""
    theirs = scramble(theirs, by=0.1).eval()
    ours = build_model(config).eval()
    ours.load_state_dict(to_ours(theirs.state_dict(), table, N))
    return ours, theirs


def gpt2():
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=V, n_positions=L, n_embd=D, n_head=H, n_layer=N, n_inner=F,
            bos_token_id=None, eos_token_id=None, **EAGER,
        )
    )  # fmt: skip
    config = DecoderConfig(**SIZES, d_ff=F, activation="gelu_tanh", positions="learned")
    return pair(theirs, GPT2, config)


def llama(n_kv_heads=1):
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=V, max_position_embeddings=L, hidden_size=D, num_attention_heads=H,
            num_key_value_heads=n_kv_heads, num_hidden_layers=N, intermediate_size=F,
            rms_norm_eps=1e-6, tie_word_embeddings=False,
            bos_token_id=None, eos_token_id=None, **EAGER,
        )
    )  # fmt: skip
    config = DecoderConfig(
        **SIZES, n_kv_heads=n_kv_heads, d_ff=F, activation="swiglu", norm="rms", norm_eps=1e-6,
        bias=False, tie_embeddings=False,
    )  # fmt: skip
    return pair(theirs, LLAMA, config)


def bert():
    theirs = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=V, max_position_embeddings=L, hidden_size=D, num_attention_heads=H,
            num_hidden_layers=N, intermediate_size=F, **EAGER,
        ),
        add_pooling_layer=False,
    )  # fmt: skip
    config = EncoderConfig(
        **SIZES, d_ff=F, norm_position="post", norm_eps=1e-12, positions="learned",
        n_segments=2, embedding_norm=True,
    )  # fmt: skip
    return pair(theirs, BERT, config)


def marian():
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=V, max_position_embeddings=L, d_model=D, encoder_layers=N,
            decoder_layers=N, encoder_attention_heads=H, decoder_attention_heads=H,
            encoder_ffn_dim=F, decoder_ffn_dim=F, activation_function="relu",
            scale_embedding=True, pad_token_id=0, eos_token_id=None, bos_token_id=None,
            decoder_start_token_id=0, forced_eos_token_id=None, **EAGER,
        )
    )  # fmt: skip
    with torch.no_grad():
        theirs.final_logits_bias.zero_()
    config = EncoderDecoderConfig(
        **SIZES, d_ff=F, activation="relu", norm_position="post", positions="sinusoidal"
    )
    return pair(theirs, MARIAN, config)


def compare(ours, theirs):
    assert ours.shape == theirs.shape
    assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert theirs.std() > 0.1  # no two vectors of zeros


class TestDecoders:
    @pytest.mark.parametrize("make", [gpt2, llama, lambda: llama(3)], ids=["gpt2", "gqa", "mha"])
    @torch.no_grad()
    def test_logits(self, make):
        ours, theirs = make()
        for length in (1, 7, L):
            tokens = ids(2, length)
            compare(ours(tokens), theirs(tokens).logits)

    @pytest.mark.parametrize("make", [gpt2, llama])
    @torch.no_grad()
    def test_left_padding(self, make):
        ours, theirs = make()
        tokens = ids(2, 7)
        mask = torch.ones(2, 7, dtype=torch.bool)
        mask[1, :4] = False
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        want = theirs(tokens, attention_mask=mask.long(), position_ids=positions).logits
        compare(ours(tokens, token_mask=mask)[mask], want[mask])

    @pytest.mark.parametrize("static", [False, True])
    @pytest.mark.parametrize("make", [gpt2, llama])
    @torch.no_grad()
    def test_our_cache_against_their_full_pass(self, make, static):
        ours, theirs = make()
        tokens = ids(2, 7)
        want = theirs(tokens).logits
        cache = ours.new_cache(static=static, batch_size=2)
        for start, stop in ((0, 4), (4, 5), (5, 7)):
            compare(ours(tokens[:, start:stop], cache=cache), want[:, start:stop])

    @pytest.mark.parametrize(("make", "table"), [(gpt2, GPT2), (llama, LLAMA)])
    def test_gradients(self, make, table):
        ours, theirs = make()
        tokens = ids(2, 7)
        ours(tokens).logsumexp(-1).sum().backward()
        theirs(tokens).logits.logsumexp(-1).sum().backward()
        grads = {name: p.grad for name, p in theirs.named_parameters()}
        want = to_ours(grads, table, N)
        for name, parameter in ours.named_parameters():
            assert_close(parameter.grad, want[name], atol=1e-5, rtol=1e-4)


class TestBert:
    @torch.no_grad()
    def test_segments_and_padding(self):
        ours, theirs = bert()
        tokens, segments = ids(2, 7), torch.randint(0, 2, (2, 7))
        mask = torch.arange(7) < torch.tensor([7, 3])[:, None]
        want = theirs(tokens, attention_mask=mask.long(), token_type_ids=segments).last_hidden_state
        compare(ours(tokens, token_mask=mask, segments=segments)[mask], want[mask])

    @torch.no_grad()
    def test_without_either(self):
        ours, theirs = bert()
        tokens = ids(2, L)
        compare(ours(tokens), theirs(tokens).last_hidden_state)


class TestMarian:
    """Its sinusoids hold all sines, then all cosines; ours alternate. The rest is the same."""

    def pair(self):
        ours, theirs = marian()
        for side in (theirs.model.encoder, theirs.model.decoder):
            with torch.no_grad():
                side.embed_positions.weight.copy_(sinusoidal_positions(torch.arange(L), D))
        return ours, theirs

    def test_its_own_table_is_ours_in_another_order(self):
        fresh = transformers.MarianMTModel(marian()[1].config)
        table = fresh.model.encoder.embed_positions.weight.detach()
        pairs = table.unflatten(-1, (2, D // 2)).mT.flatten(-2)
        assert_close(pairs, sinusoidal_positions(torch.arange(L), D), atol=1e-5, rtol=0)

    @torch.no_grad()
    def test_logits_with_padding_on_both_sides(self):
        ours, theirs = self.pair()
        source, target = ids(2, 7), ids(2, 5)
        source_mask = torch.arange(7) < torch.tensor([7, 3])[:, None]
        target_mask = torch.arange(5) < torch.tensor([2, 5])[:, None]
        want = theirs(
            input_ids=source,
            attention_mask=source_mask.long(),
            decoder_input_ids=target,
            decoder_attention_mask=target_mask.long(),
        ).logits
        got = ours(source, target, source_mask=source_mask, target_mask=target_mask)
        compare(got[target_mask], want[target_mask])

    @torch.no_grad()
    def test_step_by_step(self):
        ours, theirs = self.pair()
        source, target = ids(2, 7), ids(2, 5)
        want = theirs(input_ids=source, decoder_input_ids=target).logits
        memory = ours.encode(source)
        cache, cross = ours.new_cache(static=True, batch_size=2), ours.new_cross_cache()
        for t in range(5):
            hidden = ours.decode(target[:, t : t + 1], memory, cache=cache, cross_cache=cross)
            compare(ours.head(hidden), want[:, t : t + 1])


@pytest.mark.parametrize(
    ("make", "table"), [(gpt2, GPT2), (llama, LLAMA), (bert, BERT), (marian, MARIAN)]
)
def test_tables_read_in_both_directions(make, table):
    ours, theirs = make()
    weights = theirs.state_dict()
    back = to_theirs(ours.state_dict(), table, N)
    assert all(torch.equal(back[key], weights[key]) for key in back)
    # what the table leaves out is tied to something in it, or no parameter at all
    covered = {weights[key].data_ptr() for key in back}
    left = {key for key in weights if weights[key].data_ptr() not in covered}
    assert not left & {name for name, p in theirs.named_parameters() if p.requires_grad}, left
