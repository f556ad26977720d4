"""The language model: causal, indifferent to padding, exact about what it refuses."""

import math

import pytest
import torch
import torch.nn.functional as F
from glassformer import DecoderConfig, build_model
from glassformer.errors import ShapeError
from glassformer.functional import causal_mask
from support.core import decoder_config, ids, scrambled
from torch.testing import assert_close

VARIANTS = [
    {},
    {"positions": "learned", "activation": "gelu_tanh"},
    {"positions": "sinusoidal", "norm_position": "post", "activation": "relu"},
    {
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
        "n_kv_heads": 1,
        "tie_embeddings": False,
    },
    {"positions": "none", "norm": "rms", "norm_position": "post"},
]
EACH = pytest.mark.parametrize("variant", VARIANTS)


@EACH
class TestCausality:
    def test_the_future_changes_nothing(self, variant):
        model = scrambled(decoder_config(**variant))
        tokens = ids(2, 7)
        want = model(tokens)
        for t in range(7):
            changed = tokens.clone()
            changed[:, t] = (changed[:, t] + 1) % 29
            got = model(changed)
            assert_close(got[:, :t], want[:, :t], atol=1e-12, rtol=0)
            assert not torch.allclose(got[:, t], want[:, t])
            assert not torch.allclose(got[:, -1], want[:, -1])

    def test_by_gradient(self, variant):
        """The gradient of an output reaches every earlier vector and no later one."""
        model = scrambled(decoder_config(**variant))
        vectors = []

        def keep(module, args, out):
            vectors.append(out.detach().requires_grad_())
            return vectors[-1]

        model.embedding.register_forward_hook(keep)
        logits = model(ids(2, 7))
        for t in range(7):
            (grad,) = torch.autograd.grad(
                logits[:, t].square().sum(), vectors[0], retain_graph=True
            )
            reached = grad.abs().sum(-1) > 0
            assert reached[:, : t + 1].all()
            assert not reached[:, t + 1 :].any()


@EACH
@pytest.mark.parametrize("left", [False, True])
def test_padding_and_batch_change_nothing(variant, left):
    model = scrambled(decoder_config(**variant))
    tokens, lengths = ids(3, 7), torch.tensor([7, 3, 1])
    token_mask = torch.arange(7) < lengths[:, None]
    token_mask = token_mask.flip(1) if left else token_mask
    logits = model(tokens.masked_fill(~token_mask, 0), token_mask=token_mask)
    assert logits.isfinite().all()
    for row in range(3):
        alone = model(tokens[row, token_mask[row]][None])
        assert_close(logits[row, token_mask[row]], alone[0], atol=1e-9, rtol=0)


def test_gradients_are_finite_and_blind_to_padding():
    """A row of nothing but padding must not spoil the others."""
    model = scrambled(decoder_config(pad_id=0))
    tokens = ids(3, 7)
    token_mask = torch.ones(3, 7, dtype=torch.bool)
    token_mask[1, :4], token_mask[2] = False, False
    grads = []
    for filler in (0, 5):
        model.zero_grad()
        filled = tokens.masked_fill(~token_mask, filler)
        logits = model(filled, token_mask=token_mask)
        logits[token_mask].square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        assert one.isfinite().all()
        assert_close(one, other)
    assert torch.equal(model.embedding.tokens.weight.grad[5], grads[1][0][5])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_E03_order_matters_with_positions(positions):
    """In a whole model, and one token repeated gives different vectors."""
    model = scrambled(decoder_config(positions=positions))
    hidden = model.hidden(torch.tensor([[3, 4, 5, 6]]))
    swapped = model.hidden(torch.tensor([[4, 3, 5, 6]]))
    assert not torch.allclose(hidden[:, -1], swapped[:, -1], atol=1e-3)
    same = model.hidden(torch.full((2, 5), 3))
    assert torch.equal(same[0], same[1])
    if positions != "rotary":  # rotary turns keys, which weigh equal values
        assert len({tuple(row.tolist()) for row in same[0]}) == 5


def test_order_does_not_matter_without_positions_and_causality():
    model = scrambled(decoder_config(positions="none", n_layers=1))
    hidden = model.hidden(torch.tensor([[3, 4, 5, 6]]))
    swapped = model.hidden(torch.tensor([[5, 3, 4, 6]]))
    assert_close(hidden[:, -1], swapped[:, -1])


def test_forward_is_head_of_hidden():
    for tie in (True, False):
        model = scrambled(decoder_config(tie_embeddings=tie))
        tokens = ids(2, 5)
        hidden = model.hidden(tokens)
        assert hidden.shape == (2, 5, 30)
        assert_close(model(tokens), model.head(hidden))
        assert_close(model(tokens), hidden @ model.head_weight.T)
        assert_close(model.head(hidden[:, -1]), model(tokens)[:, -1])


