"""The site in a real browser: what a reader sees and touches.

Needs Chromium or Chrome (Debian: ``apt-get install chromium``).
"""

import functools
import html
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import nbformat
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from support.project import CHAPTERS
from support.site import Site, site

__all__ = ["site"]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
]
PAGES = ["index", *(path.stem for path in CHAPTERS), "ledger", "glossary", "notation", "api/nn"]
PHONE = {"width": 375, "height": 812}
DESK = {"width": 1280, "height": 900}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome on this machine")


class _Pages(SimpleHTTPRequestHandler):
    """Static files, and 404.html for what is missing, as GitHub Pages does it."""

    def log_message(self, *args: object) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        with open(f"{self.directory}/404.html", "rb") as file:  # noqa: PTH123 - a served path
            body = file.read()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    handler = functools.partial(_Pages, directory=str(site.html))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


class Visit:
    """A page with everything that went over the wire and everything that went wrong."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.requested: list[str] = []
        self.trouble: list[str] = []
        page.on("request", lambda request: self.requested.append(request.url))
        page.on("requestfailed", lambda request: self.trouble.append(f"failed: {request.url}"))
        page.on("response", self._response)
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("console", self._console)

    def _response(self, response) -> None:
        if response.status >= 400:
            self.trouble.append(f"{response.status}: {response.url}")

    def _console(self, message) -> None:
        if message.type == "error":
            self.trouble.append(f"console: {message.text}")

    def open(self, name: str) -> Page:
        self.page.goto(f"{self.address}/book/{name}.html")
        self.page.wait_for_load_state("networkidle")
        return self.page

    @property
    def foreign(self) -> list[str]:
        own = (self.address, "data:", "blob:")
        return [url for url in self.requested if not url.startswith(own)]


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    context = browser.new_context(viewport=DESK, color_scheme="light")
    yield Visit(context.new_page(), address)
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_whole_and_alone(visit: Visit, name: str):
    page = visit.open(name)
    page.mouse.wheel(0, 20_000)
    page.wait_for_load_state("networkidle")
    assert visit.trouble == []
    assert visit.foreign == []
    images = page.locator(".bd-article img")
    for number in range(images.count()):
        image = images.nth(number)
        image.scroll_into_view_if_needed()
        width = "image => image.decode().then(() => image.naturalWidth)"
        assert image.evaluate(width) > 0


@pytest.mark.parametrize("name", [*(path.stem for path in CHAPTERS), "notation"])
def test_every_formula_is_rendered(visit: Visit, name: str):
    page = visit.open(name)
    page.wait_for_function("window.MathJax?.startup?.promise")
    page.evaluate("MathJax.startup.promise")
    formulas = page.locator(".bd-article .math")
    assert formulas.count() > 3
    assert page.locator("mjx-container").count() >= formulas.count()
    assert page.locator("mjx-merror").count() == 0


def test_search_finds_a_word(visit: Visit):
    page = visit.open("index")
    page.keyboard.press("Control+k")
    page.locator("#pst-search-dialog input[type=search]").fill("softmax")
    page.keyboard.press("Enter")
    page.locator('#search-results a[href*="glossary"]').first.wait_for()
    assert page.locator("#search-results li").count() >= 2
    assert visit.trouble == []
    assert visit.foreign == []


def test_the_theme_button_makes_the_page_dark(visit: Visit):
    page = visit.open("index")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    for _ in range(2):  # auto, light, dark in some order: two clicks reach dark
        if page.locator("html").get_attribute("data-theme") == "dark":
            break
        page.locator("button.theme-switch-button").first.click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate(ground) != light
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark"


@pytest.mark.parametrize("name", [*PAGES, "references", "api/functional", "api/cli", "training"])
def test_a_phone_never_scrolls_sideways(visit: Visit, name: str):
    visit.page.set_viewport_size(PHONE)
    page = visit.open(name)
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_solutions_open_by_mouse_and_by_keyboard(visit: Visit, path):
    page = visit.open(path.stem)
    folded = page.locator("details", has=page.locator("summary", has_text="Solution"))
    assert folded.count() >= 3
    first, second = folded.nth(0), folded.nth(1)
    assert not first.locator("pre").first.is_visible()
    first.locator("summary").click()
    assert first.locator("pre").first.is_visible()
    second.locator("summary").focus()
    page.keyboard.press("Enter")
    assert second.locator("pre").first.is_visible()


def test_the_ledger_leads_to_the_very_cell(visit: Visit):
    page = visit.open("ledger")
    link = page.locator("a.claim-id").first
    claim = link.inner_text()
    link.click()
    page.wait_for_load_state("networkidle")
    card = page.locator(f"#trial-{claim}")
    assert card.is_visible()
    assert claim in card.inner_text()


def test_a_missing_page_leads_home(visit: Visit):
    page = visit.page
    page.goto(f"{visit.address}/book/no/such/page.html")
    assert "masked" in page.locator("h1").inner_text()
    page.locator("#home").click()
    page.wait_for_url("**/book/index.html")
    assert page.locator("h1").first.inner_text().startswith("Glassformer")
    assert visit.foreign == []


def test_the_query_turns_by_keyboard_and_by_mouse(visit: Visit):
    page = visit.open("attention")
    compass = page.locator("[id^=compass-]").first
    compass.scroll_into_view_if_needed()
    direction, length = compass.locator("input[type=range]").all()

    def shares() -> list[float]:
        return [float(text) for text in compass.locator(".share").all_inner_texts()]

    before = shares()
    direction.focus()
    page.keyboard.press("End")
    turned = shares()
    assert turned != before
    assert sum(turned) == pytest.approx(1, abs=0.03)
    box = length.bounding_box()
    page.mouse.click(box["x"] + 2, box["y"] + box["height"] / 2)
    assert max(shares()) - min(shares()) <= 0.01  # a query of length 0 listens to all alike


def test_the_clocks_turn_and_the_angles_between_their_hands_stay(visit: Visit):
    page = visit.open("embeddings")
    clocks = page.locator("[id^=clocks-]").first
    clocks.scroll_into_view_if_needed()
    position, shift = clocks.locator("input[type=range]").all()

    def shown(part: str) -> list[str]:
        return clocks.locator(part).all_inner_texts()

    angles, between, product = shown(".angle"), shown(".between"), shown(".product")
    position.focus()
    page.keyboard.press("PageUp")
    assert shown(".angle") != angles
    assert (shown(".between"), shown(".product")) == (between, product)
    button = clocks.locator("button")
    before = position.input_value()
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    page.wait_for_function(
        "([id, was]) => document.querySelector(`#${id} input`).value !== was",
        arg=[clocks.get_attribute("id"), before],
    )
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    shift.focus()
    page.keyboard.press("Home")
    assert set(shown(".between")) == {"0.0°"}
    assert visit.foreign == []


def test_the_explorer_answers_to_mouse_keyboard_and_touch(visit: Visit, browser: Browser):
    page = visit.open("visualization")
    explorer = page.locator("[id^=explorer-]").first
    explorer.scroll_into_view_if_needed()
    told, frame = explorer.locator(".told"), explorer.locator(".frame")
    asks, asked = explorer.locator(".asks button"), explorer.locator(".asked button")
    layer, head = explorer.locator("select").all()

    def row() -> list[float]:
        return [float(text) for text in asked.locator("span").all_inner_texts()]

    before = told.inner_text()
    asks.nth(1).hover()  # by mouse: each row shares out one whole
    assert told.inner_text() != before
    assert " listens to " in told.inner_text()
    assert sum(row()) == pytest.approx(1, abs=0.05)
    assert frame.get_attribute("y") == "1"
    asked.nth(2).hover()
    assert " is listened to by " in told.inner_text()
    assert frame.get_attribute("x") == "2"

    asks.nth(1).focus()  # by keyboard
    page.keyboard.press("ArrowDown")
    assert asks.nth(2).get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowRight")
    assert asked.nth(2).get_attribute("aria-pressed") == "true"
    assert explorer.locator('[aria-pressed="true"]').count() == 1
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    first = row()
    layer.select_option("0")
    head.select_option("2")
    assert row() != first
    assert told.inner_text().startswith("layer 0, head 2: ")
    explorer.locator("summary").click()
    table = explorer.locator("tbody tr").first.locator("td")
    assert [float(x) for x in table.all_inner_texts()] == pytest.approx(row(), abs=0.006)
    head.select_option(label="mean of 12")
    assert "mean of 12" in told.inner_text()

    play = explorer.locator(".play")
    was = told.inner_text()
    play.press("Enter")
    assert play.get_attribute("aria-pressed") == "true"
    page.wait_for_function(
        "([id, was]) => document.querySelector(`#${id} .told`).textContent !== was",
        arg=[explorer.get_attribute("id"), was],
    )
    play.press("Enter")
    assert play.get_attribute("aria-pressed") == "false"
    assert visit.trouble == []
    assert visit.foreign == []

    phone = browser.new_context(viewport=PHONE, has_touch=True)
    page = phone.new_page()
    page.goto(page_url := f"{visit.address}/book/visualization.html")
    explorer = page.locator("[id^=explorer-]").last
    explorer.locator(".asked button").nth(3).tap()
    assert " is listened to by " in explorer.locator(".told").inner_text()
    cells = explorer.locator(".cells rect")
    cells.nth(1).tap()
    assert " listens to " in explorer.locator(".told").inner_text()
    assert page.url == page_url
    phone.close()


@pytest.mark.parametrize("chapter", ["multi_head", "visualization"])
def test_the_stored_explorer_works_by_itself_in_a_sandbox(chapter: str, browser: Browser):
    """As JupyterLab and Colab show it: the bare output, no file of ours, in a frame of its own."""
    (path,) = (path for path in CHAPTERS if path.stem == chapter)
    (cell,) = (c for c in nbformat.read(path, as_version=4).cells if c.id == "explorer")
    (markup,) = (o.data["text/html"] for o in cell.outputs if "text/html" in o.get("data", {}))
    page, trouble = browser.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: trouble.append(request.url))
    page.set_content(f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(markup)}"></iframe>')
    frame = page.frames[1]
    told = frame.locator(".told")
    told.wait_for()
    said = [told.inner_text()]
    frame.locator(".asks button").nth(4).click()
    said.append(told.inner_text())
    frame.locator(".asks button").nth(4).press("ArrowDown")
    said.append(told.inner_text())
    frame.locator("select").first.select_option("1")
    said.append(told.inner_text())
    assert len(set(said)) == 4
    assert not [what for what in trouble if not what.startswith("about:srcdoc")]
    page.close()
