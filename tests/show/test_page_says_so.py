"""What the page must say to be read right, in a real browser: scales, units, what is not compared, and paper."""

from dataclasses import replace

import pytest
from browsing import quiet, until
from handmade import build
from test_page_in_a_browser import DRAWN, Page
from test_screens import analysed

from nsysalign.compare.label_changes import compare
from nsysalign.show import diff_page

pytestmark = pytest.mark.browser

LONG, SHORT = [("kernel", 90_000, "gemm")], [("kernel", 9_000, "add")]
SCALE = "document.querySelector('#repetitions .scale').textContent"


@pytest.fixture
def opened(driver, tmp_path):
    """The page of an analysis, on demand; at the end it has said nothing on the console."""
    yield lambda analysis: Page(driver, analysis, tmp_path / "report.html")
    quiet(driver)


def resized(page, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.mark.parametrize("factor", [3, 10])
def test_rows_of_repetitions_have_one_scale_or_say_that_they_have_not(opened, factor):
    slow = [("kernel", 9_000 * factor, "gemm")]
    page = opened(build([("t1", "event", "puzzle.py:14", False, [slow, SHORT] * 8)]))
    assert page(SCALE) == ("height: 0 to 27.0 us" if factor == 3 else "each row has its own scale")
    # a bar of each row: its height
    heights = page(
        "[...document.querySelectorAll('path.repetition')].map(p => -parseFloat(p.getAttribute('d').match(/v(-?[\\d.]+)/)[1]))"
    )
    assert max(heights) / min(heights) == pytest.approx(3 if factor == 3 else 1, rel=0.01)
    texts = (
        "[...document.querySelectorAll('#repetitions text')].map(t => t.getBoundingClientRect())"
    )
    for width in (1400, 390):
        resized(page, width)
        page.until(f"{texts}.every(box => box.left >= 0 && box.right < {width} - 14)")
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_comparison_says_which_repetition_it_cannot_have_and_stays(opened):
    page = opened(build([("t1", "event", "puzzle.py:14", False, [LONG, SHORT] * 8)]))
    page("choose('t1', 0, false)")
    page("$('compare').click()")
    before = page("[selected.interval, view.other]")
    without = next(n for n in range(16) if n not in before)
    page(f"(delete DATA.timelines[{without}])")
    page(f"drawings.get($('repetitions')).hits.find(hit => hit.said[0] == 't1#{without}').go()")
    assert page("[selected.interval, view.other]") == before
    assert page.text("compared").startswith(f"t1#{without} cannot be compared")
    assert page("view.picture.bands.length") == 2


def test_what_works_the_picture_is_not_offered_where_there_is_none(opened, driver, tmp_path):
    page = opened(build([("t1", "event", "puzzle.py:14", False, [LONG] * 8)]))
    shown = "['zoom', 'keys', 'items'].map(id => $(id).checkVisibility())"
    assert page(shown) == [True] * 3
    page("(delete DATA.timelines[7])")
    page("choose('t1', 7, false)")
    assert page(shown) == [False] * 3 and "does not hold its timeline" in page.text("reading")
    bare = build([("t1", "event", "puzzle.py:14", False, [LONG] * 8)], timeline=False)
    bare = replace(bare, segments=bare.segments.head(0))
    diff_page.write(compare(bare, bare), bare, bare, tmp_path / "diff.html")
    driver.get((tmp_path / "diff.html").as_uri())
    until(driver, "document.body.dataset.ready", "the page")
    assert page("$('no-picture').textContent") and page("$('lanes').hidden")
    assert page("$('zoom').checkVisibility() || $('keys').checkVisibility()") is False


def test_what_is_of_the_whole_run_says_so(opened, finding):
    """Beside the time of one repetition."""
    page = opened(
        build([("t1", "event", "puzzle.py:14", False, [LONG, SHORT] * 8)], findings=[finding])
    )
    cells = page("[...document.querySelectorAll('#rows .saving')].map(e => e.textContent)")
    assert cells == ["could save 872 us in all", "takes 720 us in all", "takes 72.0 us in all"]
    assert page("$('rows-head').lastChild.textContent") == "over the run"
    assert (
        page("document.querySelector('.card .lost').textContent")
        == "could save 872 us over the run"
    )


@pytest.mark.parametrize("width", [1400, 1051, 700, 390, 320])
def test_the_hint_in_the_find_box_is_whole(opened, width):
    page = opened(build())
    resized(page, width)
    room = (
        "(() => { const f = $('find'), s = getComputedStyle(f), pen = document.createElement('canvas').getContext('2d');"
        "pen.font = `${s.fontSize} ${s.fontFamily}`;"
        "return f.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight)"
        " - pen.measureText(f.placeholder).width })()"
    )
    try:
        assert page(room) >= 0
        assert (
            page("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 1
        )
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_work_that_ran_after_the_timing_is_in_its_picture(opened, tmp_path):
    """What the sentence says: the kernel that was launched inside begins behind the second reading."""
    page = opened(analysed("demo", tmp_path))
    page("choose('host_none', null, false)")
    page.until(f"{DRAWN}.startsWith(selected.interval)")
    tip = "document.querySelector('#lanes .gap path').getBoundingClientRect().left"
    end = "[...document.querySelectorAll('#lanes line.event')].at(-1).getBoundingClientRect().left"
    assert page(tip) > page(end)
    kernel = page("view.picture.lanes.find(l => l.kind == 'stream')")
    last = next(i for i, x in enumerate(kernel["x"]) if x > page("view.picture.width"))
    assert page("view.range[1]") * 1e3 > kernel["x"][last] + kernel["d"][last]
    # a timing whose work ran inside it ends as before
    page("choose('h2d_t1', null, false)")
    assert page("endOfWork(view.picture) == view.picture.width")


def test_paper_breaks_between_rows_and_cards_not_in_them(opened, finding):
    page = opened(build(findings=[finding]))
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        style = "getComputedStyle(document.querySelector('{}')).{}"
        for place in ("#rows", "#rows li", ".card", "#budgets tr"):
            assert page(style.format(place, "breakInside")) == "avoid", place
        for place in ("#rows-head", "#verdicts > details > summary"):
            assert page(style.format(place, "breakAfter")) == "avoid", place
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_paces_of_a_label_have_rows_of_their_own_in_a_comparison(opened, driver, tmp_path):
    """With whole names: what tells them apart stands at their end."""
    name = "benchmarks/attention_forward.py:130-132"
    both = build([(name, "event", "puzzle.py:14", False, [LONG, SHORT] * 8)])
    page = opened(both)
    diff_page.write(compare(both, both), both, both, tmp_path / "diff.html")
    driver.get((tmp_path / "diff.html").as_uri())
    until(driver, "document.body.dataset.ready", "the page")
    rows = "[...document.querySelectorAll('#rows .link')]"
    assert page(f"{rows}.map(b => b.innerText)") == [f"{name} (faster)", f"{name} (slower)"]
    assert page(f"{rows}.every(b => b.scrollWidth <= b.clientWidth + 1)")
    times = page(
        "[...document.querySelectorAll('#rows .value:not(.saving)')].map(e => e.innerText)"
    )
    assert times == ["9.00 us → 9.00 us", "90.0 us → 90.0 us"]
