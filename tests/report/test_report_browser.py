"""The page in a real browser, from file://: it runs, it is quiet, and foreign text stays text."""

import time

import pytest
from browsing import quiet, until

from nsysalign.report import html

pytestmark = pytest.mark.browser


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
    return driver


@pytest.fixture
def looked_at(driver, analysis, tmp_path_factory):
    """The page of `analysis` for tests that only look: opened once for all that follow one another."""
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
    assert driver.execute_script("return document.activeElement.parentNode.ariaSort") == "descending"
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
        "[...document.querySelectorAll('#roles button')].find(b => b.textContent == 'slowest').click()"
    )
    until(driver, "document.querySelector('#lanes').dataset.drawn.startsWith('1:')", "drawing the slowest")
    assert "245 us" in driver.find_element("id", "reading").text
    names = driver.execute_script(
        "return [...document.querySelectorAll('#lanes .ytick text')].map(t => t.textContent)"
    )
    assert names == [
        "events",
        "budget",
        "NVTX, thread 484",
        "CUDA calls, thread 484",
        "records, stream 7",
        "stream 7",
        "records, stream 13",
        "SM clock 1755 to 1980 MHz",
    ]
    hovers = driver.execute_script(
        "return document.querySelector('#lanes').data.flatMap(t => t.hovertext || [])"
    )
    assert any("gemm" in h and "24.8 us" in h and "grid 64 x 1 x 1" in h and "84.0 MB" in h for h in hovers)
    before = driver.execute_script("return document.querySelector('#lanes').dataset.drawn")
    driver.find_element("id", "lanes").send_keys("+")
    until(driver, f"document.querySelector('#lanes').dataset.drawn != '{before}'", "zooming by key")
    driver.find_element("id", "lanes").send_keys("0")
    until(driver, f"document.querySelector('#lanes').dataset.drawn == '{before}'", "fitting by key")
    driver.execute_script("document.querySelector('#pieces').open = true")
    until(driver, "document.querySelectorAll('#pieces tbody tr').length == 5", "the table of the pieces")
    quiet(driver)


def test_the_mouse_explains_and_zooms(driver, analysis, tmp_path):
    from selenium.webdriver import ActionChains

    open_page(driver, analysis, tmp_path)
    driver.execute_script("document.querySelector('#timeline').scrollIntoView()")
    text = until(
        driver,
        "[...document.querySelectorAll('#lanes .bartext')].find(t => t.textContent.startsWith('gemm'))",
        "the bar",
    )
    kernel = text.find_element("xpath", "..")
    ActionChains(driver).move_to_element(kernel).perform()
    script = "[...document.querySelectorAll('#lanes .hovertext')].map(t => t.textContent).join()"
    text = until(driver, script, "the hover text")
    assert "gemm" in text and "24.8 us, from 206.80 us" in text and "3391 GB/s" in text
    drawn = driver.find_element("id", "lanes").get_attribute("data-drawn")
    area = driver.find_element("css selector", "#lanes .nsewdrag")
    ActionChains(driver).move_to_element(area).click_and_hold().move_by_offset(150, 0).release().perform()
    until(driver, f"document.querySelector('#lanes').dataset.drawn != '{drawn}'", "zooming by dragging")
    ActionChains(driver).double_click(area).perform()
    until(driver, f"document.querySelector('#lanes').dataset.drawn == '{drawn}'", "fitting by double click")
    quiet(driver)


