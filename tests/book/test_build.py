"""The built site: no warning, no dead link, no foreign host, nothing without words."""

import inspect
import json
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
import yaml
from glassformer.lab.ledger import rows
from glassformer.lab.record import CELL_TIMEOUT, record
from glassformer.lab.source import doors
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from support.project import BOOK, CHAPTERS, ROOT, book_config
from support.site import Site, build, site

__all__ = ["site"]

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
# what a reader may be sent to by a click; nothing is ever loaded from there
LINKED = {
    "github.com",
    "colab.research.google.com",
    "creativecommons.org",
    "docs.pytorch.org",
    "tatoeba.org",
}


def test_the_build_is_silent(site: Site):
    loud = [line for line in site.log.splitlines() if re.search(r"WARNING|ERROR", line)]
    assert (site.returncode, loud) == (0, []), site.log[-3000:]


def test_every_listed_page_is_there(site: Site):
    listed = re.findall(r"(?:file|root): (\S+)", (ROOT / "_toc.yml").read_text(encoding="utf-8"))
    assert len(listed) > 15
    assert [name for name in listed if not (site.html / f"{name}.html").exists()] == []
    assert {path.stem for path in CHAPTERS} <= {name.removeprefix("book/") for name in listed}


def test_every_internal_link_leads_somewhere(site: Site):
    anchors = {
        page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in site.pages.items()
    }
    dead, seen = [], 0
    for page, soup in site.pages.items():
        for tag in soup.find_all(["a", "link", "img", "script"]):
            link = tag.get("href") or tag.get("src") or ""
            if (
                not link
                or urlsplit(link).scheme
                or link.startswith("//")
                or page.name == "404.html"
            ):
                continue
            seen += 1
            file, fragment = site.target(page, link)
            file = file / "index.html" if file.is_dir() else file
            known = anchors.get(file)
            if not file.exists() or (fragment and known is not None and fragment not in known):
                dead.append(f"{page.relative_to(site.html)}: {link}")
    assert seen > 500
    assert dead == []


def test_nothing_is_loaded_from_another_host(site: Site):
    foreign = []
    for page, soup in site.pages.items():
        loaded = [tag.get(LOADS[tag.name], "") for tag in soup.find_all(list(LOADS))]
        loaded += [
            tag.get("href", "")
            for tag in soup.find_all("link")
            if not {"canonical", "search", "index", "next", "prev"} & set(tag.get("rel", []))
        ]
        loaded += re.findall(r"url\(['\"]?([^'\")]+)", str(soup))
        loaded += re.findall(r"@import\s+['\"]([^'\"]+)", str(soup))
        foreign += [(page.name, link) for link in loaded if re.match(r"(https?:)?//", link)]
    for sheet in site.html.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        foreign += [
            (sheet.name, link) for link in re.findall(r"url\(['\"]?((?:https?:)?//[^'\")]+)", text)
        ]
    assert foreign == []


def test_links_out_go_where_we_know(site: Site):
    hosts = {
        urlsplit(tag["href"]).hostname
        for soup in site.pages.values()
        for tag in soup.find_all("a", href=re.compile("^(https?:)?//"))
    }
    theme = {"sphinx-doc.org", "jupyterbook.org", "ebp.jupyterbook.org"}
    assert hosts - LINKED - theme == set()


def test_every_picture_has_words(site: Site):
    bare = [
        (page.name, tag.get("src", "")[:60])
        for page, soup in site.pages.items()
        for tag in soup.find_all("img")
        if not tag.get("alt", "").strip() or re.search(r"_images/|\.(svg|png)$", tag["alt"])
    ]
    assert bare == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_its_buttons(site: Site, path):
    repository = book_config()["repository"]
    name = f"book/{path.name}"
    links = {tag["href"] for tag in site.page(f"book/{path.stem}").find_all("a", href=True)}
    owner = urlsplit(repository["url"]).path
    branch = repository["branch"]
    assert f"https://colab.research.google.com/github{owner}/blob/{branch}/{name}" in links
    assert repository["url"] in links
    assert any(link.endswith(f"_sources/{name}") for link in links)


def test_every_explained_object_has_its_place_in_the_reference(site: Site):
    """Chapters link to objects by one rule; the page and the anchor must be there."""
    missing = []
    for door in doors():
        page = site.page(f"book/api/{door.name.split('.')[1]}")
        if page.find(id=door.name) is None:
            missing.append(door.name)
    assert doors()
    assert missing == []


def test_the_reference_links_back_to_chapters(site: Site):
    written = {path.stem for path in CHAPTERS}
    for door in doors():
        entry = site.page(f"book/api/{door.name.split('.')[1]}").find(id=door.name).parent
        links = {tag["href"].split("/")[-1] for tag in entry.find_all("a", href=True)}
        wanted = {f"{name}.html" for name in door.chapters if name in written}
        assert wanted <= links, door.name


