"""Bytes to lines of text and to pairs of them, strictly.

Book: training
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from glassformer.errors import DataError

__all__ = ["Pair", "PairsRead", "decode_lines", "parse_tsv", "read_bytes", "without_empty"]

Pair = tuple[str, str]
"""A source and its target."""

SAVE_AS_UTF_8 = "save the file as UTF-8, for example with: iconv -f"


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        DataError: the file cannot be read.

    Book: training
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); check the path") from error


def decode_lines(data: bytes, name: str | Path) -> list[str]:
    r"""Cut bytes at ``\n`` and ``\r\n``, and nowhere else, and decode each line as UTF-8.

    Args:
        data: the content of a text file.
        name: what to call it in messages.

    Raises:
        DataError: ``data`` is empty, not UTF-8 or holds a NUL character.

    Book: training
    """
    if not data:
        raise DataError(f"{name}: is empty; a text file needs at least one line")
    data = data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\x00"  # as bad as a NUL: find the line
    if "\x00" in text:
        return [_decode(line, name, number) for number, line in enumerate(data.split(b"\n"), 1)]
    return [line.removesuffix("\r") for line in text.split("\n")]


def _decode(line: bytes, name: str | Path, number: int) -> str:
    """The text of one line, or an error that says where and why it has none."""
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        utf_16 = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise DataError(
            f"{name}, line {number}: byte 0x{byte:02x} at position {error.start} is not UTF-8; "
            f"{SAVE_AS_UTF_8} {'UTF-16' if utf_16 else 'LATIN1'} -t UTF-8"
        ) from error
    if "\x00" in text:
        raise DataError(
            f"{name}, line {number}: holds a NUL character, so it is UTF-16 or no text; "
            f"{SAVE_AS_UTF_8} UTF-16 -t UTF-8"
        )
    return text


class PairsRead(NamedTuple):
    """What a reader found: the pairs, and how many it dropped because a side was empty.

    Book: translation
    """

    pairs: list[Pair]
    n_empty: int


def parse_tsv(data: bytes, name: str | Path, *, columns: tuple[int, int]) -> PairsRead:
    """Pairs from two tab-separated columns of the bytes of a file called ``name``.

    Raises:
        DataError: a line has too few columns, or the bytes are no text.

    Book: translation
    """
    source, target = columns
    if min(columns) < 0 or source == target:
        raise DataError(f"columns={columns} must be two different ones, counted from 0")
    needed = max(columns) + 1
    pairs = []
    for number, line in enumerate(decode_lines(data, name), start=1):
        row = line.split("\t") if line else [""] * needed
        if len(row) < needed:
            raise DataError(
                f"{name}, line {number}: has {len(row)} column(s) and columns={columns} needs "
                f"{needed}; separate the columns with one tab"
            )
        pairs.append((row[source], row[target]))
    return without_empty(pairs)


def without_empty(pairs: Iterable[Pair]) -> PairsRead:
    """The pairs that have text on both sides, and how many have not. Book: translation"""
    kept, n_empty = [], 0
    for source, target in pairs:
        if source.strip() and target.strip():
            kept.append((source, target))
        else:
            n_empty += 1
    return PairsRead(kept, n_empty)
