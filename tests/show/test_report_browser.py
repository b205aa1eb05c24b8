"""The page in a real browser, from file://: it runs, it is quiet, and foreign text stays text."""

import re
import time
from dataclasses import replace

import pandas as pd
import pytest
from browsing import quiet, until
from cases.drawing import in_nanoseconds, kernel
from simulator import check, export
from simulator.world import LEGACY, World

from nsysalign import frames
from nsysalign.addons.confirm.tables import CONFIRMATIONS
from nsysalign.show import html

pytestmark = pytest.mark.browser

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
        "[...document.querySelectorAll('#roles button')].find(b => b.textContent == 'slowest').click()"
    )
    until(
        driver,
        "document.querySelector('#lanes').dataset.drawn.startsWith('1:')",
        "drawing the slowest",
    )
    assert "245 us" in driver.find_element("id", "reading").text
    assert driver.execute_script(f"return {LANES}") == [
        "events",
        "budget",
        "NVTX, thread 484",
        "CUDA calls, thread 484",
        "records, stream 7",
        "stream 7",
        "records, stream 13",
        "SM clock 1755 to 1980 MHz",
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
    driver.execute_script("document.querySelector('#pieces').open = true")
    until(
        driver,
        "document.querySelectorAll('#pieces tbody tr').length == 5",
        "the table of the pieces",
    )
    quiet(driver)


def test_an_interval_is_told_by_the_other_clocks_of_its_trace(looked_at, analysis):
    """The span of its operations, which may have gaps, and their sum, recomputed from its pieces."""
    ran = analysis.segments[
        analysis.segments["cause"].isin(["kernel", "graph", "memcpy", "memset"])
    ]
    shown = looked_at.execute_script("return Object.keys(DATA.timelines).map(Number)")
    told = set()
    for row in analysis.measured[analysis.measured["interval"].isin(shown)].itertuples():
        said, mine = clocks_of(looked_at, row), ran[ran["interval"] == row.interval]
        lengths = mine["end_ns"].max() - mine["start_ns"].min(), sum(mine["end_ns"] - mine["start_ns"])  # fmt: skip
        if len(mine):
            words = [looked_at.execute_script("return duration(arguments[0])", int(ns)) for ns in lengths]  # fmt: skip
            gap = "without a gap." if lengths[0] == lengths[1] else f"{words[1]} with one running."
            assert f"end of its last one: {words[0]}, {gap}" in said
        assert ("first operation" in said) == bool(len(mine))
        told.add(bool(len(mine)))
    assert True in told


def clocks_of(driver, row):
    chosen = "choose(arguments[0], arguments[1], false); return $('label-without').textContent"
    return driver.execute_script(chosen, row.label, row.interval)


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
    # pointing at the kernel draws the arrow from the call that issued it, and no other
    assert driver.execute_script("return document.querySelectorAll('#lanes .arrow').length") == 1
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
    ActionChains(driver).double_click(plot).perform()
    until(
        driver,
        f"document.querySelector('#lanes').dataset.drawn == '{drawn}'",
        "fitting by double click",
    )
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
        ink = "getComputedStyle(document.querySelector('#lanes text.lane')).fill"
        assert driver.execute_script(f"return {ink}") == "rgb(231, 233, 236)"
        quiet(driver)
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_hostile_names_are_only_text(driver, hostile_analysis, tmp_path):
    stretch = [(0, 0, 40_000_000, 9, 1980, 1980, 3201, 4, 690_000, -1)]
    clocks = frames.of_rows(stretch, frames.GPU_CLOCKS)
    open_page(driver, replace(hostile_analysis, gpu_clocks=clocks), tmp_path)
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    driver.execute_script("document.querySelector('#clocks').scrollIntoView()")
    until(driver, "drawings.get(document.querySelector('#clock-plot'))", "the clock")
    driver.execute_script("document.querySelectorAll('#cards a').forEach(b => b.click())")
    time.sleep(0.5)
    # Everything that is drawn explains itself, one after the other.
    said = driver.execute_script(
        "return [...drawings.values()].flatMap(d => d.hits).map(hit => { showTip(hit.said, 9, 9); return document.querySelector('#tip').innerText })"
    )
    assert any("onerror=alert(1)" in text for text in said)
    assert (
        driver.execute_script(
            "return document.querySelectorAll('img, iframe, a[href^=javascript]').length"
        )
        == 0
    )
    assert driver.execute_script("return document.scripts.length") == 2
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
    analysis = builder(findings=[{**finding, "interval": 2}])
    open_page(driver, analysis, tmp_path)
    assert driver.execute_script("return document.querySelector('#cards a').hash") == "#interval-2"
    driver.execute_script("choose('t2', null, false)")
    until(driver, "document.querySelector('#lanes').dataset.drawn.startsWith('3:')", "drawing t2")
    # the mark beside a label in the table leads to its finding
    driver.execute_script("document.querySelector('#budgets .flag').click()")
    top = "document.querySelector('#cards .card').getBoundingClientRect().top"
    until(driver, f"Math.abs({top}) < 100", "scrolling to the finding")
    driver.execute_script("location.hash = '#interval-2'")
    until(
        driver,
        "document.querySelector('#lanes').dataset.drawn.startsWith('2:')",
        "following the link",
    )
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
    assert (tmp_path / "large.html").stat().st_size < 2e6
    driver.get((tmp_path / "large.html").as_uri())
    until(driver, "document.body.dataset.ready", "getting ready")
    seen = "DATA.runs.map(r => [r.elapsed[499], r.parts.host[499], r.parts.kernel[499], nth(r.names, 499)].join())"
    assert set(driver.execute_script(f"return {seen}")) == {
        f"{124_000 + 7_919 * 499 + 1},{90_000 + 7_919 * 499},25001,499"
    }
    quiet(driver)


# --- tests that only look, one after the other at one page
# ------------------------------------------------------


def test_the_runs_are_drawn_and_tabulated(looked_at):
    driver = looked_at
    assert (
        "3 intervals: median 235 us, from 215 us to 245 us"
        in driver.find_element("id", "runs-reading").text
    )
    driver.execute_script("document.querySelector('#iterations').scrollIntoView()")
    paths = "[...document.querySelectorAll('#iterations path.cause')].map(p => p.getAttribute('d').split('M').length - 1)"
    # kernel, launch, event and host, each in three runs
    assert until(driver, f"{paths}.length && {paths}", "the bars") == [3, 3, 3, 3]
    driver.execute_script("document.querySelector('#runs-table').open = true")
    until(
        driver,
        "document.querySelectorAll('#runs-table tbody tr').length == 3",
        "the table of the runs",
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
        driver, "document.querySelectorAll('#items tbody tr').length == 7", "the table of the lanes"
    )
    assert "SM clock 1980 MHz sampled here" in driver.execute_script(f"return {SAID}")
    quiet(driver)


def test_kernel_to_event(looked_at):
    """A mark for the kernel and one for the event, the largest gap first; a label without a kernel
    has one mark.  What a library timed is shown on demand."""
    driver = looked_at
    rows = (
        "return [...document.querySelectorAll('#dumbbells li:not(.axis)')].map(r => [r.querySelector('button').textContent,"
        " r.querySelector('.value').textContent, r.querySelectorAll('.dot').length])"
    )
    own = [
        ["t1", "24.8 us → 235 us", 2],
        ["t2", "24.7 us → 57.2 us", 2],
        ["replay", "35.2 us → 52.2 us", 2],
    ]
    assert driver.execute_script(rows) == own
    driver.execute_script("document.querySelector('#dumbbell-more button').click()")
    assert driver.execute_script(rows) == [*own, ["do_bench", "30.0 us → 51.3 us", 2]]
    left = "[...document.querySelectorAll('#dumbbells li')][0].querySelectorAll('.dot')"
    kernel, event = driver.execute_script(f"return [...{left}].map(d => parseFloat(d.style.left))")
    assert 0 <= kernel < event <= 100


def test_the_waterfall_leads_from_the_event_to_the_kernel(looked_at):
    driver = looked_at
    rows = "[...document.querySelectorAll('#cards .fall')[0].children].map(r => [r.querySelector('.name').textContent, r.querySelector('.value').textContent])"
    assert driver.execute_script(f"return {rows}") == [
        ["measured", "235 us"],
        ["host", "−174 us"],
        ["launch", "−28.3 us"],
        ["event", "−7.15 us"],
        ["kernel", "24.8 us"],
    ]
    # every step begins where the one above it ends
    edges = driver.execute_script(
        "return [...document.querySelectorAll('#cards .fall')[0].querySelectorAll('.piece')].slice(1).map(p => parseFloat(p.style.left))"
    )
    ns = [234_720, 174_490, 28_310, 7_150]
    rest = [ns[0] - sum(ns[1 : k + 1]) for k in range(1, 4)]
    assert edges == [pytest.approx(100 * r / ns[0], abs=0.01) for r in rest] + [0]
    # a host timer's own time holds no kernel: what ran beside it is said, as in the terminal
    timer = "{label: 'timer', elapsed: 9000, ran: 2240, parts: {host: 9000, kernel: 0, graph: 0}}"
    last = driver.execute_script(f"return waterfall({timer}).lastChild.textContent")
    assert last == "meanwhile2.24 us"
    assert driver.execute_script(f"return aside({timer})")


def test_the_run_in_one_sentence_and_a_strip(looked_at):
    driver = looked_at
    # the user's own labels: 3 x t1, t2, replay; in all 803.55 us, of which kernels and the graph
    # 134.25, the host 535.16
    assert driver.find_element("id", "headline").text.startswith(
        "5 intervals in 3 labels, 804 us under nsys: GPU busy 17 %, host 67 %"
    )
    names = driver.execute_script(
        "return [...document.querySelectorAll('#strip-labels button')].map(b => b.textContent)"
    )
    assert names == ["t1", "t2", "replay", "do_bench"]  # the most time first
    hit = driver.execute_script(
        "const box = document.querySelector('#strip').getBoundingClientRect();"
        "const hit = stripAt({clientX: box.right - 1, clientY: box.top + 3 * STRIP_ROW + 9}); return [hit.row.label.label, hit.i]"
    )
    assert hit == ["do_bench", 0]


def test_everything_has_a_name_for_a_screen_reader(looked_at):
    driver = looked_at
    nameless = driver.execute_script(
        "return [...document.querySelectorAll('button, select, input, a[href], [role=region], [role=application], [role=img], [role=group]')]"
        ".filter(e => !e.closest('label') && !(e.textContent.trim() || e.ariaLabel || e.getAttribute('aria-labelledby')))"
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
            "return [...document.querySelectorAll('.scroll')].every(e => getComputedStyle(e).maxHeight === 'none')"
        )
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_plots_follow_the_width_of_the_window(looked_at):
    driver = looked_at
    driver.execute_script("document.querySelector('#iterations').scrollIntoView()")
    until(driver, "document.querySelector('#iterations svg')", "the runs")
    size = driver.get_window_size()
    boxes = "['lanes', 'iterations'].map(i => document.querySelector('#' + i + ' svg').getBoundingClientRect()).map(b => [b.width, b.height])"
    before = driver.execute_script(f"return {boxes}")
    try:
        driver.set_window_size(1000, 800)
        until(driver, f"{boxes}[0][0] < {before[0][0] - 200}", "the narrower plot")
        after = driver.execute_script(f"return {boxes}")
        assert [b[1] for b in after] == [b[1] for b in before] and min(b[1] for b in after) > 200
        quiet(driver)
    finally:
        driver.set_window_size(size["width"], size["height"])


def test_a_phone_scrolls_in_one_direction_only(driver, builder, tmp_path):
    """Long names break or are cut; only tables scroll sideways, in their own frames."""
    long = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4_execute"
    runs = [[("host", 60_000, ""), ("kernel", 20_000, long)]] * 12
    analysis = builder([(f"{long}_{k}", "event", f"{long}.py:{k}", False, runs) for k in range(3)])
    before = analysis.timeline[analysis.timeline["lane_kind"] == "stream"].assign(
        lane_kind="before"
    )
    timeline = pd.concat([analysis.timeline, before], ignore_index=True)
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        open_page(
            driver, replace(analysis, timeline=frames.check(timeline, frames.TIMELINE)), tmp_path
        )
        assert long in driver.find_element("id", "before").text
        for _ in range(2):
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert driver.execute_script(f"return {wide}") <= 1
            driver.execute_script("scrollTo(0, document.body.scrollHeight)")
            until(driver, "document.querySelector('#iterations svg')", "the runs")
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    quiet(driver)


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


def test_a_table_is_copied_as_text(looked_at):
    tsv, markdown = looked_at.execute_script(
        "const t = document.querySelector('#budgets'); return [tableText(t, false), tableText(t, true)]"
    )
    head, first = (line.split("\t") for line in tsv.splitlines()[:2])
    row = dict(zip(head, first, strict=True))
    assert (
        row["n"] == "3"
        and row["kernel us"] == "24.77"
        and row["host us"] == "174.49"
        and "budget" not in row
    )
    lines = markdown.splitlines()
    assert set(lines[1]) <= set("|-: ") and len({line.count("|") for line in lines}) == 1


def test_what_costs_most_comes_first_and_wrong_numbers_apart(driver, builder, finding, tmp_path):
    """Ranked by their own loss over all runs; an error is no loss."""

    def one(label, ns, runs):
        return (
            label,
            "event",
            f"{label}.py:1",
            False,
            [[("host", ns, ""), ("kernel", 5_000, "gemm")]] * runs,
        )

    labels = [
        one("rare", 900_000, 1),
        one("often", 30_000, 40),
        one("wrong", 2_000_000, 1),
        one("alike", 20_000, 2),
    ]
    said = [
        ("rare", "queued-dependency", "warning"),
        ("often", "host-gap", "warning"),
        ("wrong", "wrong-stream", "error"),
    ]
    said += [("alike", "host-gap", "warning"), ("often", "high-variance", "info")]
    losses = {"rare": 900_000, "often": 1_200_000, "alike": 40_000, "wrong": 0}
    findings = [
        {
            **finding,
            "label": label,
            "rule": rule,
            "severity": severity,
            "loss_ns": losses[label] * (severity != "info"),
        }
        for label, rule, severity in said
    ]
    open_page(driver, builder(labels, findings=findings), tmp_path)
    cards = driver.execute_script(
        "return [...document.querySelectorAll('#cards .card')].map(c => [c.querySelector('.where button').textContent,"
        " c.querySelector('.lost').textContent, [...c.querySelectorAll('.same button, .chip')].map(b => b.textContent)])"
    )
    assert cards == [
        ["often", "loss 1.20 ms", ["● high-variance", "alike"]],
        ["rare", "loss 900 us", []],
    ]
    assert (
        driver.execute_script("return document.querySelector('#wrong .kicker').textContent")
        == "✖ wrong-stream"
    )
    driver.execute_script("document.querySelector('#wrong details').open = true")
    until(driver, "document.querySelector('#wrong .card')", "unfolding")
    quiet(driver)


def test_a_rerun_is_seen_on_the_card(driver, builder, finding, tmp_path):
    row = dict.fromkeys(CONFIRMATIONS.names, "")
    row |= {
        "label": "t1",
        "rules": ("host-gap",),
        "verdict": "confirmed",
        "changed": "a delay kernel",
    }
    row |= dict.fromkeys((n for n in CONFIRMATIONS.names if n.endswith("_ns")), 28_400.0)
    row |= {"before_count": 8, "after_count": 8, "reason": "198 us before, 28.4 us after"}
    table = frames.check(pd.DataFrame([row]), CONFIRMATIONS)
    open_page(driver, builder(findings=[finding]).with_tables({"confirmations": table}), tmp_path)
    said = driver.find_element("css selector", "#cards .rerun.better").text
    assert said == "✔ confirmed: a delay kernel: 198 us before, 28.4 us after"
    assert "nsysalign confirm" not in driver.find_element("id", "cards-note").text
    quiet(driver)


def test_the_run_as_a_whole_is_the_headline_and_no_label(driver, builder, tmp_path):
    """Kind "run" and a table of kernels, where an analysis has them."""
    runs = [[("host", 6_000_000, ""), ("kernel", 2_000_000, "gemm")]]
    labels = [
        ("t1", "event", "a.py:1", False, [[("host", 40_000, ""), ("kernel", 20_000, "gemm")]]),
        ("process 1", "run", "", False, runs),
    ]
    analysis = builder(labels)
    rows = [
        {
            "label": "t1",
            "kernel": "void gemm<1>(int)",
            "count": 1,
            "total_ns": 20_000,
            "median_ns": 20_000.0,
            "share": 1.0,
            "idle_before_ns": 40_000,
        }
    ]
    object.__setattr__(analysis, "kernels", pd.DataFrame(rows))
    open_page(driver, analysis, tmp_path)
    assert (
        driver.find_element("id", "headline").text
        == "8.00 ms from the first GPU work to the last, under nsys: GPU busy 25 %, host 75 %. "
        "1 interval in 1 label."
    )
    assert column(driver) == ["t1"]
    cells = driver.execute_script(
        "return [...document.querySelectorAll('#kernels tbody td')].map(c => c.innerText.trim())"
    )
    assert cells == ["gemm", "1", "20.00", "20.00", "100 %", "40.00"]
    quiet(driver)


def test_a_page_that_nobody_linked_into_opens_at_its_top(driver, analysis, tmp_path):
    """On a slow machine, too: what the page itself chooses first is no link to follow."""
    driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 8})
    try:
        open_page(driver, analysis, tmp_path)
        time.sleep(0.5)
        assert driver.execute_script("return [scrollY, location.hash]") == [0, ""]
    finally:
        driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 1})


