"""One run, one folder.

Book: training
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.errors import CheckpointError
from glassformer.training._ranks import rank

__all__ = ["sole_run"]


@contextmanager
def sole_run(folder: str | Path) -> Iterator[None]:
    """Keep a folder to this process for as long as the block lasts.

    Two runs that save into one folder would replace each other's checkpoints. The lock is the
    operating system's: it ends with the process, however that ends. Where files cannot be locked
    (Windows, some network drives), nothing is checked. Of several processes that train together
    the first one holds it.

    Args:
        folder: of the checkpoints. The lock is a file beside it, gone at the end of the block.

    Raises:
        CheckpointError: another run holds the folder, or the lock cannot be written.

    Book: training
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    if rank():  # the first of several processes that train together is the one that writes
        yield
        return
    folder = Path(folder).resolve()
    path = folder.parent / f".{folder.name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror}); give another folder"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(path.stat(), os.fstat(file.fileno()))
        except (BlockingIOError, FileNotFoundError):
            ours = False
        except OSError:  # a filesystem without locks
            ours = True
        if not ours:  # somebody holds it, or has just taken the file away
            raise CheckpointError(
                f"{folder}: another run saves into it; wait for its end, or give another folder"
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
