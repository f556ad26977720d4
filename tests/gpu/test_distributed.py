"""Training under torchrun on a GPU: NCCL joins the processes, here a single one."""

import torch
from glassformer.training import Trainer
from glassformer.training.distributed import process_group, sharded, shared_loss, wrap
from support.core import decoder_config, scrambled
from support.gpu import needs_gpu
from support.together import Sentences, one_process, settings


@needs_gpu
def test_a_process_takes_its_own_gpu(monkeypatch):
    for name, value in one_process().items():
        monkeypatch.setenv(name, value)
    with process_group() as device:
        assert device == torch.device("cuda:0")
        assert torch.distributed.get_backend() == "nccl"
        model = wrap(scrambled(decoder_config(), dtype=torch.float32).to(device))
        run = Trainer(model, sharded(Sentences()), settings(steps=2))
        losses = [report.loss for report in run.run()]
        assert len(losses) == 2
        assert all(0.0 < loss < 20.0 for loss in losses)
        assert shared_loss(run.model, Sentences(5)).n_tokens == 20
