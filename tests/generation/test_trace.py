"""A trace: the tokens of generation with what stood beside them, and nothing left behind."""

import math

import pytest
import torch
from glassformer.errors import GenerationError
from glassformer.generation import generate, trace_generation
from support.core import decoder_config, scrambled
from support.toys import Toy, listener


def test_token_confidence_alternatives_and_entropy():
    model = Toy(lambda ids: [0.5, 0.25, 0.125, 0.125, 0.0, 0.0, 0.0])
    (step,) = trace_generation(model, [3], max_new_tokens=1, n_alternatives=3)
    assert step.token == 0
    assert step.confidence == pytest.approx(0.5)
    assert [token for token, _ in step.alternatives[:2]] == [0, 1]
    assert [p for _, p in step.alternatives] == pytest.approx([0.5, 0.25, 0.125])
    assert step.entropy == pytest.approx(1.75 * math.log(2))
    assert step.attention == {}


def test_the_tokens_are_those_of_generate():
    model = scrambled(decoder_config(dropout=0.5), dtype=torch.float32).train()
    for attention in (False, True):
        steps = trace_generation(
            model, torch.tensor([5, 3]), max_new_tokens=9, stop_ids=[3], attention=attention
        )
        expected = generate(model, [[5, 3]], max_new_tokens=9, stop_ids=[3])
        assert [step.token for step in steps] == expected.to_lists()[0]
        assert [step.confidence for step in steps] == pytest.approx(
            expected.confidence[0].tolist(), abs=1e-5
        )
        assert model.training
        for step in steps:
            assert step.alternatives[0] == (step.token, pytest.approx(step.confidence, abs=1e-5))
            assert len(step.alternatives) == 5
            assert 0 < step.entropy < math.log(29)


def test_maps_of_a_decoder_grow_with_the_text():
    model = scrambled(decoder_config(), dtype=torch.float32)
    steps = trace_generation(model, [5, 3, 7], max_new_tokens=3, attention=True)
    names = {f"decoder.blocks.{i}.self_attn" for i in range(2)}
    assert all(set(step.attention) == names for step in steps)
    shapes = [step.attention["decoder.blocks.1.self_attn"].shape for step in steps]
    assert shapes == [(1, 3, 3, 3), (1, 3, 1, 4), (1, 3, 1, 5)]
    for step in steps:
        sums = step.attention["decoder.blocks.0.self_attn"].sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_maps_of_a_translator_show_the_source_at_every_step():
    model = listener()
    steps = trace_generation(model, [7, 3, 11, 5], max_new_tokens=3, bos_id=1, attention=True)
    assert "encoder.blocks.0.self_attn" in steps[0].attention
    assert "encoder.blocks.0.self_attn" not in steps[1].attention
    for step in steps:
        assert step.attention["decoder.blocks.1.cross_attn"].shape == (1, 3, 1, 4)


@pytest.mark.parametrize("fails", [0, 1])
def test_nothing_stays_behind_after_an_exception(fails):
    model = scrambled(decoder_config(), dtype=torch.float32).train()
    calls = []

    def choose(logits, text):
        calls.append(1)
        if len(calls) > fails:
            raise RuntimeError("no choice")
        return logits.argmax(-1)

    with pytest.raises(RuntimeError, match="no choice"):
        trace_generation(model, [5, 3], max_new_tokens=3, attention=True, choose=choose)
    for block in model.decoder.blocks:
        assert not block.self_attn.eager
        assert not block.self_attn.weights_tap._forward_hooks
    assert model.training
    assert torch.is_grad_enabled()


def test_a_request_for_no_alternatives_is_refused():
    with pytest.raises(GenerationError, match="n_alternatives=0 must be at least 1"):
        trace_generation(listener(), [3], max_new_tokens=1, bos_id=1, n_alternatives=0)
