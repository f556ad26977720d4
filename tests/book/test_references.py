"""A source that a docstring or a page names stands in the bibliography."""

import re

import pytest
from support.project import BOOK, ROOT

ENTRIES = re.findall(
    r"@\w+\{\w+,(.*?)\n\}", (BOOK / "references.bib").read_text(encoding="utf-8"), flags=re.DOTALL
)
# "Vaswani et al. 2017", "Junczys-Dowmunt et al. 2018", "Bahdanau, Cho and Bengio 2015"
SEVERAL = (
    r"(?<!-)\b([A-Z][a-z]+(?:-[A-Z][a-z]+)*)(?:, [A-Z][a-z]+)*"
    r"(?: et al\.| and others| (?:&|and) [A-Z][a-z]+)"
)
YEAR = r" ((?:19|20)\d\d)\b"
IN_DOCSTRINGS = re.compile(f"{SEVERAL}?{YEAR}")  # one author too: "Shazeer 2020"
IN_PROSE = re.compile(f"{SEVERAL}{YEAR}")
NAMED = sorted(
    {
        found
        for pattern, paths in (
            (IN_DOCSTRINGS, (ROOT / "package").rglob("*.py")),
            (IN_PROSE, BOOK.glob("*.ipynb")),
        )
        for path in paths
        for found in pattern.findall(" ".join(path.read_text(encoding="utf-8").split()))
    }
)


def plain(text: str) -> str:
    """Names as a docstring spells them: without TeX accents and braces."""
    return re.sub(r"\\['\"]?|[{}]", "", text)


def test_entries_are_complete():
    assert len(ENTRIES) >= 30
    for entry in ENTRIES:
        assert all(f"{field} = " in entry for field in ("author", "title", "year")), entry


@pytest.mark.parametrize(("author", "year"), NAMED)
def test_a_named_source_is_listed(author, year):
    found = [
        entry
        for entry in ENTRIES
        if plain(re.search(r"author = \{(.*?)[,}]", entry)[1]) == author
        and f"year = {{{year}}}" in entry
    ]
    assert len(found) >= 1, f"{author} {year} is in no entry of references.bib"
