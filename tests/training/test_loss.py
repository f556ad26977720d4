"""Sums over tokens: smoothing, padding, chunks, and batches in which nothing counts."""

import math

import pytest
import torch
import torch.nn.functional as F
from glassformer.errors import ConfigError, ShapeError
from glassformer.training import chunked_token_loss, counted, token_loss
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

V, D = 11, 7


def example(seed=0, shape=(3, 5)):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*shape, D, generator=generator, requires_grad=True)
    weight = torch.randn(V, D, generator=generator, requires_grad=True)
    targets = torch.randint(0, V, shape, generator=generator)
    return hidden, weight, targets


def test_equals_torch():
    hidden, weight, targets = example()
    logits = hidden @ weight.T
    loss = token_loss(logits, targets)
    torch.testing.assert_close(
        loss.total, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    )
    assert loss.n_tokens == 15
    assert loss.mean_nll == pytest.approx(float(loss.total.detach()) / 15)


def test_L01_smoothing_gives_padding_no_probability():
    """The gradient of the loss is softmax minus target distribution, so it shows the latter."""
    logits = torch.zeros(1, 5, requires_grad=True)
    loss = token_loss(logits, torch.tensor([2]), pad_id=0, label_smoothing=0.4)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    asked = logits.softmax(-1) - gradient
    torch.testing.assert_close(asked, torch.tensor([[0, 0.4 / 3, 0.6, 0.4 / 3, 0.4 / 3]]))


def test_L01_a_padding_row_adds_nothing():
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    alone = token_loss(logits[:1], torch.tensor([2]), pad_id=0, label_smoothing=0.4)
    both = token_loss(logits, torch.tensor([2, 0]), pad_id=0, label_smoothing=0.4)
    assert both.n_tokens == 1
    assert torch.equal(both.total, alone.total)


def test_L01_a_forbidden_padding_class_gives_no_infinity():
    logits = torch.tensor([[-math.inf, 0.0, 1.0, 2.0, 3.0]], requires_grad=True)
    loss = token_loss(logits, torch.tensor([2]), pad_id=0, label_smoothing=0.4)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert loss.total.isfinite()
    assert gradient[:, 1:].isfinite().all()


def test_smoothing_equals_torch_with_szegedys_eps():
    hidden, weight, targets = example()
    logits = (hidden @ weight.T).flatten(0, 1)
    ours = token_loss(logits, targets.flatten(), label_smoothing=0.1)
    theirs = F.cross_entropy(
        logits, targets.flatten(), reduction="sum", label_smoothing=0.1 * V / (V - 1)
    )
    torch.testing.assert_close(ours.total, theirs)


@pytest.mark.parametrize("chunked", [False, True])
def test_L03_nothing_counts(chunked):
    hidden, weight, targets = example()
    nothing = torch.zeros_like(targets, dtype=torch.bool)
    if chunked:
        loss = chunked_token_loss(hidden, weight, targets, target_mask=nothing)
    else:
        loss = token_loss(hidden @ weight.T, targets, target_mask=nothing)
    assert loss.n_tokens == 0
    assert float(loss.mean.detach()) == 0.0
    assert loss.mean_nll == 0.0
    loss.mean.backward()
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("chunked", [False, True])
def test_ignored_rows_may_hold_anything(chunked):
    hidden, weight, targets = example()
    mask = torch.ones_like(targets, dtype=torch.bool)
    mask[1, 2:] = False
    poisoned = hidden.detach().clone()
    poisoned[1, 2:] = math.nan
    poisoned.requires_grad_()
    for x in (hidden, poisoned):
        if chunked:
            loss = chunked_token_loss(x, weight, targets, target_mask=mask, chunk=4)
        else:
            loss = token_loss(F.linear(x, weight), targets, target_mask=mask)
        assert loss.total.isfinite()
        (gradient,) = torch.autograd.grad(loss.total, x)
        assert gradient[mask].isfinite().all()
        if chunked:  # the rows do not even reach the output layer
            assert torch.equal(gradient[~mask], torch.zeros_like(gradient[~mask]))


