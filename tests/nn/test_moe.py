"""The mixture of experts: equal to a loop, bounded by its capacity, balanced by its loss."""

import pytest
import torch
from glassformer.errors import ConfigError, ShapeError
from glassformer.nn import MixtureOfExperts, load_balancing_loss, route
from support.core import scramble
from torch.testing import assert_close

D, F, X, B, T = 5, 11, 7, 2, 13


def mixture(**options):
    layer = MixtureOfExperts(D, F, **{"n_experts": X, **options})
    return scramble(layer.double(), by=0.5)


def in_loops(layer, x, k, places=None):
    """Every expert on every token; then one visit after the other, first choices first."""
    tokens = x.reshape(-1, D)
    probs = (tokens @ layer.router.weight.T).softmax(-1)
    outputs = torch.stack([expert(tokens) for expert in layer.experts], dim=1)  # (N, X, D)
    order = probs.argsort(dim=-1, descending=True)[:, :k]
    taken = [0] * len(layer.experts)
    rows = [torch.zeros(D, dtype=x.dtype) for _ in tokens]
    for choice in range(k):
        for n in range(len(tokens)):
            expert = int(order[n, choice])
            taken[expert] += 1
            if places is None or taken[expert] <= places:
                weight = probs[n, expert] / (probs[n, order[n]].sum() if k > 1 else 1)
                rows[n] = rows[n] + weight * outputs[n, expert]
    return torch.stack(rows).view_as(x)


def grads(out, inputs):
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    found = torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


@pytest.mark.parametrize("k", [1, 2, 3, X])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_equals_a_loop_forward_and_backward(k, activation):
    layer = mixture(experts_per_token=k, activation=activation)
    x = torch.randn(B, T, D).double().requires_grad_()
    inputs = [x, *layer.parameters()]
    got, want = layer(x), in_loops(layer, x, k)
    assert_close(got, want, atol=1e-10, rtol=0)
    for one, other in zip(grads(got, inputs), grads(want, inputs), strict=True):
        assert_close(one, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("capacity", "places"), [(0.25, 2), (0.5, 4), (1.0, 8)])
def test_full_experts_equal_a_loop_too(capacity, places):
    layer = mixture(capacity=capacity)
    x = torch.randn(B, T, D).double().requires_grad_()
    inputs = [x, *layer.parameters()]
    got, want = layer(x), in_loops(layer, x, 2, places)
    assert_close(got, want, atol=1e-10, rtol=0)
    assert not torch.allclose(got, in_loops(layer, x, 2))
    for one, other in zip(grads(got, inputs), grads(want, inputs), strict=True):
        assert_close(one, other, atol=1e-10, rtol=0)


def test_ample_capacity_changes_nothing():
    layer = mixture()
    x = torch.randn(B, T, D).double()
    want = layer(x)
    layer.capacity = float(X)
    assert_close(layer(x), want, atol=1e-12, rtol=0)


def test_overflow_is_zero_and_counted():
    """All tokens want expert 3, which seats two; the others fall through with zeros."""
    layer = mixture(experts_per_token=1, capacity=2 * X / T)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[3, 0] = 100.0
    seen = []
    layer.router_tap.register_forward_hook(lambda module, args, out: seen.append(out))
    x = torch.rand(1, T, D).double() + 0.1
    out = layer(x)
    assert (out[0, :2].abs().sum(-1) > 0).all()
    assert torch.equal(out[0, 2:], torch.zeros(T - 2, D).double())
    assert int(seen[0].overflow) == T - 2
    assert_close(out[:, :2], layer.experts[3](x[:, :2]), atol=1e-3, rtol=1e-3)


def test_first_choices_are_seated_before_second_ones():
    """The last token's first choice takes the only place; earlier second choices do not."""
    scores = torch.tensor([[3.0, 2.0, 0.0], [3.0, 2.0, 0.0], [0.0, 3.0, 2.0]])
    routing, place = route(scores, 2, places=1)
    assert routing.chosen.tolist() == [[0, 1], [0, 1], [1, 2]]
    assert place.tolist() == [[0, 1], [1, 2], [0, 0]]
    assert routing.kept.tolist() == [[True, False], [False, False], [True, True]]


def test_weights_are_those_of_a_softmax_over_the_chosen():
    scores = torch.randn(T, X)
    routing, _ = route(scores, 3)
    assert_close(routing.weights, scores.topk(3).values.softmax(-1))
    assert_close(routing.probs, scores.softmax(-1))
    assert bool(routing.kept.all())


def test_single_experts_teach_the_router_too():
    layer = mixture(experts_per_token=1)
    layer(torch.randn(B, T, D).double()).square().sum().backward()
    assert layer.router.weight.grad.abs().sum() > 0.1


