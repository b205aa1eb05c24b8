"""What the page must say to be read right, in a real browser: scales, units, what is not compared."""

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
    assert f"#{without} (9.00 us) cannot be compared" in page.text("compared")
    assert page("view.picture.bands.length") == 2


def test_what_works_the_picture_is_not_offered_where_there_is_none(opened, driver, tmp_path):
    page = opened(build([("t1", "event", "puzzle.py:14", False, [LONG] * 8)]))
    shown = "['zoom', 'keys', 'items'].map(id => $(id).checkVisibility())"
    assert page(shown) == [True] * 3
    page("(DATA.timelines = {})")
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
    page = opened(analysed("demo", tmp_path).analysis)
    page("choose('host_none', null, false)")
    page.until(f"{DRAWN}.startsWith(selected.interval)")
    tip = "document.querySelector('#lanes .gap path').getBoundingClientRect().left"
    end = "[...document.querySelectorAll('#lanes line.event')].at(-1).getBoundingClientRect().left"
    assert page(tip) > page(end)
    kernel = page("view.picture.lanes.find(l => l.kind == 'stream')")
    last = next(i for i, x in enumerate(kernel["x"]) if x > page("view.picture.width"))
    assert page("view.range[1]") * 1e3 > kernel["x"][last] + kernel["d"][last]
    # so is work that began inside and went on, on a stream that the end event does not wait for
    page("choose('wrongstream', null, false)")
    assert page("endOfWork(view.picture) / view.picture.width") == 2
    # a timing whose work ran inside it ends as before
    page("choose('h2d_t1', null, false)")
    assert page("endOfWork(view.picture) == view.picture.width")


def test_labels_that_are_lines_say_of_which_file(opened):
    """As the head of the terminal's table does; one label has no order."""

    def timed(*lines):
        return build(
            [(f"bench.py:{n}", "event", f"bench.py:{n}", False, [SHORT] * 6) for n in lines]
        )

    page = opened(timed(12, 30))
    assert page("document.querySelector('#rows button').textContent") in ("12", "30")
    said = "2 labels in bench.py"
    assert page("document.querySelector('#labels-head .quiet').textContent") == said
    page = opened(timed(12))
    assert page("document.querySelector('#labels-head .quiet').textContent") == "1 label"


def test_no_number_of_the_repetitions_is_cut(opened):
    times = [1_234_567 + 1_111 * k for k in range(3_000)]
    page = opened(
        build([("t1", "event", "a.py:1", False, [[("kernel", t, "add")] for t in times])])
    )
    texts = "[...document.querySelectorAll('#repetitions text')].map(t => t.textContent)"
    assert "×3,000  2.90 ms (1.23 ms to 4.57 ms)" in page(texts)
    # without room for it the range is left out
    kind = page("kindTimes({ name: 'later', count: 3000, least: 1, most: 9, median: 5 }, 10)")
    assert kind == "×3,000  5 ns"


def test_words_of_a_label_stay_on_their_line(opened, finding):
    """A verdict beside nothing has the width of the row, and a share of all the time is within its column."""
    wrong = {**finding, "severity": "error", "rule": "wrong-stream", "title": "t1 times nothing."}
    cases = [("t1", "event", "a.py:1", False, [LONG] * 6)]
    page = opened(build(cases, findings=[wrong]))
    resized(page, 390)
    try:
        page.until("$('rows').clientWidth < 390")
        height = "document.querySelector('#rows .words').getBoundingClientRect().height"
        assert page(height) < 30
        shares = "[...document.querySelectorAll('#label-fall .of')]"
        assert "100 %" in page(f"{shares}.map(s => s.textContent)")
        assert page(f"{shares}.every(s => s.scrollWidth <= s.clientWidth)")
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


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


BOTH = [("t1", "event", "puzzle.py:14", False, [LONG, SHORT] * 8)]
SUM = "[...document.querySelectorAll('#label-fall li')].map(li => [...li.children].map(e => e.textContent))"


