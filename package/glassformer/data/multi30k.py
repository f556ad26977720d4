"""Multi30k: captions of photographs, in English and German; for comparison with published scores.

Source: Elliott et al., "Multi30K: Multilingual English-German Image Descriptions", 2016.

Book: translation
"""

import gzip
import zlib
from pathlib import Path
from typing import Literal

from glassformer.data._lines import Pair, decode_lines
from glassformer.data.download import RemoteFile, fetch
from glassformer.data.pairs import ParallelCorpus
from glassformer.errors import DataError

__all__ = ["load_multi30k"]

HOME = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
TERMS = (
    'its maintainers give it out under the terms of Flickr30k: "solely provided for researchers '
    "and educators who wish to use the dataset for non-commercial research and/or educational "
    'purposes" (https://github.com/multi30k/dataset)'
)
# what the maintainers publish; they publish no checksums
N_LINES = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}


def load_multi30k(
    *,
    source: Literal["de", "en"] = "de",
    accept_terms: bool = False,
    download: bool = False,
) -> ParallelCorpus:
    """Captions in their published parts: 29,000 train, 1,014 dev, 1,000 test (2016, Flickr).

    Test and dev are the published ones. A training caption whose source is word for word in dev
    or test is left out and counted in ``n_shared``, and so is one of dev that is in test.

    The files have no published checksum: what is checked is the checksum that each carries
    itself (gzip) and its number of lines.

    Args:
        source: the language to translate from.
        accept_terms: whether you may use the data under its terms; without it the terms are
            shown as an error.
        download: get the six files (1.8 MB) if they are not in :func:`data_root`.

    Raises:
        DataError: the terms are not accepted, another language, or a file is not there, cannot be
            downloaded, or is damaged.

    Book: translation
    """
    if not accept_terms:
        raise DataError(
            f"Multi30k may not be free for your purpose: {TERMS}; if yours is one of these, pass "
            "accept_terms=True"
        )
    if source not in ("de", "en"):
        raise DataError(f"source={source!r} must be 'de' or 'en'")
    target = "en" if source == "de" else "de"
    train, dev, test = (_read(part, source, target, download) for part in N_LINES)
    return ParallelCorpus.disjoint(
        train,
        dev,
        test,
        attribution=f"Multi30k (Elliott et al. 2016); {TERMS}. Not to be passed on.",
    )


def _read(part: str, source: str, target: str, download: bool) -> list[Pair]:
    sides = []
    for language in (source, target):
        name = f"{part}.{language}.gz"
        path = fetch(RemoteFile("multi30k", name, HOME + name), download=download)
        sides.append(_lines(path, N_LINES[part]))
    return list(zip(*sides, strict=True))


def _lines(path: Path, expected: int) -> list[str]:
    try:
        lines = decode_lines(gzip.decompress(path.read_bytes()), path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: is damaged ({error}); delete the file and call again with download=True"
        ) from error
    if len(lines) != expected:
        raise DataError(
            f"{path}: has {len(lines)} lines, and the published file has {expected}; delete it "
            "and call again with download=True"
        )
    return lines
