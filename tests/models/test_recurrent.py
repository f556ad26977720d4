"""The baselines: shapes, causality, gradients, sizes, and what their options do."""

import pytest
import torch
from glassformer.errors import ConfigError, ShapeError
from glassformer.models import ConvolutionalLM, RecurrentLM, RecurrentTranslator
from glassformer.training import Batch, batch_loss
from torch import nn

V, D, B, T = 11, 6, 3, 7

LANGUAGE_MODELS = {
    "rnn": lambda: RecurrentLM(V, D, cell="rnn"),
    "lstm": lambda: RecurrentLM(V, D, n_layers=2, dropout=0.1),
    "gru": lambda: RecurrentLM(V, D, cell="gru"),
    "stacked": lambda: ConvolutionalLM(V, D, n_layers=3),
    "dilated": lambda: ConvolutionalLM(V, D, n_layers=3, kernel_size=2, dilation=2),
}


@pytest.fixture(params=LANGUAGE_MODELS)
def model(request):
    torch.manual_seed(0)
    return LANGUAGE_MODELS[request.param]().eval()


def tokens(batch=B, time=T):
    return torch.randint(V, (batch, time), generator=torch.Generator().manual_seed(1))


def parameters(module):
    return sum(p.numel() for p in module.parameters())


class TestLanguageModels:
    def test_shapes(self, model):
        assert model(tokens()).shape == (B, T, V)
        assert model.hidden(tokens()).shape == (B, T, D)

    def test_no_position_sees_what_comes_after_it(self, model):
        ids = tokens()
        before = model(ids)
        for t in range(1, T):
            changed = ids.clone()
            changed[:, t:] = (changed[:, t:] + 1) % V
            torch.testing.assert_close(model(changed)[:, :t], before[:, :t])
            assert not torch.equal(model(changed)[:, t], before[:, t])

    def test_a_row_does_not_depend_on_its_neighbours(self, model):
        ids = tokens()
        torch.testing.assert_close(model(ids)[1:2], model(ids[1:2]))

    def test_every_parameter_has_a_gradient(self, model):
        model.train()
        model(tokens()).logsumexp(-1).sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name

    def test_training_takes_them_as_they_are(self, model):
        ids = tokens()
        loss = batch_loss(model, Batch(ids[:, :-1], ids[:, 1:]))
        assert loss.n_tokens == B * (T - 1)
        assert loss.total.requires_grad

    def test_no_tokens_are_refused(self, model):
        with pytest.raises(ShapeError, match="at least one token"):
            model(tokens(1, 0))


@pytest.mark.parametrize(("cell", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_parameters_by_cell(cell, gates):
    model = RecurrentLM(V, D, cell=cell, n_layers=2)
    assert parameters(model) == V * D + 2 * gates * (2 * D * D + 2 * D)


def test_a_recurrent_model_is_pytorchs_layer():
    torch.manual_seed(0)
    model = RecurrentLM(V, D)
    theirs = nn.LSTM(D, D, batch_first=True)
    theirs.load_state_dict(model.recurrence.state_dict())
    with torch.no_grad():
        x = model.embedding(tokens())
        expected = theirs(x)[0] @ model.embedding.weight.mT
        torch.testing.assert_close(model(tokens()), expected)


def test_forget_gates_start_open():
    model = RecurrentLM(V, D, n_layers=2, forget_bias=3.0)
    for layer in range(2):
        added = getattr(model.recurrence, f"bias_ih_l{layer}") + getattr(
            model.recurrence, f"bias_hh_l{layer}"
        )
        assert torch.equal(added[D : 2 * D].detach(), torch.full((D,), 3.0))
        assert (added[:D].detach().abs() < 2).all()
        assert (added[2 * D :].detach().abs() < 2).all()


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ({"n_layers": 1, "kernel_size": 3}, 3),
        ({"n_layers": 4, "kernel_size": 3}, 9),
        ({"n_layers": 4, "kernel_size": 2, "dilation": 2}, 16),
    ],
)
def test_a_convolution_sees_its_receptive_field_and_no_more(choices, field):
    torch.manual_seed(0)
    model = ConvolutionalLM(V, D, **choices)
    assert model.receptive_field == field
    ids = tokens(1, 20)
    seen = []
    for t in range(20):
        changed = ids.clone()
        changed[:, t] = (changed[:, t] + 1) % V
        seen.append(not torch.equal(model(changed)[0, -1], model(ids)[0, -1]))
    assert seen == [False] * (20 - field) + [True] * field


