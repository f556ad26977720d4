"""The command ``glassformer``: train, generate, translate, evaluate, info.

Book: training
"""

from glassformer.cli import measure, train, write
from glassformer.cli.app import app

__all__ = ["app", "measure", "train", "write"]
