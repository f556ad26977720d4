"""The public address stands in _config.yml; nothing else may contradict it."""

import re
from urllib.parse import urlsplit

import pytest
from support.project import BOOK, CHAPTERS, ROOT, book_config, pyproject, tracked_files

URL = book_config()["repository"]["url"]
BRANCH = book_config()["repository"]["branch"]
OWNER_AND_NAME = urlsplit(URL).path.strip("/")
# an address on GitHub or Colab that names a repository, wherever the text says one
ADDRESS = re.compile(r"(?:github\.com|research\.google\.com/github)/([\w.-]+/[\w.-]+)")
TEXT = {".py", ".md", ".ipynb", ".toml", ".yml", ".yaml", ".cff", ".html", ".css", ".svg", ""}


def addresses():
    """Each file with the repositories that it names; tests may use sample addresses."""
    for path in tracked_files():
        if path.suffix in TEXT and path.relative_to(ROOT).parts[0] != "tests":
            for match in ADDRESS.finditer(path.read_text(encoding="utf-8")):
                yield path.relative_to(ROOT).as_posix(), match[1].removesuffix(".git")


def test_every_address_is_ours():
    found = list(addresses())
    assert {"_config.yml", "pyproject.toml", "README.md", "CITATION.cff"} <= {f for f, _ in found}
    elsewhere = [(file, name) for file, name in found if name != OWNER_AND_NAME]
    # data sets of others have homes of their own, and so has what a chapter cites
    cited = {
        "bentrevett/pytorch-seq2seq",
        "cmusphinx/g2p-seq2seq",
        "huggingface/transformers",
        "keras-team/keras-io",
        "pytorch/pytorch",
    }
    assert {file for file, name in elsewhere if name not in cited} <= {
        "package/glassformer/data/multi30k.py"
    }


def test_the_package_metadata_point_there():
    urls = pyproject()["project"]["urls"]
    assert urls["Homepage"] == URL
    assert all(address.startswith(URL) for address in urls.values())


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_opens_itself_on_colab(path):
    text = path.read_text(encoding="utf-8")
    opened = re.findall(r"colab\.research\.google\.com/github/([^)\s\"\\]+)", text)
    here = path.relative_to(BOOK.parent).as_posix()
    assert set(opened) == {f"{OWNER_AND_NAME}/blob/{BRANCH}/{here}"}
    assert f"git+{URL}@{BRANCH}" in text
