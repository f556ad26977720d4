"""Style and types, so that one command and one summary cover them too."""

import subprocess
import sys

import pytest
from support.project import ROOT

COMMANDS = {
    "ruff check": ["ruff", "check", "--no-cache"],
    "ruff format": ["ruff", "format", "--check", "--diff", "--no-cache"],
    "mypy": ["mypy"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_clean(name):
    module, *options = COMMANDS[name]
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{name} found:\n{done.stdout}{done.stderr}", pytrace=False)
