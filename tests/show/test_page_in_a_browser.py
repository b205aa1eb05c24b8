"""The page of an analysis in a real browser, from file://: it runs, it is quiet, and foreign text
stays text."""

import re
from dataclasses import replace
from importlib import resources

import pytest
from browsing import quiet, until
from cases.drawing import in_nanoseconds, kernel
from simulator import check, export
from simulator.world import LEGACY, World

from nsysalign import frames
from nsysalign.show import html

pytestmark = pytest.mark.browser

UNFOLD = "for (const d of document.querySelectorAll('.fold, .about')) d.open = true"
#: What the timeline explains when pointed at, and the names of its lanes.
SAID = "drawings.get(document.querySelector('#lanes')).hits.map(hit => hit.said.join(' | '))"
LANES = "[...document.querySelectorAll('#lanes text.lane')].map(t => t.firstChild.textContent)"


def open_page(driver, analysis, tmp_path):
    driver.get_log("browser")
    driver.get_log("performance")
    path = tmp_path / "report.html"
    html.write(analysis, path)
    driver.get(path.as_uri())
    until(
        driver,
        "document.body.dataset.ready && document.querySelector('#lanes').dataset.drawn",
        "the first drawing",
    )
    driver.execute_script(UNFOLD)
    return driver


@pytest.fixture
def looked_at(driver, analysis, tmp_path_factory):
    """The page of `analysis` for tests that only look: opened once for all that follow one
    another."""
    path = tmp_path_factory.getbasetemp() / "looked_at" / "report.html"
    if driver.current_url != path.as_uri():
        path.parent.mkdir(exist_ok=True)
        open_page(driver, analysis, path.parent)
    return driver


def column(driver):
    return driver.execute_script(
        "return [...document.querySelectorAll('#budgets tbody tr')].map(r => r.dataset.label)"
    )


def test_the_table_sorts_and_filters(driver, analysis, tmp_path):
    open_page(driver, analysis, tmp_path)
    assert column(driver) == ["t1", "t2", "replay", "do_bench"]
    driver.execute_script("document.querySelector('[data-key=kernel]').focus()")
    driver.execute_script("document.querySelector('[data-key=kernel]').click()")
    assert column(driver) == ["do_bench", "t1", "t2", "replay"]
    assert driver.execute_script("return document.activeElement.dataset.key") == "kernel"
    assert (
        driver.execute_script("return document.activeElement.parentNode.ariaSort") == "descending"
    )
    driver.execute_script("document.activeElement.click()")
    assert column(driver) == ["replay", "t2", "t1", "do_bench"]
    driver.find_element("id", "filter").send_keys("puzzle 17")
    assert column(driver) == ["t2"]
    quiet(driver)


def test_an_interval_is_chosen_drawn_zoomed_and_explained(driver, analysis, tmp_path):
    open_page(driver, analysis, tmp_path)
    first = driver.execute_script("return document.querySelector('#lanes').dataset.drawn")
    assert first.startswith("0:")  # the finding's interval
    driver.execute_script(
        "[...document.querySelectorAll('#run-strip .role')].find(b => b.textContent == 'slowest').click()"
    )
    until(
        driver,
        "document.querySelector('#lanes').dataset.drawn.startsWith('1:')",
        "drawing the slowest",
    )
    assert "245 us" in driver.find_element("id", "reading").text
    assert driver.execute_script(f"return {LANES}") == [
        "events",
        "parts",
        "NVTX, thread 484",
        "CUDA calls, thread 484",
        "records, stream 7",
        "stream 7",
        "records, stream 13",
    ]
    said = driver.execute_script(f"return {SAID}")
    assert any(
        "gemm" in h and "24.8 us" in h and "grid 64 x 1 x 1" in h and "84.0 MB" in h for h in said
    )
    before = driver.execute_script("return document.querySelector('#lanes').dataset.drawn")
    driver.find_element("id", "lanes").send_keys("+")
    until(driver, f"document.querySelector('#lanes').dataset.drawn != '{before}'", "zooming by key")
    driver.find_element("id", "lanes").send_keys("0")
    until(driver, f"document.querySelector('#lanes').dataset.drawn == '{before}'", "fitting by key")
    quiet(driver)


