"""The command ``glassformer``: train, generate, evaluate, info.

Book: training
"""

from glassformer.cli.commands import app

__all__ = ["app"]
