"""Draw the picture of the README and the home page: ``python book/figures/make_readme_picture.py``.

Random queries and keys, once with the division by the square root of their width and once without.
"""

from pathlib import Path

import torch
from glassformer.functional import attention_weights
from glassformer.visualization import heat_map, style

D_HEAD = 512
TOKENS = 7


def main() -> None:
    """Write readme.svg beside this file."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, TOKENS, D_HEAD, generator=generator)
    maps = {
        f"scores / √{D_HEAD}": attention_weights(q, k)[0, 0],
        "scores as they are": attention_weights(q, k, scale=1.0)[0, 0],
    }
    style()
    labels = [str(position) for position in range(1, TOKENS + 1)]
    figure = heat_map(
        maps,
        labels,
        labels,
        title=f"Same queries, same keys: without the division by √{D_HEAD}, "
        "one token is all they hear",
    )
    target = Path(__file__).with_name("readme.svg")
    figure.savefig(target, facecolor="white", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