def test_cards_tell_both_kinds_of_advice_apart_and_show_the_line_of_code(
    driver, analysis, tmp_path
):
    lines = pd.DataFrame(
        [("puzzle.py:14", "start.record()  # <b>")], columns=frames.SOURCE_LINES.names
    )
    lines = frames.check(lines, frames.SOURCE_LINES)
    open_page(driver, replace(analysis, source_lines=lines), tmp_path)
    card = driver.find_element("css selector", "#cards .card")
    heads = [e.text.strip() for e in card.find_elements("css selector", ".advice strong")]
    assert heads == ["To measure GPU time only:", "To make it faster:"]
    assert card.find_element("css selector", ".advice.faster pre").text == "f = torch.compile(f)"
    assert card.find_element("css selector", ".source").text.split() == [
        "puzzle.py:14",
        "start.record()",
        "#",
        "<b>",
    ]
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


def test_names_are_found_coloured_and_led_to(driver, analysis, tmp_path):
    open_page(driver, analysis, tmp_path)
    driver.execute_script("choose('t1', null, false)")
    name = driver.execute_script(
        "const lane = view.picture.lanes.find(l => l.kind === 'stream' && l.n.length);"
        "return DATA.strings[lane.n[0]]"
    )
    find = (
        "$('find').value = arguments[0]; $('find').dispatchEvent(new Event('input'));"
        "return [document.querySelectorAll('#lanes .match').length, $('finds').textContent]"
    )
    count, words = driver.execute_script(find, name)
    assert count >= 1 and words.startswith(f"{count} found")
    before = driver.execute_script("return [...view.range]")
    driver.execute_script("nextFound()")
    after = driver.execute_script("return [...view.range]")
    assert after[1] - after[0] < before[1] - before[0]
    assert driver.execute_script(find, "no such thing") == [0, "0 found"]


