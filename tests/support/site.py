"""The site, built once a test run from what is in the tree, with warnings as errors."""

import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup
from filelock import FileLock
from support.project import ROOT

__all__ = ["Site", "build", "site"]


@dataclass(frozen=True)
class Site:
    """A built site and what the builder said."""

    html: Path
    log: str
    returncode: int

    @cached_property
    def pages(self) -> dict[Path, BeautifulSoup]:
        """Every page, parsed. Copies of the source code are left out."""
        found = (p for p in sorted(self.html.rglob("*.html")) if "_modules" not in p.parts)
        return {p: BeautifulSoup(p.read_text(encoding="utf-8"), "html.parser") for p in found}

    def page(self, name: str) -> BeautifulSoup:
        """One page by its path without suffix, such as ``book/index``."""
        return self.pages[self.html / f"{name}.html"]

    def target(self, page: Path, link: str) -> tuple[Path, str]:
        """The file and the fragment that a relative link of a page leads to."""
        path, _, fragment = link.partition("#")
        file = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
        return file, unquote(fragment)


def build(source: Path, out: Path) -> tuple[str, int]:
    """Build a site as `make book` does; what the builder said, and its exit code."""
    command = ["jupyter-book", "build", ".", "-W", "--keep-going", "--path-output", out]
    done = subprocess.run(
        [Path(sys.executable).with_name(command[0]), *command[1:]],
        cwd=source,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout, done.returncode


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Site:
    """Build the site; with several workers the first one builds and the others wait."""
    base = tmp_path_factory.getbasetemp()
    folder = base if worker_id == "master" else base.parent
    out, log = folder / "site", folder / "site.log"
    with FileLock(folder / "site.lock"):
        if not log.exists():
            said, returncode = build(ROOT, out)
            log.write_text(f"{returncode}\n{said}", encoding="utf-8")
    code, _, said = log.read_text(encoding="utf-8").partition("\n")
    return Site(out / "_build/html", said, int(code))
