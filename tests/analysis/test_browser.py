"""The page in headless Chromium: its script runs, it asks for nothing, axe finds nothing serious, nothing is cut."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from planted import plant, smoke
from test_report import DDP, hostile_plants

from analysis import report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
LIMIT_MS = 60_000
STUDIES = {
    "smoke": (smoke, {"reference": DDP, "price_per_node_hour": 3.6}),
    "hostile": (hostile_plants, {}),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        # Its sandbox takes rights that a container has not; the page is our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=LIMIT_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=STUDIES)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a report's page."""
    folder = tmp_path_factory.mktemp("browser")
    plants, study = STUDIES[request.param]
    plant(folder / "study", plants(), **study)  # type: ignore[operator]
    return report.write(folder / "study", folder, ("html",))[0].as_uri()


def opened(browser: Browser, address: str, size: str, scheme: str = "light") -> tuple[Page, list[str]]:
    """The page, and what it asked for or complained of."""
    width, height = WIDTHS[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(LIMIT_MS)
    noted: list[str] = []
    page.on("console", lambda message: noted.append(message.text))
    page.on("pageerror", lambda error: noted.append(str(error)))
    page.on("request", lambda sent: noted.append(sent.url) if sent.url != address else None)
    page.goto(address)
    return page, noted


def test_it_runs_its_script_and_asks_for_nothing(browser: Browser, address: str) -> None:
    page, noted = opened(browser, address, "desktop")
    assert page.locator("thead th button").count() == page.locator("thead th").count() > 0
    assert noted == []
    page.close()


def test_a_click_sorts_by_number_and_back(browser: Browser, tmp_path: Path) -> None:
    plant(tmp_path / "study", smoke(), reference=DDP)
    (path,) = report.write(tmp_path / "study", tmp_path, ("html",))
    page, _ = opened(browser, path.as_uri(), "desktop")
    table = page.locator("table", has=page.locator("caption", has_text="digits")).first
    heads = table.locator("thead th").all_inner_texts()
    place = next(index for index, head in enumerate(heads) if head.startswith("step time"))
    times = table.locator(f"tbody tr > :nth-child({place + 1})")
    before = [float(text.split()[0]) for text in times.all_inner_texts()]
    for descending in (False, True):
        table.locator("thead th button").nth(place).click()
        after = [float(text.split()[0]) for text in times.all_inner_texts()]
        assert after == sorted(before, reverse=descending)
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", WIDTHS)
def test_axe_finds_nothing_serious(browser: Browser, address: str, size: str, scheme: str) -> None:
    page, _ = opened(browser, address, size, scheme)
    found: list[dict[str, Any]] = axe.Axe().run(page).response["violations"]
    serious = [
        (one["id"], one["help"], one["nodes"][0]["html"][:200])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    page.close()


@pytest.mark.parametrize("size", WIDTHS)
def test_the_page_is_no_wider_than_the_window(browser: Browser, address: str, size: str) -> None:
    """Tables and figures scroll by themselves."""
    page, _ = opened(browser, address, size)
    width, window = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert width <= window
    page.close()


def test_every_figure_has_a_text_alternative(browser: Browser, address: str) -> None:
    page, _ = opened(browser, address, "desktop")
    names = page.locator("figure svg").evaluate_all("all => all.map(one => one.getAttribute('aria-label') ?? '')")
    assert names
    assert all(len(name) > 40 for name in names)
    page.close()
