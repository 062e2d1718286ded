"""The page in a real browser: drawn without an error, at home on a phone, in light and in dark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_folders import confusion, targets_of_clients, without_accuracy, write_run, write_sweep

from shoal.report.page import write_report
from shoal.report.side_by_side import write_comparison

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>%{x}"

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


class Opened:
    """A page that is drawn, with everything that went wrong on the way."""

    def __init__(self, browser: Any, path: Path, touch: bool) -> None:
        self.wrong: list[str] = []
        size = {"width": 360 if touch else 800, "height": 800}
        context = browser.new_context(viewport=size, color_scheme="light", has_touch=touch, is_mobile=touch)
        self.page = context.new_page()
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self._requested(request.url))
        self.page.goto(path.as_uri())

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.wrong.append(f"request {url}")

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)

    def wait(self, script: str, wanted: Any) -> None:
        """Until the script gives what is wanted: redrawing is not immediate. (The page's policy forbids polls
        from inside.)"""
        end = time.monotonic() + 5
        while (found := self.ask(script)) != wanted:
            assert time.monotonic() < end, f"{script} gives {found!r}, not {wanted!r}"
            time.sleep(0.05)


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Opens a report by name, each once: reading plotly.js takes most of the time."""
    root = tmp_path_factory.mktemp("reports")
    variants = {"fedsgd-with-a-rather-long-name-for-a-phone": {"dip": (0.07,)}, "fedadam": {"dip": (0, 0.05)}}
    lost = [{"round": 2, "record": "failed", "client": 1, "reason": "ValueError: " + "x" * 300}]
    folders = {
        "sweep": write_sweep(root / "sweep", variants, [0, 1], rounds=12, boundaries=(4, 8)),
        "run": write_run(root / "run", rounds=12, boundaries=(4, 8), more=lost),
        "hostile": write_run(root / "hostile", name=HOSTILE, tasks=(HOSTILE, "b"), rounds=6, boundaries=(3,)),
        "static": write_run(root / "static", tasks=(), boundaries=(), rounds=3),
    }
    counts = [[9 * (i == j) + (i + 2 * j) % 3 for j in range(12)] for i in range(12)]
    classes = [HOSTILE, *(f"a class with a long name {i}" for i in range(11))]
    more = [confusion(r, classes, counts, client=c) for r in (3, 6) for c in (0, 1)]
    more += targets_of_clients({c: None if c == 7 else c / 40 for c in range(30)}, [1, 6], f1=0.5)
    more += [{"round": r, "metric": "entry_cosine", "value": 0.1, "over": over, "entry": HOSTILE}
             for r in (1, 2, 5) for over in ("all", "head")]  # fmt: skip
    folders["clients"] = write_run(root / "clients", rounds=6, tasks=(), boundaries=(3,), clients=30, more=more,
                                   config={"evaluate": {"metrics": ["f1"]}})  # fmt: skip
    without_accuracy(folders["clients"], client_names=[HOSTILE] * 30, classes=classes)
    values = [{"round": r, "metric": m, "value": 1 / r, "rows": 9} for r in (1, 2) for m in ("loss", "rmse")]
    both = [
        write_run(root / name, rounds=2, tasks=(), boundaries=(), more=values, summary={"acc": None, "loss": 0.5},
                  config={"evaluate": {"metrics": ["rmse"]}, "stream": {"kind": name}})
        for name in ("ours", "theirs")
    ]  # fmt: skip
    for folder in both:
        without_accuracy(folder, learns="values")
    write_comparison(both, root / "values")
    off = {"evaluate": {"every": 0, "measures": []}}
    folders["off"] = write_run(root / "off", rounds=0, tasks=(), boundaries=(), config=off, summary={"acc": None})
    pages: dict[tuple[str, bool], Opened] = {}
    with playwright_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)

        def get(name: str, touch: bool = False) -> Opened:
            if (name, touch) not in pages:
                path = root / "values" / "report.html" if name == "values" else write_report(folders[name])
                pages[name, touch] = Opened(browser, path, touch)
            return pages[name, touch]

        yield get
        browser.close()


@pytest.mark.parametrize("name", ["sweep", "run", "hostile", "static", "clients", "values", "off"])
def test_every_chart_is_drawn_without_an_error(opened: Open, name: str) -> None:
    here = opened(name)
    assert here.wrong == []
    if name == "off":
        assert here.page.locator(".lead").inner_text().startswith("This run of fedavg for no rounds")
        return
    drawn = here.ask("[...document.querySelectorAll('.chart')].filter(c => c.querySelector('svg.main-svg')).length")
    assert drawn == here.page.locator(".chart").count() > 0


def test_hostile_names_are_text(opened: Open) -> None:
    here = opened("hostile")
    assert here.page.locator("h1").inner_text() == HOSTILE
    assert here.ask("document.querySelectorAll('section img, section script:not([type])').length") == 0
    assert here.page.locator("#accuracy .legend button").first.inner_text() == HOSTILE


