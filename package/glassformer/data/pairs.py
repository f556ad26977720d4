"""Parallel text: two sides, line by line, split so that no source sentence is in two parts.

Book: translation
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassformer.data._lines import Pair, PairsRead, parse_tsv, read_bytes, without_empty
from glassformer.data._splits import Split
from glassformer.data.text import read_lines, split_of
from glassformer.errors import DataError

__all__ = [
    "ParallelCorpus",
    "load_pairs",
    "load_tsv",
    "read_pairs",
    "read_tsv",
    "split_pairs",
]


@dataclass(frozen=True)
class ParallelCorpus:
    """Three parts of a parallel text, each a tuple of (source, target) in the original order.

    No source sentence of one part is in another.

    Book: translation
    """

    train: tuple[Pair, ...]
    dev: tuple[Pair, ...]
    test: tuple[Pair, ...]
    n_empty: int = 0
    """Pairs left out because one side, or both, had no text."""
    n_shared: int = 0
    """Pairs left out because another part has their source: test goes before dev before train."""
    attribution: str = ""
    """Whom to name, and under which licence, wherever the text is passed on."""

    @classmethod
    def disjoint(
        cls,
        train: Sequence[Pair],
        dev: Sequence[Pair],
        test: Sequence[Pair],
        *,
        n_empty: int = 0,
        attribution: str = "",
    ) -> "ParallelCorpus":
        """Given parts, without the pairs of a lower part whose source a higher one has too."""
        in_test = {source for source, _ in test}
        in_dev = {source for source, _ in dev}
        kept_dev = tuple(pair for pair in dev if pair[0] not in in_test)
        kept_train = tuple(
            pair for pair in train if pair[0] not in in_test and pair[0] not in in_dev
        )
        n_shared = len(dev) - len(kept_dev) + len(train) - len(kept_train)
        return cls(kept_train, kept_dev, tuple(test), n_empty, n_shared, attribution)

    @property
    def n_dropped(self) -> int:
        """All pairs that were left out."""
        return self.n_empty + self.n_shared


def read_pairs(source_path: str | Path, target_path: str | Path) -> PairsRead:
    r"""Read two text files whose lines belong together; both are UTF-8 (see ``read_lines``).

    A pair with an empty side is dropped on both sides and counted. Empty lines that only one of
    the files has at its end belong to nothing and are ignored.

    Raises:
        DataError: a file cannot be read, or they have different numbers of lines.

    Book: translation
    """
    sources, targets = read_lines(source_path), read_lines(target_path)
    n_source, n_target = len(sources), len(targets)
    for longer, shorter in ((sources, targets), (targets, sources)):
        while len(longer) > len(shorter) and not longer[-1].strip():
            longer.pop()
    if len(sources) != len(targets):
        raise DataError(
            f"{source_path} has {n_source} lines and {target_path} has {n_target}; line n of one "
            "must translate line n of the other: find where they part, and give both the same "
            "number"
        )
    return without_empty(zip(sources, targets, strict=True))


def read_tsv(path: str | Path, *, columns: tuple[int, int] = (0, 1)) -> PairsRead:
    """Read pairs from the tab-separated columns of one UTF-8 file.

    A pair with an empty side is dropped and counted, and so is an empty line.

    Args:
        path: the file. It has no header; columns that are not asked for may hold anything.
        columns: which ones hold source and target, counted from 0.

    Raises:
        DataError: the file cannot be read, or a line has too few columns.

    Book: translation
    """
    path = Path(path)
    return parse_tsv(read_bytes(path), path, columns=columns)


def split_pairs(
    pairs: Sequence[Pair],
    part_of: Callable[[Pair], Split],
    *,
    n_empty: int = 0,
    attribution: str = "",
) -> ParallelCorpus:
    """Sort pairs into the parts of a :class:`ParallelCorpus`, whatever ``part_of`` goes by.

    If one source got into several parts (it can, where ``part_of`` looks at the target), it stays
    in ``test``, else in ``dev``; its other pairs are dropped and counted in ``n_shared``.

    Book: translation
    """
    parts: dict[Split, list[Pair]] = {"train": [], "dev": [], "test": []}
    for pair in pairs:
        parts[part_of(pair)].append(pair)
    return ParallelCorpus.disjoint(**parts, n_empty=n_empty, attribution=attribution)


def load_pairs(source_path: str | Path, target_path: str | Path) -> ParallelCorpus:
    """Read two text files whose lines belong together, and split them by the source sentence.

    Which part a pair is in depends on its source alone (see :func:`split_of`). Files that are
    split already are read with :func:`read_pairs` and put together by
    :meth:`ParallelCorpus.disjoint`.

    Raises:
        DataError: the files cannot be read, do not match (see :func:`read_pairs`), or have so few
            distinct sources that a part stays empty.

    Book: translation
    """
    return _split_by_source(read_pairs(source_path, target_path), f"{source_path}, {target_path}")


def load_tsv(path: str | Path, *, columns: tuple[int, int] = (0, 1)) -> ParallelCorpus:
    """Read pairs from a tab-separated file, and split them by the source sentence.

    Args:
        path: the file (see :func:`read_tsv`).
        columns: which ones hold source and target, counted from 0.

    Raises:
        DataError: the file cannot be read (see :func:`read_tsv`), or has so few distinct sources
            that a part stays empty.

    Book: translation
    """
    return _split_by_source(read_tsv(path, columns=columns), str(path))


def _split_by_source(read: PairsRead, name: str) -> ParallelCorpus:
    corpus = split_pairs(read.pairs, lambda pair: split_of(pair[0]), n_empty=read.n_empty)
    if not (corpus.train and corpus.dev and corpus.test):
        raise DataError(
            f"{name}: {len(read.pairs)} pairs gave {len(corpus.train)} for train, "
            f"{len(corpus.dev)} for dev and {len(corpus.test)} for test, and each part needs one; "
            "use a text of 200 pairs or more"
        )
    return corpus
