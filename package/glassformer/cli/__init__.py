"""The command ``glassformer``: train, generate, translate, evaluate, prune, bench, info.

Book: training
"""

from glassformer.cli import bench, evaluate, info, prune, train, write
from glassformer.cli.app import app

__all__ = ["app", "bench", "evaluate", "info", "prune", "train", "write"]
