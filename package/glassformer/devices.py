"""Where to compute."""

import torch

from glassformer.errors import ConfigError

__all__ = ["pick_device"]


def pick_device(name: str = "auto", *, given_as: str = "device") -> torch.device:
    """The device called ``name``, tried out; ``auto`` is CUDA, else MPS, else the CPU.

    ``given_as`` is what the user set, for the message.

    Raises:
        ConfigError: this machine has no such device.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" makes tensors, but they hold nothing
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"{given_as}={name} is no device of this machine; use auto, cpu, cuda, cuda:<number> "
            "or mps"
        ) from error
    return device