def test_home_lists_every_chapter_and_links_the_written_ones(site: Site):
    parts = yaml.safe_load((BOOK / "chapters.yaml").read_text(encoding="utf-8"))
    planned = {c["slug"]: c["title"] for part in parts for c in part["chapters"]}
    home = site.page("book/index")
    table = home.find(class_="chapters")
    links = {tag["href"] for tag in table.find_all("a", href=True)}
    assert links == {f"{path.stem}.html" for path in CHAPTERS}
    assert [title for title in planned.values() if title not in table.get_text()] == []


def test_the_ledger_shows_every_claim_and_links_every_trial(site: Site):
    claims = yaml.safe_load((BOOK / "claims.yaml").read_text(encoding="utf-8"))
    ledger = site.page("book/ledger")
    shown = [tag.get_text() for tag in ledger.find_all(class_="claim-id")]
    assert sorted(shown) == sorted(claim["id"] for claim in claims)
    tried = {tag["href"] for tag in ledger.find_all("a", class_="claim-id")}
    stored, n_figures = set(), 0
    for path in CHAPTERS:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                trial = output.get("data", {}).get("application/vnd.glassformer.trial+json")
                if trial:
                    stored.add(f"{path.stem}.html#trial-{trial['id']}")
                    n_figures += bool(trial.get("measured"))
    assert tried == stored
    assert len(ledger.select(".ledger small")) == n_figures  # the figures beside the verdict
    folded = [tag.get_text() for tag in ledger.select(".ledger details")]
    assert len(folded) == len(stored)
    assert all(text.startswith("criterion") and len(text) > 30 for text in folded)


def test_what_does_not_hold_is_listed_first_on_the_ledger(site: Site):
    refuted = {row.link for row in rows(BOOK) if row.verdict == "does not hold"}
    links = site.page("book/ledger").select(".refuted a")
    assert {tag["href"] for tag in links} == refuted
    assert refuted


def test_the_glossary_is_bilingual(site: Site):
    terms = [tag.find(string=True) for tag in site.page("book/glossary").select("dl.glossary dt")]
    assert len(terms) >= 60
    assert len(set(terms)) == len(terms)
    assert [term for term in terms if not re.search(r"^\S.* · .*[\u4e00-\u9fff]", term)] == []


def test_mathjax_is_only_where_a_formula_is(site: Site):
    for page, soup in site.pages.items():
        loads = any("mathjax" in tag.get("src", "") for tag in soup.find_all("script"))
        assert loads == bool(soup.select(".math")), page.name


def test_files_beside_the_pages(site: Site):
    assert (site.html / ".nojekyll").exists()
    assert (site.html / "mathjax/tex-chtml-full.js").stat().st_size > 1_000_000
    size = sum(path.stat().st_size for path in (site.html / "mathjax").rglob("*"))
    assert size < 3_000_000
    base = f"/{urlsplit(book_config()['repository']['url']).path.split('/')[-1]}/"
    assert f'href="{base}"' in (site.html / "404.html").read_text(encoding="utf-8")


def test_N06_a_broken_page_and_a_failed_cell_fail_the_build_and_are_named(tmp_path: Path):
    """The same builder, config and extension, with three pages of which two are broken."""
    for name in ("_ext", "_static", "references.bib", "chapters.yaml", "claims.yaml"):
        copy = shutil.copytree if (BOOK / name).is_dir() else shutil.copy
        (tmp_path / "book").mkdir(exist_ok=True)
        copy(BOOK / name, tmp_path / "book" / name)
    shutil.copy(ROOT / "_config.yml", tmp_path)
    pages = ["book/broken", "book/failed"]
    toc = {"format": "jb-book", "root": "book/index", "chapters": [{"file": p} for p in pages]}
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(toc))
    (tmp_path / "book/index.md").write_text("# Fine\n")
    (tmp_path / "book/broken.md").write_text("# Broken\n\n{ref}`nothing-has-this-name`\n")
    error = new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])
    cells = [
        new_markdown_cell("# Failed", id="title"),
        new_code_cell("1 / 0", id="divide", outputs=[error], execution_count=1),
    ]
    language = {"name": "python", "pygments_lexer": "ipython3"}
    failed = nbformat.v4.new_notebook(cells=cells, metadata={"language_info": language})
    (tmp_path / "book/failed.ipynb").write_text(nbformat.writes(failed))
    log, returncode = build(tmp_path, tmp_path / "out")
    assert returncode != 0
    warnings = [line for line in log.splitlines() if "WARNING" in line]
    assert len(warnings) == 2, log[-3000:]
    assert any("broken.md" in line and "nothing-has-this-name" in line for line in warnings)
    assert any(
        "failed.ipynb" in line and "cell divide failed" in line and "ZeroDivisionError" in line
        for line in warnings
    )


def test_N06_no_cell_is_cut_off_after_30_seconds():
    """Recording, tests and CI name their own limit, and a site builds from what they stored."""
    assert CELL_TIMEOUT == inspect.signature(record).parameters["timeout"].default >= 120
    limits = []
    for name in ("Makefile", ".github/workflows/test.yml"):
        limits += re.findall(r"--nbval-cell-timeout[ =](\d+)", (ROOT / name).read_text())
    assert limits
    assert min(map(int, limits)) >= 120
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert config["execute"] == {"execute_notebooks": "off"}
