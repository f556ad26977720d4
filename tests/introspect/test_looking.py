"""Shapes on the way, rollout over layers, and what the routers did."""

import pytest
import torch
from glassformer import capture_attention
from glassformer.errors import GlassformerError, ShapeError
from glassformer.inference import prepare
from glassformer.introspect import attention_rollout, collect_router, trace_shapes
from glassformer.models import build_model
from glassformer.nn import load_balancing_loss
from support.core import decoder_config, encoder_config, ids, scrambled, translator_config
from torch import nn
from torch.testing import assert_close


def hooks(model):
    parts = list(model.modules())
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in parts)


def words(line):
    return line.split()


class TestShapes:
    def test_every_step_in_order(self):
        model = build_model(decoder_config(n_layers=1, n_kv_heads=1, norm="rms"))
        trace = trace_shapes(model, ids(2, 7))
        assert [
            (step.name.removeprefix("decoder.blocks.0."), *step.shapes_out) for step in trace
        ] == [
            ("", (2, 7, 29)),
            ("embedding", (2, 7, 30)),
            ("embedding.tokens", (2, 7, 30)),
            ("embedding.dropout", (2, 7, 30)),
            ("rotary", (7, 5), (7, 5)),
            ("decoder", (2, 7, 30)),
            ("decoder.blocks.0", (2, 7, 30)),
            ("self_attn_norm", (2, 7, 30)),
            ("self_attn", (2, 7, 30)),
            ("self_attn.q_proj", (2, 7, 30)),
            ("self_attn.k_proj", (2, 7, 10)),
            ("self_attn.v_proj", (2, 7, 10)),
            ("self_attn.o_proj", (2, 7, 30)),
            ("dropout", (2, 7, 30)),
            ("feed_forward_norm", (2, 7, 30)),
            ("feed_forward", (2, 7, 30)),
            ("feed_forward.up_proj", (2, 7, 37)),
            ("feed_forward.dropout", (2, 7, 37)),
            ("feed_forward.down_proj", (2, 7, 30)),
            ("dropout", (2, 7, 30)),
            ("decoder.norm", (2, 7, 30)),
        ]
        steps = {step.name: step for step in trace}
        assert steps[""].shapes_in == ((2, 7),)
        assert steps[""].kind == "Decoder"
        assert steps["decoder.blocks.0.feed_forward.down_proj"].shapes_in == ((2, 7, 37),)
        assert steps["rotary"].bytes == 2 * 7 * 5 * 4
        assert steps["decoder"].bytes == 2 * 7 * 30 * 4
        assert steps["decoder"].dtype == torch.float32

    def test_table(self):
        model = build_model(encoder_config(n_layers=1)).to(torch.bfloat16)
        lines = str(trace_shapes(model, ids(2, 7))).splitlines()
        assert words(lines[0]) == words("step module in out dtype bytes")
        assert words(lines[1]) == words("(model) Encoder (2, 7) (2, 7, 30) bfloat16 840")
        assert len({len(line) for line in lines}) == 1
        assert repr(trace_shapes(model, ids(2, 7))).splitlines() == lines

    def test_keywords_and_every_model(self):
        model = build_model(translator_config(n_experts=5))
        mask = torch.ones(2, 7, dtype=torch.bool)
        trace = trace_shapes(model, ids(2, 7), ids(2, 5), source_mask=mask)
        steps = {step.name: step for step in trace}
        assert steps["decoder.blocks.1.cross_attn.k_proj"].shapes_out == ((2, 7, 30),)
        assert steps["decoder.blocks.1.feed_forward.router_tap"].shapes_out == (
            (10, 5),
            (10, 2),
            (10, 2),
            (10, 2),
        )
        assert [s.name for s in trace].count("embedding.tokens") == 2  # source and target share it

    def test_attention_weights_have_a_row_inside_a_capture(self):
        model = build_model(decoder_config())
        with capture_attention(model):
            steps = {step.name: step for step in trace_shapes(model, ids(2, 7))}
        assert steps["decoder.blocks.1.self_attn.weights_tap"].shapes_out == ((2, 3, 7, 7),)

    def test_meta_device(self):
        with torch.device("meta"):
            model = build_model(decoder_config())
            trace = trace_shapes(model, ids(2, 7))
        assert trace[0].shapes_out == ((2, 7, 29),)

    def test_nothing_stays_behind(self):
        model = build_model(decoder_config(dropout=0.5)).train()
        model.embedding.eval()  # somebody's own choice
        state = torch.get_rng_state()
        trace_shapes(model, torch.ones(2, 7, dtype=torch.long))
        assert torch.equal(torch.get_rng_state(), state)
        with pytest.raises(ShapeError):
            trace_shapes(model, torch.ones(2, 99, dtype=torch.long))
        assert hooks(model) == 0
        assert model.training
        assert not model.embedding.training

    def test_compiled_model(self):
        compiled = torch.compile(build_model(decoder_config()), backend="eager")
        with pytest.raises(GlassformerError, match=r"given to torch\.compile"):
            trace_shapes(compiled, ids(2, 7))

    def test_prepared_model(self):
        prepared = prepare(scrambled(decoder_config()).float())
        with pytest.raises(GlassformerError, match="was made of"):
            trace_shapes(prepared, ids(2, 7))


