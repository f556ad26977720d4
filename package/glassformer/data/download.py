"""Data sets that are not installed: where they lie, and how they get there.

Nothing here touches the network unless it is asked to. What arrives is checked against a recorded
SHA-256 and takes its name only when it is whole; what breaks off is taken up again.

Book: training
"""

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.errors import DataError

__all__ = ["RemoteFile", "data_root", "fetch"]

CHUNK = 1 << 16
TIMEOUT_S = 30.0


def data_root() -> Path:
    """Where downloaded data sets live: ``$GLASSFORMER_DATA``, or the user's cache folder.

    Book: training
    """
    chosen = os.environ.get("GLASSFORMER_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("glassformer"))


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set: its place below :func:`data_root`, its public home, its checksum.

    Args:
        data_set: name of the folder.
        name: name of the file in it.
        url: where to download it.
        sha256: of the whole file; ``None`` if it is not known, then only the length is checked.

    Book: training
    """

    data_set: str
    name: str
    url: str
    sha256: str | None = None

    @property
    def path(self) -> Path:
        """Where the file is, or will be."""
        return data_root() / self.data_set / self.name


def fetch(file: RemoteFile, *, download: bool = True) -> Path:
    """Give the path of a file of a data set; download it first if it is not there.

    The bytes go into ``<name>.part`` until all have arrived and their checksum is right. A
    download that broke off is resumed where it stopped, if the checksum is known (without one,
    nothing would tell whether two halves belong together). Of several processes that ask at once
    one downloads, and the others wait for it. A file that is there needs no network and no right
    to write.

    Args:
        file: what to get.
        download: whether the network may be used; ``False`` only looks and checks.

    Raises:
        DataError: the file is not there and ``download`` is ``False``, or the one that is there
            is another; the server cannot be reached, refuses or sends something else; the folder
            cannot be written.

    Book: training
    """
    path = file.path
    if path.is_file():
        return _checked(file, path)
    if not download:
        raise DataError(
            f"{path}: is not there, and nothing is downloaded without being asked; pass "
            f"download=True, {_by_hand(file)}, or point the environment variable "
            "GLASSFORMER_DATA at your data folder"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path):
            if not path.is_file():  # another process may have been faster
                _download(file, path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); point the environment "
            f"variable GLASSFORMER_DATA at a folder that you can write to, or {_by_hand(file)}"
        ) from error
    return _checked(file, path)


def _by_hand(file: RemoteFile) -> str:
    return f"get {file.url} by hand and put it at {file.path}"


def _checked(file: RemoteFile, path: Path) -> Path:
    if file.sha256 is not None:
        digest = hashlib.sha256()
        size = _add_file(digest, path)
        if digest.hexdigest() != file.sha256:
            raise DataError(
                f"{path}: {size} bytes that are not {file.data_set}/{file.name} as we know it "
                f"(SHA-256 {digest.hexdigest()[:12]}…, expected {file.sha256[:12]}…); delete or "
                "rename the file and call again with download=True"
            )
    return path


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold a lock that dies with its process, so that none is left behind by a crash."""
    from filelock import FileLock

    lock = path.with_name(path.name + ".lock")
    with FileLock(str(lock)):
        yield
        if path.is_file():  # nobody needs the lock any more
            with suppress(OSError):  # Windows lets nobody remove an open file
                lock.unlink()


def _download(file: RemoteFile, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    while True:
        resumed = file.sha256 is not None and part.is_file() and part.stat().st_size > 0
        digest = _receive(file, part, resume=resumed)
        if file.sha256 in (None, digest):
            part.replace(path)
            return
        part.unlink()
        if not resumed:
            raise DataError(
                f"{file.url}: what arrived has SHA-256 {digest[:12]}…, expected "
                f"{str(file.sha256)[:12]}…; the server has another file now, or something on the "
                f"way changed it: {_by_hand(file)}"
            )
        # the first half came from another file: begin again


def _receive(file: RemoteFile, part: Path, *, resume: bool) -> str:
    """Bring ``part`` to its full length on the disk; the SHA-256 of all of it."""
    digest = hashlib.sha256()
    have = _add_file(digest, part) if resume else 0
    if have and digest.hexdigest() == file.sha256:
        return digest.hexdigest()  # it only lacked its name
    response = _open(file, have)
    if response is None:  # the server has fewer bytes than we
        return digest.hexdigest()
    with response:
        if response.status != 206:  # all from the start: new, or a server that cannot resume
            have, digest = 0, hashlib.sha256()
        expected = int(response.headers.get("Content-Length") or -1)
        total = have + expected if expected >= 0 else None
        with part.open("ab" if have else "wb") as out, _progress(file.name, have, total) as show:
            for chunk in _chunks(response, file):
                out.write(chunk)
                digest.update(chunk)
                have += len(chunk)
                show(have)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and have != total:
        raise DataError(
            f"{file.url}: the connection broke after {have} of {total} bytes; call again to "
            f"{'resume' if file.sha256 else 'try again'}, or {_by_hand(file)}"
        )
    return digest.hexdigest()


def _open(file: RemoteFile, have: int) -> Any:
    """The server's answer from byte ``have`` on, or None if its file ends before that."""
    headers = {"User-Agent": "glassformer"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(file.url, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if have and error.code == 416:
            return None
        raise DataError(
            f"{file.url}: the server answered {error.code} ({error.reason}); {_by_hand(file)}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(file, error) from error


def _chunks(response: Any, file: RemoteFile) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(file, error) from error
        if not chunk:
            return
        yield chunk


def _unreachable(file: RemoteFile, error: Exception) -> DataError:
    reason = getattr(error, "reason", None) or error
    return DataError(
        f"{file.url}: cannot be reached ({reason}); connect to the network and call again, or "
        f"{_by_hand(file)}"
    )


def _add_file(digest: Any, path: Path) -> int:
    """Feed a file to a hash; its length."""
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size


@contextmanager
def _progress(name: str, start: int, total: int | None) -> Iterator[Any]:
    """A function that shows how many bytes there are: a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda have: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total, completed=start)
        yield lambda have: bar.update(task, completed=have)
