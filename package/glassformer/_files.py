"""Files that are written whole or not at all, and read with an error that names them.

Book: training
"""

import json
import os
import secrets
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.errors import CheckpointError

__all__ = [
    "existing_folder",
    "read_file",
    "read_json",
    "read_tensors",
    "replace_folder",
    "to_json",
    "to_safetensors",
    "write_whole",
]

COPY_AGAIN = "copy the whole folder again"


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file in one step: before it the old content is there, after it the new.

    The new content waits beside it under a name of its own, so that two writers never meet; on any
    error, such as a full disk, it is removed and the old content stays.

    Book: training
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        _write_synced(partial, data)
        if path.exists():
            partial.chmod(path.stat().st_mode)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def replace_folder(
    folder: str | Path, files: Mapping[str, bytes], *, known: Collection[str]
) -> None:
    """Make ``folder`` hold exactly ``files``: all of the old ones before, all of the new after.

    The new files are written into a folder beside it and forced onto the disk. Then the old
    folder steps aside and the new one takes its name. If the process dies between these two
    moves, the old one is complete beside the empty place, where :func:`existing_folder` finds it.

    Args:
        folder: where; made with its parents if missing.
        files: names and contents.
        known: names that may be replaced. Any other file in ``folder`` is somebody's own.

    Raises:
        CheckpointError: ``folder`` holds a file that is not ``known``, is the current folder, or
            cannot be written.

    Book: training
    """
    folder = Path(folder).resolve()
    new, old = _beside(folder, "new"), _beside(folder, "old")
    try:
        _refuse_foreign(folder, known)
        _remove(new)  # left behind by a write that never ended
        new.mkdir(parents=True)
        for name, data in files.items():
            _write_synced(new / name, data)
        _sync(new)
        if folder.exists():
            _remove(old)
            folder.rename(old)
        new.rename(folder)
        _sync(folder.parent)
        _remove(old)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)  # the disk may be full
        raise CheckpointError(
            f"{folder}: cannot be written ({error.strerror or error}); the checkpoint before is "
            "untouched; free some space, stop any other run into it, or give another folder"
        ) from error


def existing_folder(folder: str | Path) -> Path:
    """The folder, or the one that had stepped aside when its replacement was interrupted.

    Raises:
        CheckpointError: there is neither.

    Book: training
    """
    folder = Path(folder).resolve()
    for path in (folder, _beside(folder, "old")):
        if path.is_dir():
            return path
    raise CheckpointError(f"{folder}: no such folder; give the folder of a checkpoint")


def to_json(data: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON file for people. Book: training"""
    return (json.dumps(data, indent=2) + "\n").encode()


def to_safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file. Book: training"""
    import safetensors.torch

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain, metadata)


def read_file(path: Path, *, remedy: str = COPY_AGAIN) -> bytes:
    """The bytes of a file.

    Raises:
        CheckpointError: it cannot be read.

    Book: training
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error


def read_json(path: Path, data: bytes, *, remedy: str = COPY_AGAIN) -> dict[str, Any]:
    """The object in the bytes of a JSON file.

    Raises:
        CheckpointError: they hold something else.

    Book: training
    """
    try:
        found = json.loads(data)
    except ValueError as error:
        raise CheckpointError(f"{path}: no JSON ({error}); {remedy}") from error
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path}: holds {type(found).__name__} instead of an object; {remedy}"
        )
    return found


def read_tensors(
    path: Path, data: bytes | None = None, *, remedy: str = COPY_AGAIN
) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, or of its bytes where they have been read.

    Raises:
        CheckpointError: it is no such file.

    Book: training
    """
    import safetensors.torch

    try:
        if data is None:
            return safetensors.torch.load_file(path)
        return safetensors.torch.load(data)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: no safetensors ({error}); {remedy}") from error


def _beside(folder: Path, what: str) -> Path:
    return folder.parent / f".{folder.name}.{what}"


def _refuse_foreign(folder: Path, known: Collection[str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file; give a new or empty folder")
    if folder in (here := Path.cwd(), *here.parents):
        raise CheckpointError(
            f"{folder}: is the current folder or above it, and saving replaces it as a whole; "
            "change to another folder first, for example with: cd .."
        )
    foreign = (
        sorted(p.name for p in folder.iterdir() if p.name not in known) if folder.exists() else []
    )
    if foreign:
        raise CheckpointError(
            f"{folder}: holds {', '.join(foreign[:3])}, which would be lost; give a new or empty "
            "folder"
        )


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Force the names in a folder onto the disk, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
