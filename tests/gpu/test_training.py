"""Training on a GPU: the numbers of the CPU, in every precision, and a run that goes on."""

import dataclasses

import pytest
import torch
from glassformer.training import (
    Batch,
    batch_loss,
    load_checkpoint,
    make_optimizer,
    make_scaler,
    save_checkpoint,
    total_loss,
    train_step,
)
from support.gpu import needs_gpu
from support.runs import make_trainer, pair_data, tiny_decoder, tiny_translator, weights_of
from torch.testing import assert_close

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def padded_batch():
    data = pair_data(max_tokens=999)
    batch = data.load(data.epoch(0)[0])
    assert not batch.source_mask.all()
    assert not batch.target_mask.all()
    return batch


def results(model, batch, device, precision="float32"):
    model = model.to(device)
    with torch.autocast(device.type, getattr(torch, precision), enabled=precision != "float32"):
        loss = batch_loss(model, batch.to(device), label_smoothing=0.1)
    gradients = torch.autograd.grad(loss.mean, list(model.parameters()))
    return loss.nll.cpu(), [gradient.cpu() for gradient in gradients]


@needs_gpu
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_packed_pairs_give_the_numbers_of_the_cpu(norm_position):
    model, batch = tiny_translator(norm_position=norm_position), padded_batch()
    want = results(model, batch, torch.device("cpu"))
    got = results(model, batch, CUDA)
    assert_close(got[0], want[0], rtol=1e-5, atol=1e-5)
    assert_close(got[1], want[1], rtol=1e-3, atol=1e-5)


@needs_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_half_precision_is_close(precision, tolerance):
    model, batch = tiny_translator(), padded_batch()
    want = torch.cat([g.flatten() for g in results(model, batch, CUDA)[1]])
    got = torch.cat([g.flatten() for g in results(model, batch, CUDA, precision)[1]])
    assert 0 < float((got - want).norm() / want.norm()) < tolerance


@needs_gpu
def test_L03_a_batch_in_which_nothing_counts_is_no_step():
    batch = padded_batch()
    nothing = dataclasses.replace(batch, target_mask=torch.zeros_like(batch.target_mask))
    model = tiny_translator().to(CUDA)
    before = weights_of(model)
    result = train_step(model, [nothing], make_optimizer(model, lr=0.1))
    assert result == (0.0, 0, 0.0)
    assert all(torch.equal(before[name], value) for name, value in weights_of(model).items())
    batch_loss(model, nothing.to(CUDA)).mean.backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@needs_gpu
def test_O05_float16_clips_the_true_gradient():
    """The scaler's factor is in neither the reported length nor the update."""
    batch = padded_batch()
    norms = {}
    for precision in ("float32", "float16"):
        model = tiny_translator().to(CUDA)
        scaler = make_scaler(precision, CUDA)
        optimizer = make_optimizer(model, lr=1e-3)
        for _ in range(20):  # the scale starts too high and falls until nothing overflows
            result = train_step(model, [batch], optimizer, precision=precision, scaler=scaler)
            if result.grad_norm < float("inf"):
                break
        norms[precision] = result.grad_norm
    assert norms["float16"] == pytest.approx(norms["float32"], rel=0.02)


@needs_gpu
def test_O09_a_run_goes_on_where_it_stopped(tmp_path):
    """Dropout included: the state of the GPU's random numbers is saved too."""
    dev = pair_data(n=11, seed=8)
    settings = {
        "steps": 9,
        "eval_every": 2,
        "average": 2,
        "dev_loss": lambda model: total_loss(model, dev).mean_nll,
    }

    def start(seed=0):
        return make_trainer(
            pair_data(), model=tiny_translator(seed, dropout=0.1).to(CUDA), **settings
        )

    whole = start()
    torch.cuda.manual_seed(7)
    list(whole.run())
    first = start()
    torch.cuda.manual_seed(7)
    list(first.run(until=5))
    save_checkpoint(tmp_path / "c", first)
    second = start(seed=3)
    load_checkpoint(tmp_path / "c", second)
    list(second.run())
    assert second.optimizer.state_dict()["state"][0]["exp_avg"].is_cuda
    for mine, other in zip(second.history, whole.history, strict=True):
        assert mine.loss == pytest.approx(other.loss, rel=1e-4)
        assert (mine.dev_loss or 0.0) == pytest.approx(other.dev_loss or 0.0, rel=1e-4)


@needs_gpu
def test_recomputation_saves_memory_and_changes_no_gradient():
    tokens = torch.randint(1, 29, (16, 24), device=CUDA)
    batch = Batch(tokens[:, :-1], tokens[:, 1:])
    seen = []
    for on in (False, True):
        model = tiny_decoder(n_layers=6, dropout=0.1).to(CUDA).train()
        model.decoder.checkpoint_blocks = on
        torch.cuda.manual_seed(2)
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        batch_loss(model, batch).mean.backward()
        seen.append(
            (torch.cuda.max_memory_allocated() - base, [p.grad for p in model.parameters()])
        )
    assert seen[1][0] < seen[0][0]
    assert_close(seen[1][1], seen[0][1], rtol=1e-4, atol=1e-6)