def test_names_that_look_alike_are_told_apart(looked_at):
    long = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, {}, {}>>(R)"
    names = [long.format(op, "unsigned int, float, 4, 4, a::long::tail") for op in ("Sum", "Max")]
    first, second = looked_at.execute_script("return shortNames(arguments[0])", names)
    assert first.startswith("reduce_kernel …Sum") and second.startswith("reduce_kernel …Max")
    cut = "return cutApart(arguments[0], 16)"
    blocks = [f"FSDP::pre_forward (encoder.block.{n}.layer.1)" for n in (14, 15)]
    assert len(set(looked_at.execute_script(cut, blocks))) == 2
    assert looked_at.execute_script(cut, ["one", "one", "a name that is not like it"])[0] == "one"


def test_a_bar_that_does_not_fit_keeps_its_proportions(driver, builder, tmp_path):
    open_page(driver, builder(), tmp_path)
    heights = driver.execute_script(
        "const label = {label: 'x', median: 100, count: 6};"
        "const runs = {elapsed: [10000, 100, 100, 100, 100, 100], error: 1, start: [0,1,2,3,4,5],"
        " interval: [0,1,2,3,4,5], names: [0,1,2,3,4,5], kernel: [2500, 25, 25, 25, 25, 25],"
        " parts: {kernel: [2500, 25, 25, 25, 25, 25], host: [7500, 75, 75, 75, 75, 75]}};"
        "plotRuns(label, runs, 1, 125);"
        "return [...document.querySelectorAll('#iterations path.cause')].map(path => {"
        " const [, low, top] = path.getAttribute('d').match(/^M\\S+ ([\\d.]+)V([\\d.]+)h/);"
        " return low - top; })"
    )
    assert heights[1] / heights[0] == pytest.approx(3, rel=0.05)
    assert driver.execute_script("return document.querySelectorAll('#iterations .broken').length")


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


