"""A text and a finished run for all tests of the command line."""

import pytest
from support.commands import SMALL, run


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """521 different short lines."""
    words = ["light", "water", "stone", "river", "mountain", "garden", "shepherd", "city"]
    lines = [f"{words[i % 7]} number {i} saw the {words[(i * i) % 8]}" for i in range(521)]
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(text, tmp_path_factory):
    """A folder with a finished run of 8 steps, and what the command said."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    result = run("train", "--text", text, "--out", folder, "--steps", 8, *SMALL)
    return folder, result.output
