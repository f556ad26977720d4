"""Weights of others on a GPU: loaded there, they give what they give on the CPU."""

import pytest
import torch
from glassformer import build_model
from glassformer.interop import load_hugging_face, save_hugging_face, stack_from_torch
from interop.configs import OURS
from support.core import ids, scramble
from support.gpu import needs_gpu
from torch import nn
from torch.testing import assert_close


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-1)])
@pytest.mark.parametrize("family", OURS)
@torch.no_grad()
def test_parity_of_a_model_loaded_onto_the_gpu(tmp_path, family, dtype, tolerance):
    model = scramble(build_model(OURS[family]), by=0.1).eval()
    save_hugging_face(tmp_path / "model", model, family=family)
    loaded = load_hugging_face(tmp_path / "model", dtype=dtype, device="cuda")
    tokens = [ids(2, 7, low=2)] * (2 if OURS[family].kind == "encoder_decoder" else 1)
    got = loaded(*(x.cuda() for x in tokens))
    assert (got.device.type, got.dtype) == ("cuda", dtype)
    assert_close(got.float().cpu(), model(*tokens), atol=tolerance, rtol=tolerance)


@needs_gpu
@torch.no_grad()
def test_layers_of_torch_stay_on_their_device():
    layer = nn.TransformerEncoderLayer(30, 3, 37, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().eval()
    x = torch.randn(2, 7, 30, device="cuda")
    assert_close(stack_from_torch(theirs)(x), theirs(x), atol=1e-4, rtol=1e-4)