def test_the_run_is_zoomed_down_to_a_launch_and_left_for_an_interval(driver, tmp_path):
    from selenium.webdriver import ActionChains

    open_page(driver, three_kernels(tmp_path, pair=True), tmp_path)
    strip = driver.find_element("id", "strip")
    whole = driver.execute_script("return strip.to - strip.from")
    ActionChains(driver).move_to_element(strip).click_and_hold().move_by_offset(
        100, 0
    ).release().perform()
    part = until(driver, f"strip.to - strip.from < {whole} / 2 && strip.from", "zooming the strip")
    driver.find_element("id", "strip-run").click()
    until(driver, "view.picture.whole", "the timeline of the run")
    assert driver.execute_script("return view.range[0] + DATA.wholes[0].start") == pytest.approx(
        part
    )
    # a link to the run leads to the run
    until(driver, "location.hash.includes(`run=${DATA.wholes[0].number}`)", "the address")
    driver.execute_script("zoomTo([-10, 30])")
    until(driver, f"{SAID}.some(said => /^kernel.*50.0 us/.test(said))", "one kernel")
    driver.execute_script(
        "drawings.get(document.querySelector('#lanes')).hits.find(hit => hit.go).go()"
    )
    assert driver.find_element("id", "timeline-head").text == "One interval"
    quiet(driver)
    driver.back()
    until(driver, "view.picture.whole", "the run again")
