"""One canonical form for notebooks: equal content gives equal bytes.

What editors and kernels add on their own (random ids, time stamps, versions, widget state) goes;
what a reader or a test needs (sources, outputs, tags, alt texts) stays.
"""

import copy
import hashlib
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import yaml
from nbformat import NotebookNode

from glassformer.errors import GlassformerError

__all__ = [
    "NOISY",
    "Address",
    "canonical",
    "code_cells",
    "dumps",
    "find_address",
    "is_noisy",
    "read",
    "setup_source",
    "source_digest",
    "tidy",
]

NOISY = "nbval-ignore-output"
# nbformat has no types; these names give its functions one
_reads: Callable[..., Any] = nbformat.reads
_writes: Callable[..., Any] = nbformat.writes
_from_dict: Callable[..., Any] = nbformat.from_dict

_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_CELL_METADATA = ("mystnb", "tags")
_OUTPUT_METADATA = ("image/png", "image/svg+xml", "needs_background")
# what nbformat (8 hex digits) and Jupyter (a UUID, or the head of one) invent
_RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){0,3}(-?[0-9a-f]{12})?")
_COLAB = re.compile(r"https://colab\.research\.google\.com/github/[^\s)\"'>]+")


@dataclass(frozen=True, kw_only=True)
class Address:
    """The public address of the book, as ``_config.yml`` states it."""

    url: str
    branch: str
    root: Path

    def colab(self, path: Path) -> str:
        """Where Colab opens the notebook at ``path``."""
        project = self.url.removeprefix("https://github.com/")
        inside = path.resolve().relative_to(self.root).as_posix()
        return f"https://colab.research.google.com/github/{project}/blob/{self.branch}/{inside}"


def find_address(path: Path) -> Address | None:
    """The address in the nearest ``_config.yml`` above ``path``; None if there is none."""
    for folder in path.resolve().parents:
        config = folder / "_config.yml"
        if config.is_file():
            repository = yaml.safe_load(config.read_text(encoding="utf-8")).get("repository", {})
            if "url" not in repository:
                return None
            url = str(repository["url"]).rstrip("/").removesuffix(".git")
            return Address(url=url, branch=str(repository.get("branch", "main")), root=folder)
    return None


def setup_source(address: Address) -> str:
    """The first code cell of every chapter: on Colab it installs, elsewhere it does nothing."""
    return "\n".join(
        [
            "try:",
            "    import glassformer",
            "except ModuleNotFoundError:  # Colab, Kaggle, Binder",
            f'    %pip install -q "glassformer[data] @ git+{address.url}@{address.branch}"',
            "from glassformer import exercises, lab",
            "",
            "device = lab.setup(seed=0)",
        ]
    )


def read(path: Path) -> NotebookNode:
    """Read a notebook.

    Raises:
        GlassformerError: if the file is missing or is no notebook.
    """
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing and repeated ids, which tidy() mends
            notebook: NotebookNode = _reads(text, as_version=4)
    except FileNotFoundError as error:
        raise GlassformerError(f"there is no notebook {path}") from error
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise GlassformerError(f"{path} is no notebook that can be read: {error}") from error
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_noisy(cell: NotebookNode) -> bool:
    """Whether the output of a cell differs from run to run (times, mostly)."""
    return NOISY in cell.metadata.get("tags", [])


def source_digest(notebook: NotebookNode) -> str:
    """A fingerprint of all code, in order; prose may change without new measurements."""
    code = [cell.source for cell in code_cells(notebook)]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def tidy(notebook: NotebookNode, path: Path) -> None:
    """Bring sources and ids into form, in place, before the notebook runs."""
    for cell in notebook.cells:
        cell.source = "\n".join(cell.source.splitlines()).rstrip()
    _name_cells(notebook)
    address = find_address(path)
    if address is None:
        return
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id == "setup":
            cell.source = setup_source(address)
        elif cell.cell_type == "markdown":
            cell.source = _COLAB.sub(address.colab(path), cell.source)


def _name_cells(notebook: NotebookNode) -> None:
    """Keep good ids; replace random and repeated ones by section and number."""
    taken: set[str] = set()
    unnamed = []
    section = "front"
    for cell in notebook.cells:
        heading = re.search(r"^##\s+(.+)$", cell.source, re.MULTILINE)
        if cell.cell_type == "markdown" and heading:
            section = re.sub(r"[^a-z0-9]+", "-", heading[1].lower()).strip("-")[:40] or "section"
        known = cell.get("id", "")
        if not known or known in taken or _RANDOM_ID.fullmatch(known):
            unnamed.append((cell, section))
        else:
            taken.add(known)
    for cell, section in unnamed:
        setup = cell.cell_type == "code" and "lab.setup(" in cell.source and "setup" not in taken
        number = 1
        while f"{section}-{number}" in taken:
            number += 1
        cell.id = "setup" if setup else f"{section}-{number}"
        taken.add(cell.id)


def canonical(notebook: NotebookNode) -> NotebookNode:
    """A copy in canonical form."""
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    metadata: dict[str, Any] = {"kernelspec": _KERNEL, "language_info": {"name": "python"}}
    recorded = notebook.metadata.get("glassformer", {}).get("recorded")
    if recorded:
        metadata["glassformer"] = {"recorded": recorded}
    notebook.metadata = _from_dict(metadata)
    for cell in notebook.cells:
        cell.metadata = _only(cell.metadata, _CELL_METADATA)
        if not cell.get("attachments", True):
            del cell["attachments"]
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.execution_count = number
        cell.outputs = _join_streams(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
            if "metadata" in output:
                output.metadata = _only(output.metadata, _OUTPUT_METADATA)
            output.pop("transient", None)
    nbformat.validate(notebook)
    return notebook


def _only(metadata: Any, keys: tuple[str, ...]) -> NotebookNode:
    node: NotebookNode = _from_dict({key: metadata[key] for key in keys if metadata.get(key)})
    return node


def _join_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of one stream, and show what a terminal shows after ``\\r``."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if (
            last is not None
            and output.output_type == last.output_type == "stream"
            and output.name == last.name
        ):
            last.text += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            output.text = re.sub(r"^.*\r(?=[^\n])", "", output.text, flags=re.MULTILINE)
    return joined


def dumps(notebook: NotebookNode) -> str:
    """The text of a notebook in canonical form, with sorted keys and one final newline."""
    text: str = _writes(notebook, version=nbformat.NO_CONVERT)
    return text.rstrip("\n") + "\n"