def test_the_mouse_explains_and_zooms(driver, analysis, tmp_path):
    from selenium.webdriver import ActionChains

    open_page(driver, analysis, tmp_path)
    driver.execute_script("document.querySelector('#lanes').scrollIntoView({block: 'center'})")
    kernel = until(
        driver,
        "[...document.querySelectorAll('#lanes .block text')].find(t => t.textContent.startsWith('gemm'))",
        "the kernel's name",
    )
    ActionChains(driver).move_to_element(kernel).perform()
    text = until(
        driver,
        "!document.querySelector('#tip').hidden && document.querySelector('#tip').innerText",
        "the tip",
    )
    assert "gemm" in text and "24.8 us, from 206.80 us" in text and "3391 GB/s" in text
    assert "stream 7" in text and "after its launch call began" in text
    # pointing at the kernel draws the arrow from the call that issued it, beside that of the gap
    arrows = "return document.querySelectorAll('#lanes .arrow:not(.gap)').length"
    assert driver.execute_script(arrows) == 1
    assert driver.execute_script("return document.querySelectorAll('#lanes .gap').length") == 1
    drawn = driver.find_element("id", "lanes").get_attribute("data-drawn")
    plot = driver.find_element("id", "lanes")
    ActionChains(driver).move_to_element(plot).click_and_hold().move_by_offset(150, 0).perform()
    assert not driver.execute_script("return $('tip').hidden")  # how long, while dragging
    assert re.fullmatch(r"[\d.]+ us", driver.find_element("id", "tip").text)
    ActionChains(driver).release().perform()
    until(
        driver,
        f"document.querySelector('#lanes').dataset.drawn != '{drawn}'",
        "zooming by dragging",
    )
    assert driver.execute_script("return $('tip').hidden && !document.querySelector('.band')")
    driver.execute_script("chooseStretch([0, 1000])")
    assert "kernel\n1 · 24.8 us" in driver.find_element("id", "selection").text
    ActionChains(driver).double_click(plot).perform()
    assert driver.find_element("id", "selection").text  # stays until Escape
    until(
        driver,
        f"document.querySelector('#lanes').dataset.drawn == '{drawn}'",
        "fitting by double click",
    )
    quiet(driver)


def test_a_record_points_at_the_wait_that_it_releases(looked_at):
    driver = looked_at
    # the wait of stream 7 ends 5 us after the start, where the record of stream 13 lies: the arrow
    # is upright
    ends = driver.execute_script(
        "const hit = drawings.get(document.querySelector('#lanes')).hits.find(h => h.said[0].startsWith('waits for')), l = hit.over().querySelector('line');"
        "return [l.x1.baseVal.value, l.x2.baseVal.value, view.frame.x(5), l.y1.baseVal.value > l.y2.baseVal.value]"
    )
    assert (
        ends[0] == pytest.approx(ends[2], abs=0.1)
        and ends[1] == pytest.approx(ends[2], abs=0.1)
        and ends[3]
    )
    assert "12 shortest CUDA calls" in driver.find_element("id", "reduced").text
    driver.execute_script("document.querySelector('#items').open = true")
    until(
        driver,
        "document.querySelectorAll('#items tbody tr').length == 12",
        "the table of the lanes",
    )
    quiet(driver)


def test_the_waterfall_leads_from_the_event_to_the_kernel(looked_at):
    driver = looked_at
    rows = "[...document.querySelectorAll('#label-fall .fall')[0].children].map(r => [r.querySelector('.name').textContent, r.querySelector('.value').textContent])"
    assert driver.execute_script(f"return {rows}") == [
        ["measured", "235 us"],
        ["CPU", "− 174 us"],
        ["launch call", "− 28.3 us"],
        ["event overhead", "− 7.15 us"],
        ["kernel", "= 24.8 us"],
    ]
    # every step begins where the one above it ends
    edges = driver.execute_script(
        "return [...document.querySelectorAll('#label-fall .fall')[0].querySelectorAll('.piece')].slice(1).map(p => parseFloat(p.style.left))"
    )
    ns = [234_720, 174_490, 28_310, 7_150]
    rest = [ns[0] - sum(ns[1 : k + 1]) for k in range(1, 4)]
    assert edges == [pytest.approx(100 * r / ns[0], abs=0.01) for r in rest] + [0]
    # a host timer's own time holds no kernel: what ran beside it is said, as in the terminal
    timer = "{label: 'timer', elapsed: 9000, ran: 2240, parts: {host: 9000, kernel: 0, graph: 0}}"
    last = driver.execute_script(f"return waterfall({timer}).lastChild.textContent")
    assert last == "meanwhile2.24 us"
    assert driver.execute_script(f"return aside({timer})")


