"""Writing what the long runs found to where the book reads it."""

import json
from pathlib import Path
from typing import Any

from glassformer.pretrained import COMPARISONS, recorded_runs


def write_json(path: Path, data: dict[str, Any]) -> None:
    """In the form in which it is committed."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def record_run(name: str, found: dict[str, Any]) -> None:
    """Put one run into ``comparisons.json`` of the package; the others stay as they are."""
    write_json(COMPARISONS, recorded_runs() | {name: found})