class TestRollout:
    def test_two_layers_by_hand(self):
        """Heads average to a copy of token 0 and to a swap; the residual is half of each."""
        copy = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        maps = {"a": copy.expand(1, 3, 2, 2), "b": torch.stack((swap, swap))[None]}
        first = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        second = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
        assert_close(attention_rollout(maps), (second @ first)[None])
        assert not torch.allclose(second @ first, first @ second)

    def test_of_a_model(self):
        model = scrambled(decoder_config(n_layers=3))
        with capture_attention(model) as maps:
            model(ids(2, 7))
        rollout = attention_rollout(maps)
        assert rollout.shape == (2, 7, 7)
        assert_close(rollout.sum(-1), torch.ones(2, 7).double())
        assert torch.equal(rollout, rollout.tril())
        assert (rollout.diagonal(dim1=1, dim2=2) >= 0.5**3).all()

    def test_blind_rows_keep_themselves(self):
        weights = torch.full((1, 2, 3, 3), 1 / 3)
        weights[:, :, 1] = 0
        assert_close(attention_rollout({"a": weights})[0, 1], torch.tensor([0.0, 1.0, 0.0]))

    def test_refuses(self):
        with pytest.raises(ShapeError, match="no map to roll out"):
            attention_rollout({})
        square = torch.ones(1, 2, 3, 3)
        for other in (torch.ones(1, 2, 3, 5), torch.ones(1, 2, 5, 5), torch.ones(2, 2, 3, 3)):
            with pytest.raises(ShapeError, match=r"b has a map of shape .* through one stack"):
                attention_rollout({"a": square, "b": other})


class TestRouter:
    def test_every_mixture_with_its_gradient(self):
        model = scrambled(decoder_config(n_experts=5, expert_capacity=0.5))
        tokens = ids(2, 7)
        want = model(tokens)
        with collect_router(model) as routings:
            assert torch.equal(model(tokens), want)
        assert list(routings) == ["decoder.blocks.0.feed_forward", "decoder.blocks.1.feed_forward"]
        for routing in routings.values():
            assert routing.probs.shape == (14, 5)
            assert routing.chosen.shape == routing.weights.shape == routing.kept.shape == (14, 2)
            assert int(routing.overflow) == int((~routing.kept).sum()) > 0
        loss = sum(load_balancing_loss(r.probs, r.chosen) for r in routings.values())
        loss.backward()
        for block in model.decoder.blocks:
            assert block.feed_forward.router.weight.grad.abs().sum() > 0
        assert hooks(model) == 0

    def test_with_checkpointed_blocks(self):
        """The gradient goes through blocks that compute their activations twice."""
        grads = []
        for checkpointed in (False, True):
            torch.manual_seed(0)
            model = scrambled(decoder_config(n_experts=5)).train()
            model.decoder.checkpoint_blocks = checkpointed
            with collect_router(model) as routings:
                logits = model(torch.arange(14).view(2, 7))
                loss = sum(load_balancing_loss(r.probs, r.chosen) for r in routings.values())
                (logits.square().sum() + loss).backward()
            grads.append([parameter.grad for parameter in model.parameters()])
        for got, want in zip(*grads, strict=True):
            assert_close(got, want)

    def test_nothing_stays_behind(self):
        model = scrambled(decoder_config(n_experts=5))
        with pytest.raises(RuntimeError, match="middle"), collect_router(model):
            raise RuntimeError("in the middle")
        assert hooks(model) == 0

    def test_model_without_experts(self):
        with (
            pytest.raises(GlassformerError, match="Linear has no MixtureOfExperts to look at"),
            collect_router(nn.Linear(2, 3)),
        ):
            pass
