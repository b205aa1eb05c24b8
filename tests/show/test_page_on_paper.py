"""The page on paper, in a real browser."""

import base64

import pytest
from browsing import quiet
from handmade import build
from test_page_in_a_browser import Page

pytestmark = pytest.mark.browser

DRAWN_WIDTH = "+$('lanes').firstElementChild.getAttribute('width')"


@pytest.fixture
def opened(driver, tmp_path):
    """The page of an analysis, on demand, in a window of any width."""

    def open_in(analysis, width):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        return Page(driver, analysis, tmp_path / "report.html")

    yield open_in
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    quiet(driver)


def nine_labels(finding):
    """Nine labels, and three findings beside the one that they measure their kernels."""
    runs = [[("kernel", 9_000, "gemm"), ("host", 90_000, "")] for _ in range(6)]
    rules = ("host-gap", "cold-l2", "many-small-kernels")
    return build(
        [(f"t{k}", "event", f"a.py:{k}", False, runs) for k in range(9)],
        findings=[{**finding, "label": f"t{k}", "rule": rule} for k, rule in enumerate(rules)],
    )


def test_paper_breaks_between_rows_and_cards_not_in_them(opened, finding):
    page = opened(nine_labels(finding), 1400)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        style = "getComputedStyle(document.querySelector('{}')).{}"
        for place in ("#rows li", ".card", "#budgets tr"):
            assert page(style.format(place, "breakInside")) == "avoid", place
        for place in ("#labels-head", "#rows-head", "#verdicts > details > summary"):
            assert page(style.format(place, "breakAfter")) == "avoid", place
        # nine rows go on over the page: where all go to the next one they leave a hole; few stay together
        assert page(style.format("#rows", "breakInside")) == "auto"
        page("[...$('rows').children].slice(4).forEach((row) => row.remove())")
        assert page(style.format("#rows", "breakInside")) == "avoid"
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_what_is_drawn_is_drawn_for_paper_in_whatever_window(opened, analysis, width):
    """Else a narrow window's drawing is blown up to the paper's width, and fills a page alone."""
    page = opened(analysis, width)
    before = page(DRAWN_WIDTH)
    page("dispatchEvent(new Event('beforeprint'))")
    assert page(DRAWN_WIDTH) == pytest.approx(1396 - 316 - 18, abs=4)
    assert page("stacked() || narrow()") is False
    page("dispatchEvent(new Event('afterprint'))")
    page.until(f"{DRAWN_WIDTH} === {before}")


@pytest.mark.parametrize("width", [390, 1400])
def test_pages_of_paper_are_full(opened, finding, width):
    page = opened(nine_labels(finding), width)
    page("document.querySelectorAll('.fold, .about').forEach((fold) => { fold.open = false })")
    printed = page.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    pages = base64.b64decode(printed["data"]).count(b"/Type /Page\n")
    assert pages == 2


def test_evidence_in_a_folded_card_looks_as_in_any_card(opened, finding):
    """Not like the line that unfolds the card."""
    rules = [f"rule-{k}" for k in range(8)]
    page = opened(build(findings=[{**finding, "rule": rule} for rule in rules]), 1400)
    page(
        "document.querySelectorAll('.folded').forEach((card) => { card.open = true; card.fillIn(); })"
    )
    summaries = "[...document.querySelectorAll('{} .evidence summary')].map(s => getComputedStyle(s).display)"
    (of_cards,) = {*page(summaries.format("#cards"))}
    (of_folded,) = {*page(summaries.format(".folded"))}
    assert of_cards == of_folded != "grid"


def test_a_picture_of_many_lanes_is_no_higher_than_a_page(opened, analysis):
    page = opened(analysis, 1400)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        page("$('lanes').firstElementChild.setAttribute('viewBox', '0 0 1000 4000')")
        assert page("$('lanes').firstElementChild.getBoundingClientRect().height") <= 860
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