def test_parameters_of_a_convolution():
    model = ConvolutionalLM(V, D, n_layers=2, kernel_size=3)
    assert parameters(model) == V * D + 2 * (2 * D * D * 3 + 2 * D + 2 * D)


class TestTranslator:
    S = 5

    @pytest.fixture
    def translator(self):
        torch.manual_seed(0)
        return RecurrentTranslator(V, D, n_layers=2, dropout=0.1).eval()

    def masked(self):
        mask = torch.ones(B, self.S, dtype=torch.bool)
        mask[1, 3:] = False
        return tokens(B, self.S), mask

    def test_shapes(self, translator):
        source, mask = self.masked()
        assert translator(source, tokens()).shape == (B, T, V)
        assert translator(source, tokens(), source_mask=mask).shape == (B, T, V)
        assert translator.encode(source, token_mask=mask).shape == (B, self.S, D)

    def test_padding_of_the_source_changes_nothing(self, translator):
        source, mask = self.masked()
        together = translator(source, tokens(), source_mask=mask)
        alone = translator(source[1:2, :3], tokens()[1:2])
        torch.testing.assert_close(together[1:2], alone)

    def test_no_step_sees_what_comes_after_it(self, translator):
        source, mask = self.masked()
        target = tokens()
        changed = target.clone()
        changed[:, 4:] = (changed[:, 4:] + 1) % V
        before = translator(source, target, source_mask=mask)
        after = translator(source, changed, source_mask=mask)
        torch.testing.assert_close(after[:, :4], before[:, :4])
        assert not torch.equal(after[:, 4], before[:, 4])

    def test_every_source_token_matters(self, translator):
        source, _ = self.masked()
        before = translator(source, tokens())
        for s in range(self.S):
            changed = source.clone()
            changed[:, s] = (changed[:, s] + 1) % V
            assert not torch.equal(translator(changed, tokens())[:, 0], before[:, 0])

    def test_shares_sum_to_one_and_padding_has_none(self, translator):
        _, mask = self.masked()
        keys = translator.key_proj(torch.randn(B, self.S, D))
        shares = translator.attention(torch.randn(B, D), keys, mask)
        torch.testing.assert_close(shares.sum(-1), torch.ones(B))
        assert not shares[1, 3:].any()

    def test_every_parameter_has_a_gradient(self, translator):
        source, mask = self.masked()
        translator.train()
        translator(source, tokens(), source_mask=mask).logsumexp(-1).sum().backward()
        for name, parameter in translator.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name

    def test_training_takes_it_as_it_is(self, translator):
        source, mask = self.masked()
        target = tokens()
        real = torch.arange(T - 1) < torch.tensor([[6], [2], [4]])
        batch = Batch(target[:, :-1], target[:, 1:], real, source, mask)
        loss = batch_loss(translator, batch)
        assert loss.n_tokens == 12
        assert loss.total.requires_grad

    def test_it_learns_to_copy(self):
        torch.manual_seed(0)
        model = RecurrentTranslator(V, 24)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(60):
            source = torch.randint(1, V, (16, 3))
            target = torch.cat([torch.zeros(16, 1, dtype=torch.long), source], dim=1)
            mask = torch.ones_like(source, dtype=torch.bool)
            loss = batch_loss(
                model, Batch(target[:, :-1], target[:, 1:], source=source, source_mask=mask)
            ).mean
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0]

    def test_padding_on_the_left_is_refused(self, translator):
        source, mask = self.masked()
        with pytest.raises(ShapeError, match="padding stands on the right"):
            translator(source, tokens(), source_mask=mask.flip(1))

    def test_a_row_of_padding_alone_is_refused(self, translator):
        source, mask = self.masked()
        mask[2] = False
        with pytest.raises(ShapeError, match="padding alone"):
            translator(source, tokens(), source_mask=mask)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RecurrentLM(V, 0), "d_model=0"),
        (lambda: RecurrentLM(V, D, cell="gru", forget_bias=1.0), "only an LSTM"),
        (lambda: ConvolutionalLM(V, D, kernel_size=1), "kernel_size=1"),
        (lambda: ConvolutionalLM(V, D, n_layers=0), "n_layers=0"),
        (lambda: RecurrentTranslator(V, 7), "must be even"),
    ],
)
def test_sizes_that_cannot_work(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
