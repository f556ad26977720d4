"""Read text strictly, and split it into train, dev and test without leaks.

Book: training
"""

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glassformer.errors import DataError

__all__ = [
    "Corpus",
    "data_root",
    "load_text",
    "load_tiny_shakespeare",
    "read_lines",
    "split_lines",
    "split_of",
]

Split = Literal["train", "dev", "test"]

SAVE_AS_UTF_8 = "save the file as UTF-8, for example with: iconv -f"
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TINY_SHAKESPEARE_SOURCE = (
    "data/tinyshakespeare/input.txt of the GitHub repository karpathy/char-rnn"
)


@dataclass(frozen=True)
class Corpus:
    """Three disjoint parts of one text, each a tuple of lines in their original order.

    Book: training
    """

    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]


def read_lines(path: str | Path) -> list[str]:
    r"""Read a UTF-8 text file as a list of lines, or say exactly what is wrong with it.

    A line ends at ``\n`` or ``\r\n`` and nowhere else: ``str.splitlines`` also breaks at U+2028,
    U+0085, vertical tab and form feed, which shifts every line after it. A byte order mark at
    the start is dropped. A newline at the very end closes the last line, it does not open one.

    Raises:
        DataError: the file is missing, empty, not UTF-8 or holds a NUL character. The message
            names the file, and the line where there is one.

    Book: training
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); check the path") from error
    if not data:
        raise DataError(f"{path}: is empty; a text file needs at least one line")
    raw_lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if raw_lines[-1] == b"" and len(raw_lines) > 1:
        raw_lines.pop()
    return [_decode(line, path, number) for number, line in enumerate(raw_lines, start=1)]


def _decode(line: bytes, path: Path, number: int) -> str:
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        utf_16 = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise DataError(
            f"{path}, line {number}: byte 0x{byte:02x} at position {error.start} is not UTF-8; "
            f"{SAVE_AS_UTF_8} {'UTF-16' if utf_16 else 'LATIN1'} -t UTF-8"
        ) from error
    if "\x00" in text:
        raise DataError(
            f"{path}, line {number}: holds a NUL character, so it is UTF-16 or no text; "
            f"{SAVE_AS_UTF_8} UTF-16 -t UTF-8"
        )
    return text


def split_of(text: str) -> Split:
    """Say which part a text belongs to: about 90 % train, 5 % dev, 5 % test.

    The answer depends on the text alone (its SHA-256), so equal texts always land in the same
    part: no line of dev or test has a double in train, whatever the order or size of the corpus.

    Book: training
    """
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    bucket = int.from_bytes(digest[:8], "big") % 20
    return "dev" if bucket == 0 else "test" if bucket == 1 else "train"


def split_lines(lines: list[str]) -> Corpus:
    """Sort lines into a :class:`Corpus` by :func:`split_of`, keeping their order. Book: training"""
    parts: dict[Split, list[str]] = {"train": [], "dev": [], "test": []}
    for line in lines:
        parts[split_of(line)].append(line)
    return Corpus(**{name: tuple(part) for name, part in parts.items()})


def load_text(path: str | Path) -> Corpus:
    """Read any UTF-8 text file and split it line by line; blank lines are dropped.

    Raises:
        DataError: the file cannot be read (see :func:`read_lines`), or has so few distinct
            lines that a part stays empty.

    Book: training
    """
    lines = [line for line in read_lines(path) if line.strip()]
    corpus = split_lines(lines)
    if not (corpus.train and corpus.dev and corpus.test):
        raise DataError(
            f"{path}: {len(set(lines))} distinct lines gave {len(corpus.train)} for train, "
            f"{len(corpus.dev)} for dev and {len(corpus.test)} for test, and each part needs one; "
            "use a text of 200 lines or more, or break its paragraphs into lines"
        )
    return corpus


def data_root() -> Path:
    """Where downloaded data sets live: ``$GLASSFORMER_DATA``, or the user's cache folder.

    Book: training
    """
    chosen = os.environ.get("GLASSFORMER_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("glassformer"))


def load_tiny_shakespeare() -> Corpus:
    """Tiny Shakespeare with its customary split, so that losses compare with published ones.

    ``train`` is the first 90 % of the characters and ``dev`` the rest, both cut into lines (blank
    ones kept): joining them with newlines gives the exact text back. There is no test part.

    Raises:
        DataError: the file is not at ``<data_root()>/tinyshakespeare/input.txt``, or is another.

    Book: training
    """
    return _tiny_shakespeare(data_root() / "tinyshakespeare" / "input.txt")


@functools.lru_cache(maxsize=1)
def _tiny_shakespeare(path: Path) -> Corpus:
    if not path.is_file():
        raise DataError(
            f"{path}: Tiny Shakespeare is not there; get {TINY_SHAKESPEARE_SOURCE} and put it "
            "there, or point the environment variable GLASSFORMER_DATA at your data folder"
        )
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != TINY_SHAKESPEARE_SHA256:
        raise DataError(
            f"{path}: {len(data)} bytes that are not Tiny Shakespeare (SHA-256 differs); delete "
            f"the file and get {TINY_SHAKESPEARE_SOURCE} again"
        )
    text = data.decode("utf-8")
    cut = len(text) * 9 // 10
    return Corpus(tuple(text[:cut].split("\n")), tuple(text[cut:].split("\n")), ())