def test_a_link_carries_what_is_seen_and_arrives(driver, analysis, tmp_path):
    open_page(driver, analysis, tmp_path)
    driver.execute_script(
        "choose('t1', 1, false); zoomTo([10, 60]); document.querySelector('[data-key=kernel]').click()"
    )
    driver.find_element("id", "filter").send_keys("t1")
    link = until(
        driver,
        "location.hash.includes('filter=t1') && location.hash.includes('from=10') && location.href",
        "the address",
    )
    driver.get("about:blank")
    driver.get(link)
    until(
        driver,
        "document.querySelector('#lanes').dataset.drawn == '1:10.000:60.000'",
        "the same interval and zoom",
    )
    assert column(driver) == ["t1"]
    assert (
        driver.execute_script(
            "return document.querySelector('[data-key=kernel]').parentNode.ariaSort"
        )
        == "descending"
    )
    top = "document.querySelector('#timeline').getBoundingClientRect().top"
    until(driver, f"Math.abs({top}) < 60", "scrolling to the interval")
    quiet(driver)


def test_back_leads_to_the_interval_before_and_an_anchor_scrolls(driver, analysis, tmp_path):
    open_page(driver, analysis, tmp_path)
    at_first = driver.execute_script("return selected.label")
    for label in ("t2", "t1"):
        driver.execute_script("choose(arguments[0], null, true)", label)
        until(driver, f"location.hash.includes('label={label}')", f"the address of {label}")
    driver.back()
    until(driver, "selected.label === 't2'", "the label before")
    driver.back()
    until(driver, f"selected.label === '{at_first}'", "what the page opened on")
    driver.forward()
    until(driver, "selected.label === 't2'", "the label after")
    driver.execute_script("location.hash = '#runs'")
    until(driver, "Math.abs($('runs').getBoundingClientRect().top) < 120", "the section")


def three_kernels(tmp_path, pair):
    world = World(streams={7: LEGACY})
    start = world.record(0, -4, -2) if pair else None
    for begin in (0, 100, 4_000):
        kernel(world, (begin + 2, begin + 6), (begin + 10, begin + 60))
    if pair:
        world.pair(start, world.record(4_061, 4_010, 4_012))
    world.sync(4_020, 4_080)
    return check.analyze(*export.write(in_nanoseconds(world), tmp_path))


def test_a_run_without_intervals_has_its_timeline(driver, tmp_path):
    open_page(driver, three_kernels(tmp_path, pair=False), tmp_path)
    shown = driver.execute_script(
        "return [...document.querySelectorAll('#main > section')].filter(s => s.clientHeight).map(s => s.id)"
    )
    assert {"timeline", "kernels", "answers"} <= set(shown) and "labels" not in shown
    assert (
        "4.05 ms from the first GPU work to the last" in driver.find_element("id", "reading").text
    )
    said = driver.execute_script(f"return {SAID}")
    assert sum("50.0 us, from " in text for text in said) == 3
    assert driver.execute_script(f"return {LANES}")[-1] == "stream 7"
    quiet(driver)