@pytest.mark.parametrize("name", ["sweep", "run", "clients", "values"])
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_the_page_never_scrolls_sideways(opened: Open, name: str, width: int) -> None:
    here = opened(name)
    here.page.set_viewport_size({"width": width, "height": 800})
    # A chart is as wide as its box once it has followed the window.
    here.wait(
        "[...document.querySelectorAll('.chart')].filter(c => Math.abs(c.querySelector('svg').clientWidth "
        "- c.clientWidth) > 1).length",
        0,
    )
    for scheme in ("dark", "light"):
        here.page.emulate_media(color_scheme=scheme)
        assert here.ask("document.documentElement.scrollWidth") <= width
        outside = here.ask(
            "[...document.querySelectorAll('.chart, .chart svg, .legend, pre, p, li, h1, h2, .scroll')]"
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))"
        )
        assert outside == []
    assert here.wrong == []


def test_the_reader_chooses_the_matrix(opened: Open) -> None:
    shown = "document.querySelector('#confusion .chart')._fullData.map(t => t.visible)"
    here = opened("clients")
    assert here.page.locator("#confusion select:visible").count() == 2
    here.wait(shown, [False, False, True, False])
    here.page.locator("#confusion select").nth(2).select_option(index=1)
    here.wait(shown, [True, False, False, False])
    here.page.locator("#confusion select").nth(1).select_option(index=1)
    here.wait(shown, [False, True, False, False])
    assert here.ask("document.querySelectorAll('#confusion .chart .heatmaplayer image').length") == 1
    # The whole name is text, on the axis and in the table.
    assert here.page.locator("#confusion td, #confusion th", has_text="onerror").first.inner_text() == HOSTILE
    assert here.wrong == []


def test_the_folded_clients_open(opened: Open) -> None:
    here = opened("clients")
    table = here.page.locator("#clients details table")
    assert not table.is_visible()
    here.page.locator("#clients summary").click()
    assert table.locator("tbody tr").count() == 30
    assert here.ask("document.documentElement.scrollWidth <= innerWidth")
    here.page.locator("#clients summary").click()


def test_dark_and_light_have_their_own_colours_and_follow_a_change(opened: Open) -> None:
    stroke = "getComputedStyle(document.querySelector('.chart .scatterlayer .js-line')).stroke"
    ground = "getComputedStyle(document.body).backgroundColor"
    here = opened("run")
    here.page.emulate_media(color_scheme="light")
    here.wait(stroke, "rgb(26, 111, 192)")
    light = here.ask(ground)
    here.page.emulate_media(color_scheme="dark")
    here.wait(stroke, "rgb(77, 157, 255)")
    assert here.ask(ground) != light
    assert here.wrong == []


def test_a_legend_switches_its_line_in_all_charts_of_its_group(opened: Open) -> None:
    shown = "document.querySelectorAll('#accuracy .charts:nth-of-type(2) .scatterlayer .js-line').length"
    here = opened("sweep")
    before = here.ask(shown)
    button = here.page.locator("#accuracy .charts").nth(1).locator("button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert here.ask(shown) == before - 2  # one line in the chart of each variant
    button.click()
    assert here.ask(shown) == before


def test_the_reader_chooses_the_seed(opened: Open) -> None:
    first = "document.querySelector('#accuracy .charts:nth-of-type(2) .chart')"
    here = opened("sweep")
    select = here.page.locator("#accuracy select")
    assert select.locator("option").all_inner_texts() == ["seed 0", "seed 1", "mean over the seeds"]
    path = here.ask(f"{first}.querySelector('.js-line').getAttribute('d')")
    assert here.ask(f"{first}.querySelectorAll('.js-fill').length") == 0
    select.select_option("seed 1")
    assert here.ask(f"{first}.querySelector('.js-line').getAttribute('d')") != path
    select.select_option("mean over the seeds")
    assert here.ask(f"{first}.querySelectorAll('.js-fill').length") == 5
    assert here.wrong == []


def test_a_phone_scrolls_the_page_where_a_mouse_zooms_the_chart(opened: Open) -> None:
    mode = "document.querySelector('.chart').layout.dragmode"
    phone = opened("run", touch=True)
    assert phone.ask(mode) is False
    assert phone.ask("document.documentElement.scrollWidth") == 360
    assert phone.wrong == []
    assert opened("run").ask(mode) == "zoom"


def test_a_phone_shows_the_reason_of_an_event(opened: Open) -> None:
    here = opened("run", touch=True)
    cell = here.page.locator("#problems table").last.locator("tbody td").last
    box, row = cell.bounding_box(), here.page.locator("#problems table").last.locator("tbody tr").first.bounding_box()
    assert box is not None
    assert row is not None
    assert box["x"] + 0.9 * box["width"] < 360
    assert row["height"] < 420  # 310 letters
