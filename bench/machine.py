"""What a record must say about the machine and the software that made it."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("glassformer", "torch", "sentencepiece", "sacrebleu")


def described() -> dict[str, Any]:
    """Software, processor and threads, and the commit of this folder."""
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    extra = [name for name in ("avx2", "avx512f", "amx_bf16") if name in flags.split()]
    return f"{names[0] if names else platform.machine()} ({', '.join(extra)})"


def _commit() -> str:
    said = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return said.stdout.strip() or "unknown"