def test_no_token_depends_on_another_without_a_capacity():
    layer = mixture()
    x = torch.randn(B, T, D).double()
    want = layer(x)
    assert_close(layer(x[:, 3:4]), want[:, 3:4], atol=1e-12, rtol=0)
    assert_close(layer(x.flip(1)).flip(1), want, atol=1e-12, rtol=0)
    poisoned = x.clone()
    poisoned[:, 5:] = 1e3
    assert_close(layer(poisoned)[:, :5], want[:, :5], atol=1e-12, rtol=0)


def test_every_parameter_has_a_gradient_even_of_an_idle_expert():
    """A process that waits for the gradients of all parameters must not wait for ever."""
    layer = mixture(experts_per_token=1)
    layer(torch.randn(1, 1, D).double()).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_no_tokens_and_one_token():
    layer = mixture(capacity=1.25)
    assert layer(torch.zeros(0, T, D).double()).shape == (0, T, D)
    assert layer(torch.randn(D).double()).shape == (D,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_routes_in_float32(dtype):
    layer = mixture().to(dtype)
    seen = []
    layer.router_tap.register_forward_hook(lambda module, args, out: seen.append(out))
    out = layer(torch.randn(B, T, D, dtype=dtype))
    assert out.dtype == dtype
    assert seen[0].probs.dtype == seen[0].weights.dtype == torch.float32
    assert out.isfinite().all()


def test_under_autocast():
    layer = mixture().float()
    x = torch.randn(B, T, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert_close(out.float(), layer(x), atol=0.2, rtol=0.1)
    out.sum().backward()


class TestBalance:
    def test_equal_shares_cost_one_and_a_single_expert_all(self):
        uniform = torch.full((X, X), 1 / X)
        chosen = torch.arange(X)[:, None]
        assert_close(load_balancing_loss(uniform, chosen), torch.tensor(1.0))
        one = torch.eye(X)[torch.zeros(T, dtype=torch.long)]
        chosen = torch.zeros(T, 1, dtype=torch.long)
        assert_close(load_balancing_loss(one, chosen), torch.tensor(float(X)))

    def test_by_hand(self):
        """f = (3/4, 1/4, 0), P = (0.5, 0.3, 0.2): 3 (0.375 + 0.075)."""
        probs = torch.tensor([[0.6, 0.2, 0.2], [0.4, 0.4, 0.2]])
        chosen = torch.tensor([[0, 1], [0, 0]])
        assert_close(load_balancing_loss(probs, chosen), torch.tensor(1.35))

    def test_padding_does_not_count(self):
        probs, mask = torch.rand(B, T, X).softmax(-1), torch.ones(B, T, dtype=torch.bool)
        mask[1, 5:] = False
        chosen = probs.topk(2).indices
        got = load_balancing_loss(probs, chosen, token_mask=mask)
        assert_close(got, load_balancing_loss(probs[mask], chosen[mask]))
        assert not torch.allclose(got, load_balancing_loss(probs, chosen))

    def test_descending_it_spreads_the_tokens(self):
        layer = mixture(experts_per_token=1).float()
        with torch.no_grad():
            layer.router.weight[0] += 2.0
        x = torch.rand(1, 101, D)
        optimizer = torch.optim.SGD(layer.router.parameters(), lr=1.0)

        def routing():
            return route(layer.router(x.view(-1, D)), 1)[0]

        def busiest():
            return int(torch.bincount(routing().chosen.flatten(), minlength=X).max())

        before = busiest()
        for _ in range(60):
            optimizer.zero_grad()
            now = routing()
            load_balancing_loss(now.probs, now.chosen).backward()
            optimizer.step()
        assert before == 101
        assert busiest() < 51


@pytest.mark.parametrize("k", [0, X + 1])
def test_more_visits_than_experts(k):
    with pytest.raises(ConfigError, match=f"experts_per_token={k} of n_experts=7: .* from 1 to 7"):
        MixtureOfExperts(D, F, n_experts=X, experts_per_token=k)


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("inf"), float("nan")])
def test_no_capacity_at_all(capacity):
    with pytest.raises(ConfigError, match="must be a positive and finite multiple"):
        MixtureOfExperts(D, F, n_experts=X, capacity=capacity)


def test_another_width():
    with pytest.raises(ShapeError, match="width 6 were given to a mixture of width 5"):
        mixture()(torch.randn(2, D + 1).double())


def test_repr():
    shown = repr(MixtureOfExperts(D, F, n_experts=X, capacity=1.5))
    assert "n_experts=7, experts_per_token=2, capacity=1.5" in shown