def test_dark_is_dark(driver, analysis, tmp_path):
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        open_page(driver, analysis, tmp_path)
        assert (
            driver.execute_script("return getComputedStyle(document.body).backgroundColor")
            == "rgb(21, 23, 27)"
        )
        assert driver.execute_script("return document.querySelector('#lanes').layout.font.color") == "#e7e9ec"
        quiet(driver)
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_hostile_names_are_only_text(driver, hostile_analysis, tmp_path):
    open_page(driver, hostile_analysis, tmp_path)
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    driver.execute_script("document.querySelectorAll('#cards a').forEach(b => b.click())")
    time.sleep(0.5)
    # Hover over every drawn bar's middle through plotly itself: its hover labels read a little HTML.
    driver.execute_script(
        "const p = document.querySelector('#lanes'); Plotly.Fx.hover(p, p.data.map((t, i) => ({curveNumber:i,"
        "pointNumber: 0})).filter(q => p.data[q.curveNumber].type == 'bar').slice(0, 1))"
    )
    time.sleep(0.3)
    assert (
        driver.execute_script("return document.querySelectorAll('img, iframe, a[href^=javascript]').length")
        == 0
    )
    assert driver.execute_script("return document.scripts.length") == 3
    assert "</script><img src=x onerror=alert(1)>" in driver.find_element("id", "cards").text
    quiet(driver)


def test_nothing_placed_is_a_page_too(driver, builder, tmp_path):
    path = tmp_path / "report.html"
    html.write(builder([]), path)
    driver.get_log("browser")
    driver.get(path.as_uri())
    until(driver, "document.querySelector('#timeline').hidden", "hiding what there is not")
    assert "No interval was placed" in driver.find_element("id", "cards").text
    quiet(driver)


def test_a_verdict_is_a_link_to_its_own_interval(driver, builder, finding, tmp_path):
    # the rule marked only the third run of t1, the label's median is the first
    analysis = builder(findings=[finding])
    marked = [("host-gap",) if number == 2 else () for number in analysis.intervals["interval"]]
    analysis.intervals["findings"] = marked
    open_page(driver, analysis, tmp_path)
    assert driver.execute_script("return document.querySelector('#cards a').hash") == "#interval-2"
    driver.execute_script("document.querySelectorAll('#cards a')[1].click()")
    until(driver, "document.querySelector('#lanes').dataset.drawn.startsWith('3:')", "drawing t2")
    driver.execute_script("location.hash = '#interval-2'")
    until(driver, "document.querySelector('#lanes').dataset.drawn.startsWith('2:')", "following the link")
    quiet(driver)


def test_the_page_opens_with_the_interval_that_was_asked_for(driver, analysis, tmp_path):
    html.write(analysis, tmp_path / "focus.html", focus=4)
    driver.get((tmp_path / "focus.html").as_uri())
    until(
        driver,
        "(document.querySelector('#lanes').dataset.drawn || '').startsWith('4:')",
        "drawing the interval",
    )
    quiet(driver)


def test_25_000_intervals_are_on_the_screen(driver, builder, tmp_path):
    def pieces(run):
        return [
            ("host", 90_000 + 7_919 * run, ""),
            ("api_launch", 9_000, ""),
            ("kernel", 25_000 + run % 3, "gemm"),
        ]

    runs = [pieces(run) for run in range(500)]
    labels = [(f"region_{k}", "event", f"bench.py:{k}", False, runs) for k in range(50)]
    analysis = builder(labels, timeline=False)
    html.write(analysis, tmp_path / "large.html")
    assert (tmp_path / "large.html").stat().st_size < 8e6
    driver.get((tmp_path / "large.html").as_uri())
    until(driver, "document.body.dataset.ready", "getting ready")
    seen = "DATA.runs.map(r => [r.elapsed[499], r.parts.host[499], r.parts.kernel[499], nth(r.names, 499)].join())"
    assert set(driver.execute_script(f"return {seen}")) == {
        f"{124_000 + 7_919 * 499 + 1},{90_000 + 7_919 * 499},25001,499"
    }
    quiet(driver)


# --- tests that only look, one after the other at one page ------------------------------------------------------


def test_the_runs_are_drawn_and_tabulated(looked_at):
    driver = looked_at
    assert "3 runs, median 235 us, from 215 us to 245 us" in driver.find_element("id", "runs-reading").text
    assert until(driver, "document.querySelectorAll('#iterations .barlayer .point').length", "bars") == 12
    driver.execute_script("document.querySelector('#runs-table').open = true")
    until(driver, "document.querySelectorAll('#runs-table tbody tr').length == 3", "the table of the runs")
    quiet(driver)