def test_dropout_in_training_only_and_by_seed():
    model = scrambled(decoder_config(dropout=0.3))
    tokens = ids(2, 5)
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        runs.append(model(tokens))
    assert torch.equal(*runs)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize(
    "variant",
    [
        {"positions": "learned"},
        {"positions": "rotary", "norm": "rms"},
        {"positions": "sinusoidal", "norm_position": "post"},
        {"positions": "sinusoidal"},
    ],
)
def test_T05_first_loss_is_about_that_of_guessing(variant, tie):
    """A unit-variance embedding times sqrt(d) under a tied head would start near 250."""
    sizes = {"vocab_size": 1000, "max_len": 32, "d_model": 256, "n_heads": 4, "n_layers": 2}
    model = build_model(DecoderConfig(**sizes, tie_embeddings=tie, **variant)).eval()
    tokens = ids(4, 33, vocab_size=1000)
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert 0.95 * math.log(1000) < loss < 1.1 * math.log(1000)


@pytest.mark.parametrize("transposed", [False, True])
def test_M13_the_next_token_cannot_be_copied(transposed):
    """Random ids: what comes next cannot be known. With the mask transposed it is copied."""
    model = build_model(decoder_config(n_layers=1, positions="learned", tie_embeddings=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mask = causal_mask(8).T if transposed else causal_mask(8)
    losses = []
    for _ in range(150):
        tokens = ids(16, 9)
        x = model.embedding(tokens[:, :-1], torch.arange(8))
        logits = model.head(model.decoder(x, mask=mask))[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert (sum(losses[-10:]) / 10 < 0.5 * math.log(28)) == transposed


def test_one_token_and_none():
    model = scrambled(decoder_config())
    assert model(ids(2, 1)).shape == (2, 1, 29)
    assert model(ids(2, 0)).shape == (2, 0, 29)
    assert model(ids(0, 3)).shape == (0, 3, 29)


def test_int32_ids():
    model = scrambled(decoder_config(positions="learned"))
    tokens = ids(2, 5)
    assert torch.equal(model(tokens.int()), model(tokens))


@pytest.mark.usefixtures("no_shape_checks")
class TestErrors:
    def test_longer_than_the_model(self):
        model = scrambled(decoder_config())
        assert model(ids(1, 23)).shape == (1, 23, 29)
        with pytest.raises(ShapeError, match="24 tokens exceed max_len=23; shorten the sequence"):
            model(ids(1, 24))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8, torch.int16])
    def test_dtype_of_tokens(self, dtype):
        with pytest.raises(ShapeError, match=rf"must be int64 or int32 ids.*{dtype}.*\.long\(\)"):
            scrambled(decoder_config())(torch.ones(2, 5, dtype=dtype))

    @pytest.mark.parametrize("shape", [(5,), (2, 5, 3), ()])
    def test_rank_of_tokens(self, shape):
        with pytest.raises(ShapeError, match=r"must have shape \(batch, time\).*tokens\[None\]"):
            scrambled(decoder_config())(torch.ones(shape, dtype=torch.long))

    def test_dtype_of_token_mask(self):
        model = scrambled(decoder_config())
        with pytest.raises(ShapeError, match=r"token_mask must be boolean.*token_mask\.bool\(\)"):
            model(ids(2, 5), token_mask=torch.ones(2, 5))

    @pytest.mark.parametrize("shape", [(2, 4), (2, 6), (3, 5), (5,), (2, 1, 1, 5)])
    def test_shape_of_token_mask(self, shape):
        model = scrambled(decoder_config())
        with pytest.raises(ShapeError, match=r"token_mask has shape .* but must be \(2, 5\)"):
            model(ids(2, 5), token_mask=torch.ones(shape, dtype=torch.bool))


def test_the_logits_may_have_a_bias_of_their_own():
    model = scrambled(decoder_config(head_bias=True))
    hidden = model.hidden(ids(2, 7))
    torch.testing.assert_close(model.head(hidden), hidden @ model.head_weight.T + model.head_bias)


def test_a_sliding_window_hides_what_is_too_far_back():
    model = scrambled(decoder_config(sliding_window=3, n_layers=1))
    tokens = ids(1, 11)
    changed = tokens.clone()
    changed[:, 4] = tokens[:, 4] % 28 + 1  # another id, which three tokens can see
    moved = (model(tokens) - model(changed)).abs().amax(dim=-1)[0] > 1e-9
    assert moved.nonzero().flatten().tolist() == [4, 5, 6]
