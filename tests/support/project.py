"""Where things are, and what the configuration says."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
CHAPTERS = sorted(path for path in BOOK.glob("*.ipynb"))


def book_config() -> dict[str, Any]:
    """_config.yml, where the project's public address stands."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def pyproject() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def constraints() -> dict[str, str]:
    """Name and version of every line of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def normalised(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def tracked_files() -> list[Path]:
    """The files that a clone has: git's list, or in an unpacked archive everything not built."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        built = {".venv", "_build", "__pycache__"}
        paths = [path for path in ROOT.rglob("*") if not built & set(path.parts)]
    return [path for path in paths if path.is_file()]
