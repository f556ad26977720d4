"""The command ``glassformer``: train, generate, translate, evaluate, prune, info.

Book: training
"""

from glassformer.cli import evaluate, info, prune, train, write
from glassformer.cli.app import app

__all__ = ["app", "evaluate", "info", "prune", "train", "write"]
