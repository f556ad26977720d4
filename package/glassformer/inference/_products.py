"""Layers as plain functions, their weights in memory as this machine reads them fastest.

Book: kv_cache
"""

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.nn import LayerNorm

__all__ = ["Map", "frozen", "packed_dtypes", "packed_linear", "packed_norm"]

Map = Callable[[Tensor], Tensor]
M = TypeVar("M", bound=nn.Module | None)

LARGE = 1 << 20  # numbers of a matrix from which oneDNN's own layout pays off for several rows


def packed_linear(weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype, rows: int) -> Map:
    """``x -> x @ weight.T + bias`` with the weights stored in ``dtype``.

    Which layout is read fastest depends on size, rows and threads: for one row and one thread the
    transposed matrix, for several rows of a large one oneDNN's blocks. Where PyTorch was built
    without a packed product, the plain one serves.

    Book: kv_cache
    """
    weight = weight.detach().to(dtype, copy=True)
    bias = None if bias is None else bias.detach().to(dtype, copy=True)
    if weight.device.type != "cpu":
        return lambda x: F.linear(x, weight, bias)
    packed = packed_dtypes()
    if dtype == torch.float32:
        lean = rows == 1 and torch.get_num_threads() == 1
        if lean or weight.numel() <= LARGE or dtype not in packed:
            return _transposed(weight, bias)
        return _onednn(weight, bias, rows)
    if dtype not in packed:
        return lambda x: F.linear(x.to(dtype), weight, bias).to(x.dtype)
    if dtype == torch.bfloat16:
        return _onednn(weight, bias, rows)
    blocks = torch.ops.quantized.linear_prepack_fp16(weight.float(), _float(bias))
    return lambda x: torch.ops.quantized.linear_dynamic_fp16(x, blocks)


def packed_dtypes() -> set[torch.dtype]:
    """The dtypes for whose weights this PyTorch has a product with a layout of its own on a CPU.

    Book: kv_cache
    """
    found = set()
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        found.add(torch.float32)
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            found.add(torch.bfloat16)
    if "fbgemm" in torch.backends.quantized.supported_engines:
        found.add(torch.float16)
    return found


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float()


def packed_norm(module: nn.Module | None, stream: torch.dtype) -> Map:
    """A norm in ``stream`` as a plain function; nothing for ``None``. Book: kv_cache"""
    if module is None:
        return lambda x: x
    module = frozen(module, stream)
    if not isinstance(module, LayerNorm):
        return module.forward
    shape, weight, bias, eps = module.weight.shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def frozen(module: M, stream: torch.dtype) -> M:
    """A copy of a module for evaluation, or the None that was given. Book: kv_cache"""
    if module is None:
        return module
    return copy.deepcopy(module).to(stream).eval().requires_grad_(False)


def _transposed(weight: Tensor, bias: Tensor | None) -> Map:
    turned = weight.t().contiguous()
    if bias is None:
        return lambda x: x @ turned

    def product(x: Tensor) -> Tensor:
        rows = torch.addmm(bias, x.reshape(-1, x.shape[-1]), turned)
        return rows.view(*x.shape[:-1], len(bias))

    return product


def _onednn(weight: Tensor, bias: Tensor | None, rows: int) -> Map:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    product = torch.ops.mkldnn._linear_pointwise
    return lambda x: product(x.to(weight.dtype), packed, bias, "none", [], "").to(x.dtype)
