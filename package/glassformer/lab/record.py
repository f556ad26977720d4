"""Execute chapters and store their outputs in canonical form.

``python -m glassformer.lab.record book/attention.ipynb`` runs a chapter in a fresh kernel with one
thread and writes it back. A run that changes nothing changes no byte: outputs of cells tagged
``nbval-ignore-output`` (times, mostly) are kept as they are while all code and all other outputs
stay the same. ``--check`` writes nothing and fails if anything would change; ``--no-exec`` brings
a notebook into form without running it.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from rich.console import Console

from glassformer._files import write_whole
from glassformer.errors import GlassformerError
from glassformer.lab import notebook as form

__all__ = ["CELL_TIMEOUT", "Result", "kernel_environment", "main", "record", "write_atomically"]

CELL_TIMEOUT = 300


def kernel_environment() -> dict[str, str]:
    """What makes two runs agree bit for bit: one thread, one hash seed, one set of CPU kernels."""
    one = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
    )
    fixed = {**one, "PYTHONHASHSEED": "0", "GLASSFORMER_DEVICE": "cpu"}
    if platform.machine().lower() in {"x86_64", "amd64"}:
        # Both, or the fused bfloat16 kernel asks oneDNN for a layout that PyTorch then cannot make.
        fixed |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    return fixed


@dataclass(frozen=True)
class Result:
    """What recording did, or would do, to one notebook."""

    path: Path
    changes: tuple[str, ...]
    differs: bool
    text: str
    seconds: float


def record(
    path: Path, *, execute: bool = True, check: bool = False, timeout: int = CELL_TIMEOUT
) -> Result:
    """Record one notebook.

    Args:
        path: the notebook.
        execute: whether to run it; otherwise only its form changes.
        check: whether to leave the file as it is and only report.
        timeout: seconds that a cell may take.

    Raises:
        GlassformerError: if the file is no notebook or a cell fails. The file is left as it was.
    """
    start = time.perf_counter()
    stored = form.read(path)
    old_text = path.read_text(encoding="utf-8")
    fresh = form.read(path)
    form.tidy(fresh, path)
    digest = form.source_digest(fresh)
    if execute:
        _run(fresh, path, timeout)
        fresh.metadata["glassformer"] = {"recorded": digest}
    fresh = form.canonical(fresh)
    recorded = stored.metadata.get("glassformer", {}).get("recorded")
    if execute and recorded == digest:
        _keep_noise(fresh, form.canonical(stored))
    text = form.dumps(fresh)
    differs = text != old_text
    changes = list(_changes(stored, fresh)) if differs else []
    if not execute and recorded != digest:
        changes.append("code has changed since the outputs were recorded")
    if differs and not check:
        write_atomically(path, text)
    return Result(path, tuple(changes), differs, text, time.perf_counter() - start)


def _run(notebook: NotebookNode, path: Path, timeout: int) -> None:
    """Execute in a fresh kernel of this interpreter, in the notebook's folder."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    current: list[NotebookNode] = []

    def remember(cell: NotebookNode, **_: Any) -> None:
        current[:] = [cell]

    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        on_cell_execute=remember,
        resources={"metadata": {"path": str(path.parent)}},
    )
    manager = client.create_kernel_manager()
    if manager.kernel_spec is not None:
        manager.kernel_spec.argv[0] = sys.executable  # not another Python's kernel of this name
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    try:
        client.execute(env={**environment, **kernel_environment()})
    except (CellControlSignal, DeadKernelError) as error:
        where = f"{path}, cell {current[0].id}" if current else str(path)
        raise GlassformerError(
            f"{where}: {_reason(error, timeout)}\nThe file is unchanged."
        ) from error


def _reason(error: Exception, timeout: int) -> str:
    name = getattr(error, "ename", "")
    if name:
        return f"{name}: {getattr(error, 'evalue', '')}"
    if isinstance(error, TimeoutError):
        return f"the cell ran longer than {timeout} seconds; make it smaller or give --timeout"
    return f"the kernel stopped: {error}"


def _keep_noise(fresh: NotebookNode, stored: NotebookNode) -> None:
    """Put stored outputs of noisy cells back if nothing else changed."""
    pairs = list(zip(form.code_cells(fresh), form.code_cells(stored), strict=True))
    if any(new.outputs != old.outputs for new, old in pairs if not form.is_noisy(new)):
        return
    for new, old in pairs:
        if form.is_noisy(new) and old.outputs:
            new.outputs = old.outputs


def _changes(stored: NotebookNode, fresh: NotebookNode) -> Iterable[str]:
    """Say which cells differ, for a person to look at."""
    before = {cell.get("id"): cell for cell in stored.cells}
    found = False
    for cell in fresh.cells:
        old = before.get(cell.id)
        what = []
        if old is None:
            what = ["new id"]
        else:
            what += ["source"] if old.source != cell.source else []
            what += ["output"] if old.get("outputs") != cell.get("outputs") else []
        if what:
            found = True
            yield f"cell {cell.id} ({' and '.join(what)})"
    if not found:
        yield "form (metadata, counts or layout)"


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader sees the old text or the new one, never half of it."""
    write_whole(path, text.encode("utf-8"))


def main(argv: Sequence[str] | None = None) -> int:
    """Record the notebooks named on the command line.

    Returns:
        1 if a notebook fails, or if ``--check`` finds a change; otherwise 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m glassformer.lab.record",
        description="Execute notebooks and store their outputs in canonical form.",
    )
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a change")
    parser.add_argument("--no-exec", action="store_true", help="only bring into form")
    parser.add_argument("--timeout", type=int, default=CELL_TIMEOUT, help="seconds a cell may take")
    options = parser.parse_args(argv)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    bad = False
    for path in options.notebooks:
        try:
            result = record(
                path, execute=not options.no_exec, check=options.check, timeout=options.timeout
            )
        except GlassformerError as error:
            console.print(f"failed    {error}")
            bad = True
            continue
        written = "differs  " if options.check else "wrote    "
        verb = written if result.differs else "unchanged"
        console.print(f"{verb} {path} ({result.seconds:.1f} s)")
        for change in result.changes:
            console.print(f"          {change}")
        bad = bad or (options.check and bool(result.changes))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
