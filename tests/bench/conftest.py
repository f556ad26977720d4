"""The package beside the tests; it is no part of what gets installed."""

import importlib
import sys

import pytest
from support.project import ROOT


@pytest.fixture
def bench(monkeypatch):
    """Gives the modules of ``bench`` by name; none of them stays imported."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield lambda name: importlib.import_module(f"bench.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "bench"]:
        del sys.modules[name]
