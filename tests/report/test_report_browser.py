"""The page in a real browser: drawn without an error, at home on a phone, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_run, write_sweep

from shoal.report.page import write_report

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>%{x}"

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("reports")
    variants = {"fedsgd-with-a-rather-long-name-for-a-phone": {"dip": (0.07,)}, "fedadam": {"dip": (0, 0.05)}}
    lost = [{"round": 2, "record": "failed", "client": 1, "reason": "ValueError: " + "x" * 300}]
    folders = {
        "sweep": write_sweep(root / "sweep", variants, [0, 1], rounds=12, boundaries=(4, 8)),
        "run": write_run(root / "run", rounds=12, boundaries=(4, 8), more=lost),
        "hostile": write_run(root / "hostile", name=HOSTILE, tasks=(HOSTILE, "b"), rounds=6, boundaries=(3,)),
        "static": write_run(root / "static", tasks=(), boundaries=(), rounds=3),
        "empty": write_run(root / "empty", rounds=0, boundaries=()),
    }
    return {name: write_report(folder) for name, folder in folders.items()}


class Opened:
    """A page that is drawn, with everything that went wrong on the way."""

    def __init__(self, browser: Any, path: Path, width: int = 800, scheme: str = "light", touch: bool = False) -> None:
        self.wrong: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, has_touch=touch, is_mobile=touch
        )
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self._requested(request.url))
        self.page.goto(path.as_uri())

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.wrong.append(f"request {url}")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)


@pytest.mark.parametrize("name", ["sweep", "run", "hostile", "static", "empty"])
def test_every_chart_is_drawn_without_an_error(browser: Any, reports: dict[str, Path], name: str) -> None:
    with Opened(browser, reports[name]) as opened:
        assert opened.wrong == []
        drawn = opened.ask(
            "[...document.querySelectorAll('.chart')].filter(c => c.querySelector('svg.main-svg')).length"
        )
        assert drawn == opened.count(".chart")
        assert (drawn == 0) is (name == "empty")
        if name == "hostile":
            assert opened.page.locator("h1").inner_text() == HOSTILE
            assert opened.count("section img") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_the_page_never_scrolls_sideways(browser: Any, reports: dict[str, Path], width: int, scheme: str) -> None:
    for name in ("sweep", "run"):
        with Opened(browser, reports[name], width, scheme, touch=width == 360) as opened:
            assert opened.ask("document.documentElement.scrollWidth") <= width, name
            outside = opened.ask(
                "[...document.querySelectorAll('.chart, .chart svg, .legend, pre, p, li, h1, h2, .scroll')]"
                ".filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))"
            )
            assert outside == [], name
            assert opened.wrong == []


def test_dark_and_light_have_their_own_colours_and_follow_a_change(browser: Any, reports: dict[str, Path]) -> None:
    stroke = "getComputedStyle(document.querySelector('.chart .scatterlayer .js-line')).stroke"
    ground = "getComputedStyle(document.body).backgroundColor"
    with Opened(browser, reports["run"], scheme="light") as opened:
        assert opened.ask(stroke) == "rgb(26, 111, 192)"
        light = opened.ask(ground)
        opened.page.emulate_media(color_scheme="dark")
        opened.page.wait_for_function(f"{stroke} === 'rgb(77, 157, 255)'")
        assert opened.ask(ground) != light
        assert opened.wrong == []


def test_a_legend_switches_its_line_in_all_charts_of_its_group(browser: Any, reports: dict[str, Path]) -> None:
    shown = "document.querySelectorAll('#accuracy .charts:nth-of-type(2) .scatterlayer .js-line').length"
    with Opened(browser, reports["sweep"]) as opened:
        before = opened.ask(shown)
        button = opened.page.locator("#accuracy .charts").nth(1).locator("button").first
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert opened.ask(shown) == before - 2  # one line in the chart of each variant
        button.click()
        assert opened.ask(shown) == before


def test_the_reader_chooses_the_seed(browser: Any, reports: dict[str, Path]) -> None:
    first = "document.querySelector('#accuracy .charts:nth-of-type(2) .chart')"
    with Opened(browser, reports["sweep"]) as opened:
        select = opened.page.locator("#accuracy select")
        assert select.locator("option").all_inner_texts() == ["seed 0", "seed 1", "mean over the seeds"]
        path = opened.ask(f"{first}.querySelector('.js-line').getAttribute('d')")
        assert opened.ask(f"{first}.querySelectorAll('.js-fill').length") == 0
        select.select_option("seed 1")
        assert opened.ask(f"{first}.querySelector('.js-line').getAttribute('d')") != path
        select.select_option("mean over the seeds")
        assert opened.ask(f"{first}.querySelectorAll('.js-fill').length") == 5
        assert opened.wrong == []


def test_a_touch_scrolls_instead_of_zooming(browser: Any, reports: dict[str, Path]) -> None:
    mode = "document.querySelector('.chart').layout.dragmode"
    with Opened(browser, reports["run"], 360, touch=True) as opened:
        assert opened.ask(mode) is False
    with Opened(browser, reports["run"]) as opened:
        assert opened.ask(mode) == "zoom"
