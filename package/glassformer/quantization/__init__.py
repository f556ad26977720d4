"""Smaller weights, and small adapters that learn on top of them.

Book: adaptation
"""

from glassformer.quantization.codes import (
    Codes,
    Scheme,
    decode,
    encode,
    nf4_levels,
    pack_nibbles,
    unpack_nibbles,
)
from glassformer.quantization.files import load_lora, load_quantized, save_lora, save_quantized
from glassformer.quantization.linear import QuantizedLinear
from glassformer.quantization.lora import (
    LoRALinear,
    adapters,
    add_lora,
    lora_state_dict,
    merge_lora,
)
from glassformer.quantization.quantize import (
    Backend,
    QuantizationReport,
    model_bytes,
    quantization_report,
    quantize,
)

__all__ = [
    "Backend",
    "Codes",
    "LoRALinear",
    "QuantizationReport",
    "QuantizedLinear",
    "Scheme",
    "adapters",
    "add_lora",
    "decode",
    "encode",
    "load_lora",
    "load_quantized",
    "lora_state_dict",
    "merge_lora",
    "model_bytes",
    "nf4_levels",
    "pack_nibbles",
    "quantization_report",
    "quantize",
    "save_lora",
    "save_quantized",
    "unpack_nibbles",
]
