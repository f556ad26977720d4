"""New rows at the end of a table: everything old stays, everything new is there."""

import pytest
import torch
from glassformer import build_model
from glassformer.errors import ShapeError
from glassformer.models import extend_embeddings
from support.core import decoder_config, encoder_config, ids, translator_config
from torch.testing import assert_close


def rows(model, n=2):
    return torch.randn(n, model.config.d_model)


def test_old_tokens_are_as_before_and_new_ones_are_read():
    model = build_model(encoder_config()).eval()
    new = rows(model)
    grown = extend_embeddings(model, new)
    size = model.config.vocab_size
    tokens = ids(2, 7)
    assert torch.equal(grown(tokens), model(tokens))
    assert grown.config.vocab_size == size + 2
    assert torch.equal(grown.embedding.tokens.weight[:size], model.embedding.tokens.weight)
    assert torch.equal(grown.embedding.tokens.weight[size:], new)
    grown(torch.tensor([[size, size + 1]]))
    assert model.embedding.tokens.weight.shape[0] == size


@pytest.mark.parametrize("config", [decoder_config, translator_config])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head_bias", [True, False])
def test_the_head_grows_too(config, tied, head_bias):
    model = build_model(config(tie_embeddings=tied, head_bias=head_bias)).eval()
    new = rows(model)
    grown = extend_embeddings(model, new)
    hidden = torch.randn(3, model.config.d_model)
    size = model.config.vocab_size
    before, after = model.head(hidden), grown.head(hidden)
    assert after.shape == (3, size + 2)
    assert torch.equal(after[:, :size], before)
    if tied:
        assert_close(after[:, size:], hidden @ new.T)
        assert grown.head_weight is grown.embedding.tokens.weight
    elif not head_bias:
        assert_close(after[:, size:], before.mean(-1, keepdim=True).expand(-1, 2))
    assert build_model(grown.config).state_dict().keys() == grown.state_dict().keys()


def test_rows_of_an_untied_head_may_be_given():
    model = build_model(decoder_config(tie_embeddings=False)).eval()
    head = rows(model)
    grown = extend_embeddings(model, rows(model), head_rows=head)
    assert torch.equal(grown.lm_head.weight[-2:], head)
    assert grown.lm_head.out_features == model.config.vocab_size + 2


def test_only_the_targets_table_grows():
    model = build_model(translator_config(source_vocab_size=23)).eval()
    grown = extend_embeddings(model, rows(model))
    assert grown.own_source_embedding.tokens.weight.shape[0] == 23
    assert grown.embedding.tokens.weight.shape[0] == model.config.vocab_size + 2


def test_what_is_frozen_stays_frozen():
    model = build_model(encoder_config()).requires_grad_(False)
    grown = extend_embeddings(model, rows(model))
    assert not any(p.requires_grad for p in grown.parameters())


def test_rows_that_do_not_fit(no_shape_checks):
    model = build_model(decoder_config())
    width = model.config.d_model
    with pytest.raises(ShapeError, match="for a table of width"):
        extend_embeddings(model, torch.randn(2, width + 1))
    with pytest.raises(ShapeError, match="at least one row"):
        extend_embeddings(model, torch.randn(0, width))
    with pytest.raises(ShapeError, match="leave out head_rows"):
        extend_embeddings(model, torch.randn(2, width), head_rows=torch.randn(2, width))
    untied = build_model(decoder_config(tie_embeddings=False))
    with pytest.raises(ShapeError, match="as many to the head"):
        extend_embeddings(untied, torch.randn(2, width), head_rows=torch.randn(3, width))
