"""Read text strictly, and split it into train, dev and test without leaks.

Book: training
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from glassformer.data._lines import decode_lines, read_bytes
from glassformer.data._splits import Split
from glassformer.data.download import RemoteFile, fetch
from glassformer.errors import DataError

__all__ = [
    "Corpus",
    "load_text",
    "load_tiny_shakespeare",
    "read_lines",
    "split_lines",
    "split_of",
]

TINY_SHAKESPEARE = RemoteFile(
    "tinyshakespeare",
    "input.txt",
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
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
    return decode_lines(read_bytes(path), path)


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


def load_tiny_shakespeare(*, download: bool = False) -> Corpus:
    """Tiny Shakespeare with its customary split, so that losses compare with published ones.

    ``train`` is the first 90 % of the characters and ``dev`` the rest, both cut into lines (blank
    ones kept): joining them with newlines gives the exact text back. There is no test part.

    Args:
        download: get the file (1.1 MB) from the repository karpathy/char-rnn if it is not at
            ``<data_root()>/tinyshakespeare/input.txt``.

    Raises:
        DataError: the file is not there, cannot be downloaded, or is another.

    Book: training
    """
    return _tiny_shakespeare(fetch(TINY_SHAKESPEARE, download=download))


@functools.lru_cache(maxsize=1)
def _tiny_shakespeare(path: Path) -> Corpus:
    text = read_bytes(path).decode("utf-8")
    cut = len(text) * 9 // 10
    return Corpus(tuple(text[:cut].split("\n")), tuple(text[cut:].split("\n")), ())