def in_two_kinds(count):
    """Many repetitions of two kinds, of which the page cannot hold each."""
    late, quick = (
        [("kernel", 9_000, "add"), ("host", 200_000, "")],
        [("kernel", 60_000, "gemm"), ("event", 2_000, "")],
    )
    return build([("t1", "event", "puzzle.py:14", False, [late, quick] * (count // 2))])


def test_each_kind_has_the_picture_of_its_typical_repetition(opened):
    many = in_two_kinds(320)
    kept = many.timeline["interval"].isin([0, 1])
    many = replace(many, timeline=many.timeline[kept])
    page = opened(many)
    typical = page("DATA.labels[0].groups.map(g => g.interval)")
    assert len(typical) == 2 and page("Object.keys(DATA.timelines).length") < 20
    for number in typical:
        page(f"choose('t1', {number}, false)")
        assert page("selected.interval") == number and page("Boolean(view.picture)")
    # those with a picture are marked, and one has a way to the picture of another
    held = page("DATA.runs[0].interval.filter(n => DATA.timelines[n]).length")
    assert page("document.querySelectorAll('#repetitions .has-picture').length") == held
    shape = "[selected.interval, document.documentElement.scrollHeight, $('compare').hidden]"
    before = page(shape)
    without = page("DATA.runs[0].interval.find(n => !DATA.timelines[n])")
    page(f"takeRepetition(DATA.labels[0], DATA.runs[0], {without})")
    assert page(shape) == before and page("Boolean(view.picture)")
    assert f"nsysalign report RUN --interval t1#{without}" in page.text("compared")
    page("$('compare').click()")
    assert page("view.picture.bands.length") == 2 and "typical one" in page.text("compared")


def test_the_median_stays_within_its_kind(opened):
    page = opened(in_two_kinds(16))
    for group in (0, 1):
        page(f"choose('t1', DATA.labels[0].groups[{group}].interval, false)")
        other = page(
            "DATA.runs[0].interval.find((n, i) => n !== selected.interval &&"
            " kindOf(DATA.runs[0], i) === kindOf(DATA.runs[0], placeOf(DATA.runs[0], selected.interval)))"
        )
        page(f"choose('t1', {other}, false)")
        page("document.querySelector('#roles button').click()")
        assert page("selected.interval") == page(f"DATA.labels[0].groups[{group}].interval")
        assert page("document.querySelector('#roles button').ariaPressed") == "true"


def test_a_verdict_says_whose_it_is_and_the_slowest_what_is_longer_in_it(opened):
    usual = [("host", 20_000, ""), ("kernel", 9_000, "add")]
    slow = [("host", 70_000, ""), ("kernel", 9_100, "add")]
    page = opened(
        build([("t1", "event", "puzzle.py:14", False, [usual] * 4 + [slow] + [usual] * 4)])
    )
    look = "document.querySelector('#reading .look').textContent"
    page("choose('t1', null, false)")
    alone = page(look)
    assert "longer" not in page.text("label-fall")
    page("choose('t1', 4, false)")
    sign, words = alone.split(" ", 1)
    assert page(look) == f"{sign} {words}"
    typical = page("typicalFor(DATA.labels[0], DATA.runs[0], 4)")
    assert f"#{typical}, the typical one (29.0 us): {sign} {words}" in page.text("reading")
    assert (
        f"50.1 us longer than #{typical}, the typical one; largest difference: CPU +50.0 us."
        in page.text("label-fall")
    )


def test_the_sum_has_shares_and_what_ran_beside_is_marked(opened):
    page = opened(
        build(
            [
                (
                    "t1",
                    "event",
                    "puzzle.py:14",
                    False,
                    [[("host", 1_000, ""), ("kernel", 9_000, "add")]] * 8,
                )
            ]
        )
    )
    page("(DATA.runs[0].beside = Array(8).fill(2670), choose('t1', 0, false))")
    assert page(SUM)[1:] == [
        ["CPU", "", "− 1.00 us", "10 %"],
        ["kernel", "", "= 9.00 us", "90 %"],
        ["beside: other streams", "", "(2.67 us)", ""],
    ]
    bold = "getComputedStyle(document.querySelectorAll('#label-fall .value')[{}]).fontWeight"
    assert [page(bold.format(k)) for k in (2, 3)] == ["700", "400"]


def test_differences_are_those_of_the_numbers_beside_them(opened):
    one, two = (
        [("kernel", 15_004, "add"), ("host", 24, "")],
        [("kernel", 15_013, "add"), ("host", 26, "")],
    )
    page = opened(build([("t1", "event", "puzzle.py:14", False, [one, two] * 8)]))
    page("(choose('t1', 0, false), compareTwo(DATA.labels[0], DATA.runs[0], 1))")
    cells = page(
        "[...document.querySelectorAll('#label-fall tbody tr')].map(r => [...r.querySelectorAll('td')]"
        ".map(c => Math.round(100 * parseFloat(c.textContent.replace('−', '-')))))"
    )
    assert len(cells) == 3 and all(b - a == more for a, b, more in cells)
    assert [sum(column) for column in zip(*cells[:-1], strict=True)] == cells[-1]


def compared(driver, tmp_path, before, after):
    diff_page.write(compare(before, after), before, after, tmp_path / "diff.html")
    driver.get((tmp_path / "diff.html").as_uri())
    until(driver, "document.body.dataset.ready", "the page")
    return lambda expression: driver.execute_script(f"return {expression}")


def of_two_labels(first, second, finding=None):
    """A recording with labels t1 and t2 of 12 repetitions each: the CPU's time (ns) in them."""
    runs = lambda ns: [[("host", ns, ""), ("kernel", 9_000, "add")]] * 12  # noqa: E731
    cases = [
        ("t1", "event", "a.py:1", False, runs(first)),
        ("t2", "event", "a.py:9", False, runs(second)),
    ]
    return build(cases, findings=[finding] if finding else [])


def test_a_comparison_says_at_its_top_what_changed_most(driver, tmp_path):
    page = compared(driver, tmp_path, of_two_labels(91_000, 20_000), of_two_labels(41_000, 10_000))
    assert page("$('headline').textContent").startswith(
        "t1 changed most: 100 us → 50.0 us (−50.0 %, faster); of its parts CPU changed most, −50.0 us. "
    )
    # none is slower, so none comes first
    assert page("$('labels-head').textContent") == "Label by label, faster ones first"
    page = compared(driver, tmp_path, of_two_labels(91_000, 20_000), of_two_labels(41_000, 90_000))
    assert page("$('labels-head').textContent") == "Label by label, slower ones first"
    assert page("$('headline').textContent").startswith("t2 changed most")
    page = compared(driver, tmp_path, of_two_labels(91_000, 9_000), of_two_labels(91_000, 9_000))
    assert page("$('headline').textContent").startswith("The two are the same")
    quiet(driver)


def test_a_wrong_timing_is_not_faster(driver, tmp_path, finding):
    wrong = {**finding, "severity": "error", "title": "t1 times nothing.", "rule": "nothing-inside"}
    page = compared(
        driver, tmp_path, of_two_labels(91_000, 20_000, wrong), of_two_labels(41_000, 10_000, wrong)
    )
    row = "document.querySelectorAll('#rows li')[{}].querySelector('{}').{}"
    rows = {page(row.format(k, "button", "textContent")): k for k in (0, 1)}
    look = [page(row.format(rows[name], ".words", "className")) for name in ("t1", "t2")]
    assert "error" in look[0] and "better" in look[1]
    assert page(row.format(rows["t1"], ".saving", "textContent")) == "wrong in A and B"
    assert page("$('headline').textContent").startswith("t2 changed most")
    # what is wrong is said first, and in the words of the terminal
    said = "A and B: t1 times nothing."
    assert page("$('wrong').innerText") == f"✖ {said}"
    top = "document.getElementById('{}').getBoundingClientRect().top"
    assert page(top.format("wrong")) < page(top.format("headline"))
    assert (
        page("$('labels-head').textContent") == "Label by label, wrong ones first, then faster ones"
    )
    assert page(row.format(rows["t1"], ".reason", "textContent")) == said
    # what the headline is about is drawn; of t1 the reason is said there, too, and begins what is copied
    assert page("selected.label.label") == "t2" and page("$('reasons').innerText") == ""
    page("choose(DATA.labels.find(({ label }) => label === 't1'), false)")
    assert page("$('reasons').innerText") == f"✖ {said}"
    page(
        "(() => { window.copied = ''; copyText = (text) => { window.copied = text; }; $('copy-markdown').click(); })()"
    )
    assert page("window.copied").lstrip("#* ").startswith(said)
    quiet(driver)


def test_parts_of_a_millisecond_or_more_are_not_cut(driver, tmp_path):
    page = compared(
        driver, tmp_path, of_two_labels(7_651_234, 20_000), of_two_labels(1_651_234, 10_000)
    )
    page("choose(DATA.labels.find(({ label }) => label === 't1'), false)")
    right = "Math.max(...[...document.querySelectorAll('.pair-table td')].map(c => c.getBoundingClientRect().right))"
    assert page(f"{right} <= $('sum').getBoundingClientRect().right + 0.5")
    assert (
        page("document.querySelector('.pair-table .whole').textContent")
        == "measured7.6601.660−6.000"
    )


def test_a_label_has_one_name_on_both_sides(driver, tmp_path):
    both = build(BOTH)
    page = compared(driver, tmp_path, both, both)
    names = page("view.picture.lanes.filter(l => l.kind === 'parts').map(l => l.name.slice(2))")
    assert names[0] == names[1] == page("selected.label.label")
    assert "(" in names[0]


def test_what_find_counts_adds_up_and_it_moves_and_hides_nothing(opened):
    page = opened(
        build(
            [
                ("t1", "event", "puzzle.py:14", False, [LONG] * 8),
                ("t2", "event", "puzzle.py:20", False, [LONG] * 6),
            ]
        )
    )
    page("choose('t1', null, false)")
    page("(DATA.everything = {names: ['gemm'], count: [20], labels: [[[0, 8], [1, 6]]], left: 0})")
    boxes = "['label', 'find', 'headline', 'lanes'].map(id => JSON.stringify($(id).getBoundingClientRect()))"
    before = page(boxes)
    page.type("find", "gemm")
    assert page(boxes) == before
    assert "×20 in the run\nin this label ×8\nelsewhere: t2 ×6\nin no label ×6" in page.text(
        "found"
    )
    assert page("$('found').getBoundingClientRect().top >= $('fix').getBoundingClientRect().bottom")
    status = "$('finds').getBoundingClientRect()"
    assert page(f"{status}.bottom <= $('headline').getBoundingClientRect().top + 4")
    page("$('find').value = ''")
    page.type("find", "t2\ue007")
    assert page("selected.label") == "t2" and page("$('found').hidden")


def test_what_is_shared_holds_the_fix(opened, finding):
    page = opened(build(findings=[finding]))
    fix = page("DATA.screen.fixes[0]")
    saved = "((c) => svgOf(c.sentence, c.rows, c.fixes))(whatIsChosen())"
    assert fix["code"][0] in page(saved) and fix["purpose"] in page(saved)
    page("$('compare').click()")
    assert page("view.picture.bands.length") == 2
    assert fix["code"][0] in page("whatIsChosen().markdown") and fix["code"][0] in page(saved)


def test_on_a_phone_the_picture_is_on_the_first_screen(opened, tmp_path):
    page = opened(analysed("demo", tmp_path).analysis)
    resized(page, 390)
    try:
        assert page("$('lanes').getBoundingClientRect().top + scrollY") < 600
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_names_that_a_saved_picture_cuts_stand_below_it(opened):
    name = "nvjet_sm90_hsh_128x24_64x11_4x1_v_bz_splitK_TNT"
    usual = [("host", 40_000, ""), ("kernel", 9_000, name)]
    page = opened(build([("t1", "event", "puzzle.py:14", False, [usual] * 8)]))
    drawn = "[...document.querySelectorAll('#lanes .block text')].map(t => t.textContent)"
    assert any("…" in text for text in page(drawn)) and name not in page(drawn)
    assert name in page("((c) => svgOf(c.sentence, c.rows, c.fixes))(whatIsChosen())")


def test_patterns_are_dark_on_a_dark_page_too(opened):
    page = opened(build())
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    try:
        style = "getComputedStyle(document.querySelector('#patterns {}')).{}"
        assert page(style.format(".dots", "fill")) == "rgb(0, 0, 0)"
        assert page(style.format(".hatch", "stroke")) == "rgb(27, 29, 33)"
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
