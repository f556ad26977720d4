"""Bytes to lines of text, strictly.

Book: training
"""

from pathlib import Path

from glassformer.errors import DataError

__all__ = ["decode_lines", "read_bytes"]

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
    raw_lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if raw_lines[-1] == b"" and len(raw_lines) > 1:
        raw_lines.pop()
    return [_decode(line, name, number) for number, line in enumerate(raw_lines, start=1)]


def _decode(line: bytes, name: str | Path, number: int) -> str:
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
