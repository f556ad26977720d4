"""Which parameters learn, and which of them are pulled towards zero.

Book: training
"""

import torch
from torch import nn

from glassformer.errors import ConfigError

__all__ = ["make_optimizer"]


def make_optimizer(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
) -> torch.optim.AdamW:
    """AdamW in two groups: matrices decay, norm gains and biases do not.

    Every parameter that asks for a gradient is in exactly one group, and a matrix that serves
    twice, as embedding and as output layer, is in it once.

    Args:
        model: what is to be trained.
        lr: the peak learning rate; a schedule multiplies it.
        weight_decay: share of ``lr`` times the weight that each step takes away.
        betas: memory of the two moments. Adam's own default for the second is 0.999; language
            models are trained with 0.95 to 0.98, which forget a bad batch sooner.

    Raises:
        ConfigError: a negative rate, or a model with nothing to train.

    Source: Loshchilov & Hutter 2019; Brown et al. 2020, appendix B, for the values.
    Book: training
    """
    if lr < 0 or weight_decay < 0:
        raise ConfigError(f"lr={lr} and weight_decay={weight_decay} must not be negative")
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ConfigError("no parameter of this model asks for a gradient; unfreeze some")
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda", "mps") for p in trained)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)