def test_a_record_points_at_the_wait_that_it_releases(looked_at):
    driver = looked_at
    lines = driver.execute_script(
        "return document.querySelector('#lanes').data.filter(t => t.mode == 'lines').map(t => [...t.x, ...t.y])"
    )
    # one thick arrow, from the record of stream 13 (below) up to the end of the wait on stream 7, both 5 us
    # after the start
    assert [line[:2] for line in lines if line and line[0] == 5] == [[5, 5]]
    assert "12 shortest CUDA calls" in driver.find_element("id", "reduced").text
    driver.execute_script("document.querySelector('#items').open = true")
    until(driver, "document.querySelectorAll('#items tbody tr').length == 7", "the table of the lanes")
    hovers = driver.execute_script(
        "return document.querySelector('#lanes').data.flatMap(t => t.hovertext || [])"
    )
    assert "SM clock 1980 MHz sampled here" in hovers
    quiet(driver)


def test_measured_against_kernel_only(looked_at):
    driver = looked_at
    driver.execute_script("document.querySelector('#against').scrollIntoView()")
    points = "document.querySelector('#scatter').data?.filter(t => t.mode == 'markers').reduce((n, t) => n + t.x.length, 0)"
    assert until(driver, points, "the scatter") == 6
    assert "1 run without a kernel stands at the left edge" in driver.find_element("id", "scatter-note").text
    driver.execute_script("document.querySelector('#scatter-table').open = true")
    rows = "[...document.querySelectorAll('#scatter-table tbody tr')].map(r => [...r.cells].map(c => c.textContent).join(' '))"
    assert until(driver, f"{rows}.length && {rows}", "its table")[0] == "t1 234.72 24.77 9.48"
    quiet(driver)


def test_everything_has_a_name_for_a_screen_reader(looked_at):
    driver = looked_at
    nameless = driver.execute_script(
        "return [...document.querySelectorAll('button, select, input, a[href], [role=region], [role=application], [role=img], [role=group]')]"
        ".filter(e => !e.closest('.js-plotly-plot .modebar') && !e.closest('label') && !(e.textContent.trim() || e.ariaLabel || e.getAttribute('aria-labelledby')))"
        ".map(e => e.outerHTML.slice(0, 120))"
    )
    assert nameless == []
    # every control can be reached by Tab
    assert driver.execute_script(
        "return [...document.querySelectorAll('main button, main a, main select')].every(e => e.tabIndex >= 0)"
    )


def test_paper_shows_everything_and_no_buttons(looked_at):
    driver = looked_at
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = "getComputedStyle(document.querySelector('{}')).display"
        assert driver.execute_script(f"return {shown.format('.controls')}") == "none"
        assert driver.execute_script(f"return {shown.format('.card')}") != "none"
        assert driver.execute_script(
            "return document.querySelector('.tall').scrollHeight <= document.querySelector('.tall').clientHeight + 2"
        )
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_plots_keep_their_height_when_the_window_changes(looked_at):
    driver = looked_at
    size = driver.get_window_size()
    heights = "return ['lanes', 'iterations'].map(i => Math.round(document.querySelector('#' + i + ' .main-svg').getBoundingClientRect().height))"
    widths = heights.replace("height)", "width)")
    before, wide = driver.execute_script(heights), driver.execute_script(widths)
    try:
        driver.set_window_size(1000, 800)
        until(driver, f"({widths.removeprefix('return ')})[0] < {wide[0] - 200}", "the narrower plot")
        after = driver.execute_script(heights)
        assert all(abs(a - b) <= 3 for a, b in zip(after, before, strict=True)) and min(after) > 300
        quiet(driver)
    finally:
        driver.set_window_size(size["width"], size["height"])