def test_L04_padding_is_not_in_the_denominator():
    _, weight, targets = example(shape=(2, 5))
    hidden = torch.randn(2, 53, D, generator=torch.Generator().manual_seed(2))
    results = []
    for length in (5, 53):
        x = hidden[:, :length].clone().requires_grad_()
        padded = F.pad(targets + (targets == 0), (0, length - 5))  # pad id 0
        loss = chunked_token_loss(x, weight, padded, pad_id=0, label_smoothing=0.1)
        (gradient,) = torch.autograd.grad(loss.mean, x)
        results.append((loss.mean.detach(), gradient[:, :5]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_L05_perplexity_ignores_smoothing():
    hidden, weight, targets = example()
    logits = (hidden @ weight.T).detach()
    plain, smoothed = (token_loss(logits, targets, label_smoothing=e) for e in (0.0, 0.1))
    assert smoothed.perplexity == plain.perplexity == pytest.approx(math.exp(plain.mean_nll))
    assert token_loss(1e4 * logits, targets).perplexity == math.inf  # and no OverflowError
    assert float(smoothed.total) != pytest.approx(float(plain.total), rel=1e-3)
    assert not smoothed.nll.requires_grad


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99),
    chunk=st.integers(1, 17),
    eps=st.sampled_from([0.0, 0.1, 0.4]),
    pad_id=st.sampled_from([None, 0]),
    hidden_share=st.sampled_from([0.0, 0.3, 1.0]),
    scale=st.sampled_from([1.0, 0.125]),
    biased=st.booleans(),
)
def test_chunks_change_no_number(seed, chunk, eps, pad_id, hidden_share, scale, biased):
    hidden, weight, targets = example(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    mask = torch.rand(targets.shape, generator=generator) >= hidden_share
    keywords = {"target_mask": mask, "pad_id": pad_id, "label_smoothing": eps}
    bias = torch.randn(V, generator=generator, requires_grad=True) if biased else None
    whole = token_loss(F.linear(hidden, weight, bias), targets, **keywords)
    parts = chunked_token_loss(hidden, weight, targets, bias=bias, chunk=chunk, **keywords)
    assert parts.n_tokens == whole.n_tokens == int(counted(targets, mask, pad_id).sum())
    torch.testing.assert_close(parts.total, whole.total)
    torch.testing.assert_close(parts.nll, whole.nll)
    learned = (hidden, weight) if bias is None else (hidden, weight, bias)
    expected = torch.autograd.grad(scale * whole.mean, learned)
    got = torch.autograd.grad(scale * parts.mean, learned)
    torch.testing.assert_close(got, expected)


def test_chunks_keep_few_bytes():
    """The full logits are 1009 x 11 numbers; of the chunks only gradients remain."""
    hidden, weight, targets = example(shape=(1009,))
    kept: list[int] = []

    def pack(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        chunked_token_loss(hidden, weight, targets, chunk=101)
    assert max(kept) <= hidden.numel() < 1009 * V


def test_chunks_wait_for_no_number():
    """A number read on the way makes a GPU wait; all are read before the first chunk."""
    hidden, weight, targets = example(shape=(53,))
    reads = []

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten._local_scalar_dense.default:
                reads[-1] += 1
            return func(*args, **(kwargs or {}))

    for chunk in (53, 7):
        reads.append(0)
        with Reads():
            chunked_token_loss(hidden, weight, targets, chunk=chunk, label_smoothing=0.1, pad_id=0)
    assert reads[0] == reads[1] > 0


def test_chunks_without_a_gradient():
    hidden, weight, targets = example()
    with torch.no_grad():
        loss = chunked_token_loss(hidden, weight, targets)
    assert not loss.total.requires_grad
    only = chunked_token_loss(hidden.detach(), weight, targets)
    (gradient,) = torch.autograd.grad(only.total, weight)
    (expected,) = torch.autograd.grad(token_loss(hidden.detach() @ weight.T, targets).total, weight)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_float32(dtype):
    hidden, weight, targets = example()
    logits = (hidden @ weight.T).detach().to(dtype)
    loss = token_loss(logits, targets)
    assert loss.total.dtype == torch.float32
    torch.testing.assert_close(loss.total, token_loss(logits.float(), targets).total)


def test_one_shape_for_predictions_and_targets(no_shape_checks):
    with pytest.raises(ShapeError, match=r"targets have shape \(3,\).*\(2,\)"):
        token_loss(torch.zeros(2, V), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ShapeError, match="target_mask has shape"):
        token_loss(
            torch.zeros(2, V),
            torch.zeros(2, dtype=torch.int64),
            target_mask=torch.ones(1, dtype=torch.bool),
        )


@pytest.mark.parametrize("eps", [-0.1, 1.0, math.nan])
def test_smoothing_is_a_share(eps):
    with pytest.raises(ConfigError, match="label_smoothing"):
        token_loss(torch.zeros(1, V), torch.tensor([2]), label_smoothing=eps)


def test_smoothing_needs_another_class():
    with pytest.raises(ConfigError, match="0 other classes"):
        token_loss(torch.zeros(1, 2), torch.tensor([1]), pad_id=0, label_smoothing=0.1)


def test_a_chunk_has_a_token():
    hidden, weight, targets = example()
    with pytest.raises(ConfigError, match="chunk=0"):
        chunked_token_loss(hidden, weight, targets, chunk=0)
