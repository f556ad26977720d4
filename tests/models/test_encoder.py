"""The encoder: all tokens see all real tokens."""

import pytest
import torch
from glassformer.errors import ShapeError
from glassformer.functional import padding_mask
from glassformer.interop import mask_to_torch, stack_from_torch
from support.core import encoder_config, ids, scramble, scrambled
from torch import nn
from torch.testing import assert_close

VARIANTS = [
    {},
    {"positions": "learned", "norm_position": "post", "embedding_norm": True, "n_segments": 2},
    {"positions": "sinusoidal", "norm": "rms", "n_kv_heads": 1},
    {"positions": "none"},
]
EACH = pytest.mark.parametrize("variant", VARIANTS)


@EACH
def test_every_token_sees_every_other(variant):
    model = scrambled(encoder_config(**variant))
    tokens = ids(1, 5)
    want = model(tokens)
    for t in range(5):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % 29
        difference = (model(changed) - want).abs().amax(-1)
        assert (difference > 1e-6).all()


@EACH
@pytest.mark.parametrize("left", [False, True])
def test_padding_and_batch_change_nothing(variant, left):
    model = scrambled(encoder_config(**variant))
    tokens, lengths = ids(3, 7), torch.tensor([7, 3, 1])
    token_mask = torch.arange(7) < lengths[:, None]
    token_mask = token_mask.flip(1) if left else token_mask
    for filler in (0, 5):
        out = model(tokens.masked_fill(~token_mask, filler), token_mask=token_mask)
        for row in range(3):
            alone = model(tokens[row, token_mask[row]][None])
            assert_close(out[row, token_mask[row]], alone[0], atol=1e-9, rtol=0)


def test_a_row_of_padding_stays_finite():
    model = scrambled(encoder_config())
    token_mask = torch.tensor([[True] * 5, [False] * 5])
    out = model(ids(2, 5), token_mask=token_mask)
    out[0].sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_permutation_equivariance_without_positions():
    model = scrambled(encoder_config(positions="none"))
    tokens, order = ids(2, 7), torch.randperm(7)
    assert_close(model(tokens[:, order]), model(tokens)[:, order])
    rotary = scrambled(encoder_config())
    assert not torch.allclose(rotary(tokens[:, order]), rotary(tokens)[:, order])


def test_M15_training_evaluation_and_no_grad_agree():
    """One path in three modes, and the shape stays though every row ends in padding."""
    model = scrambled(encoder_config(dropout=0.0))
    tokens = ids(2, 6)
    token_mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]]).bool()
    results = [model.train()(tokens, token_mask=token_mask)]
    results.append(model.eval()(tokens, token_mask=token_mask))
    with torch.no_grad():
        results.append(model(tokens, token_mask=token_mask))
    for result in results:
        assert result.shape == (2, 6, 30)
        assert torch.equal(result, results[0])


# nn.Transformer warns that its nested tensors do not go with norm_first; they are not used here.
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("norm_first", [False, True])
def test_M15_agrees_with_the_library_in_each_of_its_modes(norm_first):
    """Its fast path changes what stands at padded places, and that alone."""
    layer = nn.TransformerEncoderLayer(
        30, 3, 37, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    theirs = scramble(nn.TransformerEncoder(layer, 2))
    ours = stack_from_torch(theirs)
    x = torch.randn(2, 6, 30)
    token_mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]]).bool()
    for mode in ("train", "eval", "no_grad"):
        for encoder in (theirs, ours):
            encoder.train(mode == "train")
        with torch.set_grad_enabled(mode != "no_grad"):
            want = theirs(x, src_key_padding_mask=mask_to_torch(token_mask))
            got = ours(x, mask=padding_mask(token_mask))
        assert got.shape == (2, 6, 30)
        seen = token_mask[:, : want.shape[1]]
        assert_close(got[:, : want.shape[1]][seen], want[seen], atol=1e-5, rtol=1e-5)


def test_segments():
    model = scrambled(encoder_config(n_segments=2))
    tokens, zeros = ids(2, 5), torch.zeros(2, 5, dtype=torch.long)
    assert torch.equal(model(tokens), model(tokens, segments=zeros))
    assert not torch.allclose(model(tokens), model(tokens, segments=1 - zeros))


def test_segments_without_a_table():
    with pytest.raises(ShapeError, match=r"this model has no segments.*n_segments=2"):
        scrambled(encoder_config())(ids(2, 5), segments=torch.zeros(2, 5, dtype=torch.long))


def test_norm_of_the_embedding():
    model = scrambled(encoder_config(embedding_norm=True))
    seen = []
    model.embedding.norm.register_forward_hook(lambda module, args, out: seen.append(out))
    model(ids(2, 5))
    assert len(seen) == 1
    assert scrambled(encoder_config()).embedding.norm is None


def test_no_head_and_no_cache():
    model = scrambled(encoder_config(tie_embeddings=False))
    assert not any(isinstance(m, nn.Linear) and m.out_features == 29 for m in model.modules())


@pytest.mark.usefixtures("no_shape_checks")
class TestErrors:
    def test_too_long(self):
        with pytest.raises(ShapeError, match="24 tokens exceed max_len=23"):
            scrambled(encoder_config())(ids(1, 24))

    def test_rank(self):
        with pytest.raises(ShapeError, match=r"must have shape \(batch, time\)"):
            scrambled(encoder_config())(ids(5))

    def test_token_mask(self):
        model = scrambled(encoder_config())
        with pytest.raises(ShapeError, match=r"\(2, 4\) but must be \(2, 5\)"):
            model(ids(2, 5), token_mask=torch.ones(2, 4, dtype=torch.bool))
        with pytest.raises(ShapeError, match=r"token_mask must be boolean with True = real token"):
            model(ids(2, 5), token_mask=torch.ones(2, 5, dtype=torch.long))
