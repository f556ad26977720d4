"""The command ``glassformer``: train, generate, translate, evaluate, info.

Book: training
"""

from glassformer.cli import evaluate, info, train, write
from glassformer.cli.app import app

__all__ = ["app", "evaluate", "info", "train", "write"]