def test_cards_have_both_kinds_of_advice_the_line_of_code_and_a_link(
    driver, builder, finding, tmp_path
):
    # the rule marked only the third run of t1, the label's median is the first
    lines = [("puzzle.py:14", "start.record()  # <b>")]
    analysis = builder(findings=[{**finding, "interval": 2}])
    source = frames.of_rows(lines, frames.SOURCE_LINES)
    open_page(driver, replace(analysis, source_lines=source), tmp_path)
    card = driver.find_element("css selector", "#cards .card")
    heads = [e.text.strip() for e in card.find_elements("css selector", ".advice strong")]
    assert heads == ["To measure GPU time only:", "To make it faster:"]
    assert card.find_element("css selector", ".advice.faster pre").text == "f = torch.compile(f)"
    assert card.find_element("css selector", ".source").text.split("\n")[-1].endswith("# <b>")
    assert driver.execute_script("return document.querySelector('#cards a').hash") == "#interval-2"
    driver.execute_script("choose('t2', null, false)")
    until(driver, "document.querySelector('#lanes').dataset.drawn.startsWith('3:')", "drawing t2")
    driver.execute_script("location.hash = '#interval-2'")
    drawn = "document.querySelector('#lanes').dataset.drawn.startsWith('2:')"
    until(driver, drawn, "following the link")
    # the mark beside a label in the table leads to its finding
    driver.execute_script("document.querySelector('#budgets .flag').click()")
    top = "document.querySelector('#cards .card').getBoundingClientRect().top"
    until(driver, f"Math.abs({top}) < 100", "scrolling to the finding")
    quiet(driver)


def test_the_clock_in_the_page(driver, analysis, tmp_path):
    """Six intervals, from 10 ms on, 1 ms apart; the clock falls at 12 ms."""
    stretches = [(0, 11, 1980, 0), (12, 13, 1755, 4), (13, 40, 1740, 4)]
    rows = [
        (0, a * 10**6, b * 10**6, 1 + (b - a) // 25, mhz, mhz, 3201, why, 690_000, -1)
        for a, b, mhz, why in stretches
    ]
    table = frames.of_rows(rows, frames.GPU_CLOCKS)
    open_page(driver, replace(analysis, gpu_clocks=table), tmp_path)
    strip = driver.find_element("id", "environment").text
    assert "1740 to 1980 MHz" in strip and "slowed down at times" in strip and "CUDA_EVENT" in strip
    driver.execute_script("choose('t2', null, false)")  # from 13.7 ms on
    driver.execute_script("document.querySelector('#clocks').scrollIntoView()")
    plot = "drawings.get(document.querySelector('#clock-plot'))"
    until(driver, plot, "the chart of the whole run")
    said = driver.execute_script(f"return {plot}.hits.map(hit => hit.said.join(' | '))")
    assert "software power cap | for 28.0 ms" in said
    # one run of t2, which measured 57.2 us, as two marks: measured and kernel only
    assert said.count("t2#0 | measured 57.2 us, kernel only 24.7 us") == 2
    quiet(driver)
    html.write(analysis, tmp_path / "without.html")
    driver.get((tmp_path / "without.html").as_uri())
    until(driver, "document.body.dataset.ready", "the page without samples")
    driver.execute_script(UNFOLD)
    assert not driver.find_element("id", "clocks").is_displayed()
    assert "not sampled" in driver.find_element("id", "environment").text


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_axe_finds_nothing(driver, analysis, tmp_path, width, colours):
    """In the widths and colours that people have them in."""
    html.write(analysis, tmp_path / "report.html")
    axe = resources.files(pytest.importorskip("axe_core_python")).joinpath("axe.min.js").read_text()
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    media = [{"name": "prefers-color-scheme", "value": colours}]
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    try:
        driver.get("about:blank")
        driver.get((tmp_path / "report.html").as_uri())
        until(driver, "document.body.dataset.ready", "the page")
        ground = "return getComputedStyle(document.body).backgroundColor"
        assert (driver.execute_script(ground) == "rgb(21, 23, 27)") == (colours == "dark")
        # only tables scroll sideways, in their own frames
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert driver.execute_script(f"return {wide}") <= 1
        driver.execute_script(axe)
        found = driver.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then(result => done({passes: result.passes.length,"
            " violations: result.violations.map(v => [v.id, v.nodes.map(node => [node.html, node.any.map(c => c.message)])])}))"
        )
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        driver.get("about:blank")
    assert found["violations"] == [] and found["passes"] > 10
