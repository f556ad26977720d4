"""Counters against numbers worked out by hand; times only as ratios."""

import gc
import sys
import weakref

import pytest
import torch
from glassformer import lab
from glassformer.errors import GlassformerError
from glassformer.functional import attend
from torch import nn


def test_flops_of_a_product() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    assert lab.flops(torch.matmul, a, b) == 2 * 3 * 5 * 7


@pytest.mark.parametrize("eager", [True, False])
def test_flops_of_attention_are_seen_on_every_path(eager: bool) -> None:
    q, k, v = torch.ones(2, 3, 7, 5), torch.ones(2, 3, 11, 5), torch.ones(2, 3, 11, 5)
    assert lab.flops(attend, q, k, v, eager=eager) == 2 * 2 * 3 * 7 * 11 * (5 + 5)


@pytest.fixture
def network() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 11), nn.ReLU(), nn.Linear(11, 3))


def test_saved_bytes_count_a_shared_storage_once(network: nn.Module) -> None:
    x = torch.ones(13, 7)
    activations = 4 * 13 * (7 + 11)  # the input, and ReLU's output which the next layer shares
    assert lab.saved_bytes(network, x, exclude=network) == activations
    assert lab.saved_bytes(network, x, exclude=network.parameters()) == activations
    assert lab.saved_bytes(network, x) == activations + 4 * 3 * 11  # and the second weight


def test_saved_bytes_without_gradients(network: nn.Module) -> None:
    with torch.no_grad():
        assert lab.saved_bytes(network, torch.ones(13, 7)) == 0


def test_peak_bytes_follow_what_is_freed() -> None:
    def chain() -> torch.Tensor:
        a = torch.ones(1000)  # 4000
        b = a + 1  # 8000
        del a  # 4000
        c = torch.cat([b, b])  # 12000: the peak
        del b  # 8000
        return c + 1  # 16000: a higher one

    assert lab.peak_bytes(chain) == 16_000


def test_peak_bytes_ignore_views_and_what_was_there() -> None:
    x = torch.ones(1000)
    assert lab.peak_bytes(lambda: x.view(10, 100).t()) == 0
    assert lab.peak_bytes(lambda: x.add_(1)) == 0


def test_peak_bytes_repeat(network: nn.Module) -> None:
    x = torch.ones(13, 7)
    first = lab.peak_bytes(network, x)
    assert first == 4 * 13 * (11 + 11)  # ReLU's input and output; its input is freed next
    assert [lab.peak_bytes(network, x) for _ in range(3)] == [first] * 3


def test_peak_bytes_see_the_backward_pass(network: nn.Module) -> None:
    x = torch.ones(13, 7)
    forward = lab.peak_bytes(network, x)
    assert lab.peak_bytes(lambda: network(x).sum().backward()) > forward


def test_interleaved_takes_turns() -> None:
    calls: list[str] = []
    timings = lab.interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=1
    )
    assert calls == ["a", "b"] * 4
    assert len(timings.seconds["a"]) == 3
    assert timings.median("a") > 0


def test_ratio_is_the_median_of_pairs() -> None:
    timings = lab.Timings({"slow": [2.0, 30.0, 8.0], "fast": [1.0, 10.0, 1.0]})
    assert timings.ratio("slow", "fast") == 3.0
    assert timings.median("slow") == 8.0


def test_timings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(GlassformerError, match="'x' was not timed; timed were 'a'"):
        lab.Timings({"a": [1.0]}).median("x")
    with pytest.raises(GlassformerError, match="rounds=0"):
        lab.interleaved({"a": lambda: None}, rounds=0)
    with pytest.raises(GlassformerError, match="0 functions"):
        lab.interleaved({})


def test_N07_release_forgets_the_last_exception() -> None:
    """Whatever interpreters remember of an error keeps the locals of every frame alive."""

    def fail() -> None:
        tensor = torch.ones(1000)
        kept.append(weakref.ref(tensor))
        raise RuntimeError("out of memory")

    kept: list[weakref.ref[torch.Tensor]] = []
    for names in (("last_value", "last_traceback", "last_type"), ("last_exc",)):
        try:
            fail()
        except RuntimeError as error:
            remembered = {"last_traceback": error.__traceback__, "last_type": type(error)}
            for name in names:
                setattr(sys, name, remembered.get(name, error))
            del remembered
        gc.collect()
        assert kept[-1]() is not None
        lab.release()
        assert kept[-1]() is None
        assert not any(hasattr(sys, name) for name in names)


def test_N07_release_twice_or_for_nothing() -> None:
    lab.release()
    lab.release()
