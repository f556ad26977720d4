"""Embeddings: rows, padding, positions, segments."""

import pytest
import torch
from glassformer.errors import ConfigError
from glassformer.functional import sinusoidal_positions
from glassformer.nn import InputEmbedding, LayerNorm, TokenEmbedding, init_weights
from torch import nn
from torch.testing import assert_close

V, D, L = 13, 6, 11


class TestTokens:
    def test_gives_the_rows(self):
        table = TokenEmbedding(V, D)
        rows = table(torch.tensor([[2, 12], [0, 2]]))
        assert torch.equal(rows[0], table.weight[[2, 12]])
        assert torch.equal(rows[1], table.weight[[0, 2]])

    def test_T06_pad_row_is_zero_and_stays_so(self):
        """Also after an initialisation, and after a training step."""
        table = TokenEmbedding(V, D, pad_id=3)
        for _ in range(2):
            assert torch.equal(table.weight[3], torch.zeros(D))
            assert (table.weight.abs().sum(-1) > 0).sum() == V - 1
            init_weights(table)
        table(torch.tensor([[3, 4]])).sum().backward()
        assert torch.equal(table.weight.grad[3], torch.zeros(D))
        assert torch.equal(table.weight.grad[4], torch.ones(D))

    def test_T07_no_pad_id_zeroes_nothing(self):
        """Indexing with None would zero the whole table."""
        assert (TokenEmbedding(V, D, pad_id=None).weight.std(dim=-1) > 0).all()

    @pytest.mark.parametrize("pad_id", [-1, V])
    def test_pad_id_outside_the_table(self, pad_id):
        """S04: a tokenizer without a padding piece reports -1, which would be the last row."""
        with pytest.raises(ConfigError, match=rf"pad_id={pad_id} is no row of a table of 13.*12"):
            TokenEmbedding(V, D, pad_id=pad_id)

    def test_repr(self):
        assert repr(TokenEmbedding(V, D, pad_id=3)) == "TokenEmbedding(13, 6, pad_id=3)"


class TestInput:
    def make(self, **options):
        tokens = TokenEmbedding(V, D)
        return InputEmbedding(tokens, max_len=L, **options)

    def test_E03_sinusoids_are_added_by_time_to_scaled_tokens(self):
        """Indexed by the batch, all five rows of a sample would be the same."""
        embedding = self.make(positions="sinusoidal")
        ids = torch.zeros(2, 5, dtype=torch.long)
        out = embedding(ids, torch.arange(5))
        token = embedding.tokens.weight[0] * D**0.5
        assert torch.equal(out[0], out[1])
        for t in range(5):
            assert_close(out[0, t], token + sinusoidal_positions(torch.tensor(t), D))
        assert len({tuple(row.tolist()) for row in out[0]}) == 5

    @pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 5e-3), (torch.bfloat16, 1e-2)])
    def test_P04_a_cast_of_the_module_keeps_the_phase(self, dtype, bound):
        """Token vectors are zero, so what comes out is the table of 2048 positions."""
        embedding = InputEmbedding(TokenEmbedding(V, 64), max_len=2048, positions="sinusoidal")
        torch.nn.init.zeros_(embedding.tokens.weight)
        out = embedding.to(dtype)(torch.zeros(1, 2048, dtype=torch.long), torch.arange(2048))
        assert out.dtype == dtype
        want = sinusoidal_positions(torch.arange(2048), 64)
        assert (out[0].float() - want).abs().max() < bound

    def test_learned_positions_by_row(self):
        embedding = self.make(positions="learned")
        ids = torch.randint(0, V, (2, 3))
        positions = torch.tensor([[0, 1, 2], [7, 0, 10]])
        want = embedding.tokens.weight[ids] + embedding.positions.weight[positions]
        assert_close(embedding(ids, positions), want)

    @pytest.mark.parametrize("positions", ["rotary", "none"])
    def test_nothing_is_added(self, positions):
        embedding = self.make(positions=positions)
        ids = torch.randint(0, V, (2, 3))
        assert torch.equal(embedding(ids, torch.arange(3)), embedding.tokens.weight[ids])
        assert list(embedding.state_dict()) == ["tokens.weight"]

    def test_segments_and_norm(self):
        norm = LayerNorm(D)
        embedding = self.make(positions="none", n_segments=2, norm=norm)
        ids, segments = torch.randint(0, V, (2, 3)), torch.tensor([[0, 0, 1], [1, 1, 0]])
        table = embedding.segments.weight
        want = norm(embedding.tokens.weight[ids] + table[segments])
        assert_close(embedding(ids, torch.arange(3), segments), want)
        zeros = torch.zeros_like(segments)
        assert_close(embedding(ids, torch.arange(3)), embedding(ids, torch.arange(3), zeros))

    def test_dropout_in_training_only(self):
        embedding = self.make(positions="none", dropout=0.5)
        ids = torch.randint(0, V, (2, 3))
        assert (embedding(ids, torch.arange(3)) == 0).any()
        assert not (embedding.eval()(ids, torch.arange(3)) == 0).any()


def test_initial_scale():
    """0.02 for every table, so that a tied head starts without an opinion."""
    for positions in ("learned", "sinusoidal"):
        embedding = InputEmbedding(TokenEmbedding(997, 256), max_len=101, positions=positions)
        init_weights(embedding)
        assert embedding.tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_linear_layers_start_glorot_uniform():
    layer = nn.Sequential(nn.Linear(300, 500))
    nn.init.ones_(layer[0].bias)
    init_weights(layer)
    limit = (6 / 800) ** 0.5
    assert layer[0].weight.abs().max().item() == pytest.approx(limit, rel=1e-3)
    assert layer[0].weight.abs().max() <= limit
    assert torch.equal(layer[0].bias, torch.zeros(500))
