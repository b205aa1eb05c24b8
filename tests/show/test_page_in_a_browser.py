"""The page of an analysis in a real browser, from file://: it runs, it is quiet, and foreign text
stays text."""

import re
from dataclasses import replace
from importlib import resources
from itertools import pairwise, product
from xml.etree import ElementTree

import pytest
from browsing import quiet, until
from cases.drawing import in_nanoseconds, kernel
from handmade import CASES, build
from simulator import check, export
from simulator.world import LEGACY, World
from test_hostile import STRINGS
from thorough import part

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.compare.label_changes import compare
from nsysalign.show import diff_page, html, markdown

pytestmark = pytest.mark.browser

UNFOLD = "for (const d of document.querySelectorAll('.fold, .about')) d.open = true"
DRAWN = "document.querySelector('#lanes').dataset.drawn"
#: What the timeline explains when pointed at, and the names of its lanes.
SAID = "drawings.get(document.querySelector('#lanes')).hits.map(hit => hit.said.join(' | '))"
LANES = "[...document.querySelectorAll('#lanes text.lane')].map(t => t.firstChild.textContent)"
LABELS = "[...document.querySelectorAll('#budgets tbody tr')].map(r => r.dataset.label)"


class Page:
    """A page that is open: `page("expression")` is its value."""

    def __init__(self, driver, analysis, path):
        self.driver = driver
        driver.get_log("browser")
        driver.get_log("performance")
        html.write(analysis, path)
        driver.get(path.as_uri())
        self.until(f"document.body.dataset.ready && {DRAWN}")
        driver.execute_script(UNFOLD)

    def __call__(self, expression, *arguments):
        return self.driver.execute_script(f"return {expression}", *arguments)

    def until(self, expression):
        return until(self.driver, expression, expression)

    def text(self, place):
        return self.driver.find_element("id", place).text

    def type(self, place, text):
        self.driver.find_element("id", place).send_keys(text)


@pytest.fixture
def page(driver, analysis, tmp_path):
    """That of the analysis made by hand; at the end it has said nothing on the console."""
    yield Page(driver, analysis, tmp_path / "report.html")
    quiet(driver)


@pytest.fixture
def opened(driver, tmp_path):
    """The page of another analysis, on demand."""
    yield lambda analysis: Page(driver, analysis, tmp_path / "other.html")
    quiet(driver)


def test_the_table_sorts_and_filters(page):
    assert page(LABELS) == ["t1", "t2", "replay", "do_bench"]
    page("document.querySelector('[data-key=kernel]').focus()")
    page("document.querySelector('[data-key=kernel]').click()")
    assert page(LABELS) == ["do_bench", "t1", "t2", "replay"]
    assert page("document.activeElement.dataset.key") == "kernel"
    assert page("document.activeElement.parentNode.ariaSort") == "descending"
    page("document.activeElement.click()")
    assert page(LABELS) == ["replay", "t2", "t1", "do_bench"]
    page.type("filter", "puzzle 17")
    assert page(LABELS) == ["t2"]


def test_a_repetition_has_the_verdict_of_its_kind(opened):
    """Not that of the label's leading kind, whose CPU it does not have."""
    late, quick = (
        [("kernel", 9_000, "add"), ("host", 200_000, "")],
        [("kernel", 60_000, "gemm"), ("event", 2_000, "")],
    )
    page = opened(build([("t1", "event", "puzzle.py:14", False, [late, quick] * 8)]))
    said = {}
    for row in (0, 1):
        page(f"document.querySelectorAll('#rows .group button')[{row}].click()")
        words = page(f"document.querySelectorAll('#rows .group .words')[{row}].textContent")
        said[words] = page("document.querySelector('#reading .look').textContent")
    assert len(said) == 2 and all(text.endswith(words) for words, text in said.items())


def test_marks_of_the_breakdown_agree_with_the_signs_of_the_rows(opened, finding):
    """Of a wrong timing ✖, as in the list above it, and its groups have none that would say otherwise."""
    wrong = {**finding, "severity": "error", "title": "t1 times nothing.", "rule": "nothing-inside"}
    long, short = (
        [("kernel", 90_000, "gemm"), ("host", 90_000, "")],
        [("kernel", 9_000, "add"), ("host", 9_000, "")],
    )
    page = opened(
        build([("t1", "event", "puzzle.py:14", False, [long, short] * 8)], findings=[wrong])
    )
    assert page("[...document.querySelectorAll('#rows .sign')].map(s => s.textContent)") == [
        "✖",
        "·",
        "·",
    ]
    assert page("document.querySelector('#budgets .flag').firstChild.textContent") == "✖"


def test_an_interval_is_chosen_drawn_zoomed_and_explained(page):
    assert page(DRAWN).startswith("0:")  # the finding's interval
    roles = "[...document.querySelectorAll('#run-strip .role')]"
    page(f"{roles}.find(b => b.textContent == 'slowest').click()")
    page.until(f"{DRAWN}.startsWith('1:')")
    assert "245 us" in page.text("reading")
    lanes = ["NVTX, thread 484", "CUDA calls, thread 484", "records, stream 7", "stream 7"]
    assert page(LANES) == ["events", "parts", *lanes, "records, stream 13"]
    (gemm,) = [said for said in page(SAID) if "gemm" in said and "grid" in said]
    assert "24.8 us" in gemm and "grid 64 x 1 x 1" in gemm and "84.0 MB" in gemm
    before = page(DRAWN)
    page.type("lanes", "+")
    page.until(f"{DRAWN} != '{before}'")
    page.type("lanes", "0")
    page.until(f"{DRAWN} == '{before}'")


def test_what_is_said_belongs_to_the_label_that_is_chosen(opened, finding):
    """The sentence, its verdict and what to change; a wrong timing stands first, with its reason."""
    wrong = {**finding, "severity": "error", "label": "t2", "rule": "wrong-stream", "interval": 3}
    wrong |= {"title": "t2 does not wait for its work.", "advice": "", "faster": "Wait:   s.wait()"}
    page = opened(build(findings=[finding, wrong]))
    rows = "[...document.querySelectorAll('#rows li')]"
    assert page(f"{rows}.map(r => r.dataset.label)") == ["t2", "t1", "replay", "do_bench"]
    assert page(f"{rows}.map(r => r.querySelector('.reason')?.textContent || '')") == [
        "It does not wait for its work.", "", "", ""
    ]  # fmt: skip
    for label, sentence, code in (
        ("t1", finding["title"], "torch.compile"),
        ("t2", "t2 does not wait for its work.", "s.wait()"),
        ("replay", "replay reads.", ""),
        ("t1", finding["title"], "torch.compile"),
    ):
        page(f"{rows}.find(r => r.dataset.label == '{label}').querySelector('button').click()")
        assert page.text("headline").startswith(sentence)
        assert code in page.text("fix") and bool(page.text("fix")) == bool(code)
        assert page(f"{rows}.find(r => r.ariaCurrent).dataset.label") == label
        page.until("scrollY == 0")  # where they stand
    assert "✖" not in page.text("reading")


def test_wrong_timings_are_open_with_their_reason_and_place(opened, finding):
    """Nothing is folded; their count leads to them."""
    wrong = {**finding, "severity": "error", "rule": "enqueue-only", "advice": "", "faster": ""}
    rows = [
        {**wrong, "label": label, "interval": number, "site": f"{label}.py:7", "title": f"{label} times the launching."}
        for label, number in (("t1", 0), ("t2", 3))
    ]  # fmt: skip
    page = opened(build(findings=rows))
    page("[...document.querySelectorAll('details')].forEach(d => { d.open = false })")
    shown = page.text("wrong")
    for text in ("t1 times the launching.", "t1.py:7", "t2 times the launching.", "t2.py:7"):
        assert text in shown
    page("scrollTo(0, 0), document.querySelector('#labels-head a').click()")
    assert page("document.querySelector('#labels-head a').innerText") == "✖ 2 wrong"
    page.until(
        "document.activeElement.id == 'wrong' && $('wrong').getBoundingClientRect().top < innerHeight - 50"
    )
    assert not opened(build()).text("wrong")


def test_all_repetitions_lie_below_the_picture_by_their_kind(opened):
    """Two paces in turns: a row each, and every repetition at its place in time."""
    long, short = [("kernel", 90_000, "gemm")], [("kernel", 9_000, "add")]
    page = opened(build([("t1", "event", "puzzle.py:14", False, [long, short] * 8)]))
    hits = "drawings.get($('repetitions')).hits"
    rows = page(f"[...new Set({hits}.map(hit => hit.y))].map(y => {hits}.filter(h => h.y == y).map(h => h.said[0].slice(3)))")  # fmt: skip
    assert sorted(rows) == [[f"{n}" for n in range(k, 16, 2)] for k in (0, 1)]
    page(f"{hits}.find(hit => hit.said[0] == 't1#5').go()")
    assert page("selected.interval") == 5
    page.type("repetitions", "\ue014")  # the right arrow
    assert page("selected.interval") == 6
    assert "t1#6, 90.0 us" in page("$('repetitions').ariaValueText")
    boxes = "[...document.querySelectorAll('#repetitions .axis text, #repetitions .strong')]"
    xs = page(
        f"{boxes}.map(t => t.getBoundingClientRect()).map(b => [b.left, b.right, Math.round(b.top)])"
    )
    below = sorted(x for x in xs if x[2] == max(top for _, _, top in xs))
    assert len(below) > 4 and all(a[1] < b[0] for a, b in pairwise(below))


def test_a_repetition_without_a_timeline_says_how_to_get_it(opened):
    """And the number of the last one is not cut by the frame."""
    runs = [[("kernel", 9_000 + n % 7, "gemm")] for n in range(400)]
    page = opened(build([("t1", "event", "puzzle.py:14", False, runs)], timeline=False))
    page("(DATA.timelines = {})")
    page("choose('t1', 399, false)")
    assert "does not hold its timeline" in page.text("reading")
    assert page("$('lanes').hidden && $('save-svg').hidden && $('compare').hidden")
    assert "measured" in page("whatIsChosen().markdown")
    inside = "[...document.querySelectorAll('#repetitions text')].every(t => t.getBoundingClientRect().right <= $('repetitions').getBoundingClientRect().right)"
    assert page(inside)


def test_two_repetitions_lie_side_by_side_and_their_parts_add_up(page):
    page("choose('t1', 0, false)")
    page("$('compare').click()")  # one click: from the median on, the fastest beside the slowest
    assert page("[selected.interval, view.other]") == [2, 1]
    page("$('compare').click()")
    page("choose('t1', 0, false)")
    page("compareTwo(byName('t1'), DATA.runs[DATA.labels.indexOf(byName('t1'))], 1)")
    assert page("[selected.interval, view.other]") == [0, 1]
    names = page(LANES)
    assert [name for name in names if name[:2] in ("A ", "B ")] == ["A #0", "B #1"]
    assert names.count("stream 7") == 2
    cells = "[...$('label-fall').querySelectorAll('tbody tr')].map(r => [...r.querySelectorAll('td')].map(c => Math.round(1e3 * parseFloat(c.innerText.replace('−', '-')))))"
    *parts, whole = page(cells)
    assert whole == [234_720, 244_720, 10_000]
    assert [sum(column) for column in zip(*parts, strict=True)] == whole
    page("drawings.get($('repetitions')).hits.find(hit => hit.said[0] == 't1#2').go()")
    assert page("[selected.interval, view.other]") == [0, 2]
    # so does what is saved: A, B and B − A, as in the table
    drawing = ElementTree.fromstring(page("((c) => svgOf(c.sentence, c.rows))(whatIsChosen())"))
    drawn = [element.text for element in drawing.iter() if element.tag.endswith("}text")]
    at = drawn.index("part, us")
    assert drawn[at : at + 4] == ["part, us", "A", "B", "B − A"]
    assert drawn[drawn.index("measured") :][:4] == page(
        "[...document.querySelector('#label-fall .whole').children].map(c => c.textContent)"
    )
    assert any("A: t1#0, B: t1#2" in (text or "") for text in drawn)
    assert "| B − A |" in page("whatIsChosen().markdown")
    # a chosen stretch of both: both sides of it
    page("chooseStretch([0, 50])")
    text = page("whatIsChosen().markdown")
    assert "| **selected** | 50.000 | 50.000 | 0.000 |" in text and "t1\\#0 and t1\\#2" in text
    assert page("whatIsChosen().rows[0]") == ["selected, us", ["A", "B", "B − A"]]
    page("chooseStretch(null)")
    # a link leads to both, and the button back to one
    page.until("location.hash.includes('with=2')")
    page("$('compare').click()")
    assert page("view.other") is None and "A #0" not in page(LANES)


def test_the_mouse_explains_and_zooms(page):
    from selenium.webdriver import ActionChains

    mouse = ActionChains(page.driver)
    page("document.querySelector('#lanes').scrollIntoView({block: 'center'})")
    names = "[...document.querySelectorAll('#lanes .block text')]"
    name = page.until(f"{names}.find(t => t.textContent.startsWith('gemm'))")
    mouse.move_to_element(name).perform()
    tip = page.until("!$('tip').hidden && $('tip').innerText")
    for said in ("gemm", "24.8 us, from 206.80 us", "3391 GB/s", "stream 7", "after its launch call began"):  # fmt: skip
        assert said in tip
    # pointing at the kernel draws the arrow from the call that issued it, beside that of the gap
    assert page("document.querySelectorAll('#lanes .arrow:not(.gap)').length") == 1
    assert page("document.querySelectorAll('#lanes .gap').length") == 1
    drawn, plot = page(DRAWN), page.driver.find_element("id", "lanes")
    mouse.move_to_element(plot).click_and_hold().move_by_offset(150, 0).perform()
    assert not page("$('tip').hidden")  # how long, while dragging
    assert re.fullmatch(r"[\d.]+ us", page.text("tip"))
    mouse.release().perform()
    page.until(f"{DRAWN} != '{drawn}'")
    assert page("$('tip').hidden && !document.querySelector('.band')")
    page("chooseStretch([100, 250])")
    assert "gemm\n×1 24.8 us" in page.text("selection")
    # its parts come first, and add up to its length: 150 us, of which 5.28 lie behind the interval
    rows = "[...document.querySelectorAll('#selection dl:first-of-type div')].map(d => d.innerText.split('\\n'))"
    parts = dict(page(rows))
    assert parts.pop("outside the interval") == "15.28 us" and len(parts) == 4
    assert sum(float(time.split()[0]) for time in parts.values()) == pytest.approx(134.72, abs=1e-6)
    # what is copied meanwhile is that stretch, not the whole
    text = page("whatIsChosen().markdown")
    assert (
        "**t1\\#0: 150.000 us, from 100.000 to 250.000 us**" in text
        and "| gemm | 1 | 24.770 |" in text
    )
    *parts, whole = [float(us) for us in re.findall(r"\| \**(\d+\.\d{3})\** \| (?:[<\d]|\|)", text)]
    assert sum(parts) == pytest.approx(whole) == pytest.approx(150)
    assert "measured" not in text and page("whatIsChosen().rows.map(r => r[0])")[0] == "selected"
    mouse.double_click(plot).perform()
    assert page.text("selection")  # stays until Escape
    page.until(f"{DRAWN} == '{drawn}'")


def test_find_looks_through_the_whole_run(page):
    """A kernel of another label: how often, where, and with one click drawn and marked."""
    page("choose('t1', null, false)")
    page.type("find", "do_b")
    assert "labels (1)" in page.text("found") and "do_bench ×1" in page.text("found")
    page("(DATA.everything = {names: ['only_there'], count: [7], labels: [[[1, 3]]], left: 0})")
    page("(DATA.strings[DATA.strings.indexOf('gemm')] = 'only_there')")
    page.type("find", "\ue003" * 9 + "only_")
    assert "kernels and copies (1)" in page.text(
        "found"
    ) and "×7 in the run\nin: t2 ×3\nin no label ×4" in page.text("found")
    # in the chosen label and elsewhere: how often here, how often elsewhere, and where
    page("DATA.everything.labels = [[[0, 2], [1, 3]]], drawFound()")
    assert page("DATA.labels.map(l => l.label)")[:2] == ["t1", "t2"]
    assert (
        "only_there ×7 in the run\nin this label ×2\nelsewhere: t2 ×3\nin no label ×2"
        in page.text("found")
    )
    # elsewhere, but in no label
    page("DATA.everything.labels = [[[0, 2]]], drawFound()")
    assert "only_there ×7 in the run\nin this label ×2\nin no label ×5" in page.text("found")
    # in no label's own time, but drawn in the picture of one: its kernel on another stream
    page("DATA.everything.labels = [[]], drawFound()")
    assert "×7 in the run\naround it, in the pictures of: t1, t2" in page.text("found")
    page("[...$('found').querySelectorAll('button')].find(b => b.textContent == 't2').click()")
    assert page("selected.label") == "t2" and not page("$('found').offsetHeight")
    assert page("document.querySelectorAll('#lanes .match').length") == 1
    page.type("find", "zzz")
    assert "No label, kernel, copy or range" in page.text("found")


@pytest.mark.parametrize("string", ["", *STRINGS[:3], STRINGS[10], STRINGS[13]])
def test_what_is_copied_is_what_show_prints_and_the_drawing_stands_alone(opened, string, finding):
    analysis = build(findings=[finding], name=lambda text: f"{text}{string}")
    page, said = opened(analysis), answer(analysis)
    for number in (0, 1, 3):
        page(f"chooseNumber({number}, false)")
        text = page("whatIsChosen().markdown")
        assert text == markdown.interval(analysis, said, number)
        table = [float(us.replace(",", "")) for us in re.findall(r"\| ([\d,.]+) \| [<\d]", text)]
        whole = analysis.intervals["elapsed_ns"].iloc[number]
        assert round(1e3 * sum(table)) == whole
        drawing = ElementTree.fromstring(page("((c) => svgOf(c.sentence, c.rows))(whatIsChosen())"))
        tags = {element.tag.split("}")[1] for element in drawing.iter()}
        assert tags <= {"svg", "g", "rect", "path", "line", "text", "title", "defs", "pattern", "clipPath"}  # fmt: skip
        links = {name for element in drawing.iter() for name in element.attrib if "href" in name}
        assert not links and "gemm" in "".join(drawing.itertext())


def test_work_on_other_streams_is_copied_and_saved(opened):
    """As on the screen: of two events without a kernel of their own, and of a host timer."""
    cases = [
        ("e", "event", "e.py:1", False, [[("host", 90_000, "")]]),
        ("h", "host", "h.py:1", False, [[("host", 30_000, "")]]),
    ]
    analysis = build(cases)
    ran = analysis.intervals["kernel_only_upper_ns"].to_numpy().copy()
    ran[1] = 12_000
    analysis = replace(
        analysis,
        intervals=analysis.intervals.assign(kernel_only_upper_ns=ran),
        other_streams=frames.of_rows([(0, 13, 75_000, False)], frames.OTHER_STREAMS),
    )
    page, said = opened(analysis), answer(analysis)
    for number, word, text in (
        (
            0,
            ["beside: other streams", ["(75.0 us)"]],
            "kernels ran for 75.000 us on other streams.",
        ),
        (
            1,
            ["beside: meanwhile", ["(12.0 us)"]],
            "kernels ran for 12.000 us in all, some of it while the CPU went on.",
        ),
    ):
        page(f"chooseNumber({number}, false)")
        assert word[0] + word[1][0] in page("$('label-fall').innerText.replaceAll('\\n', '')")
        assert page("whatIsChosen().rows.at(-1).slice(0, 2)") == word
        copied = page("whatIsChosen().markdown")
        assert f"Beside this sum {text}" in copied
        assert copied == markdown.interval(analysis, said, number)


def test_findings_are_open_on_paper(page):
    page("document.querySelectorAll('details').forEach(d => { d.open = false })")
    page("dispatchEvent(new Event('beforeprint'))")
    folds = "[...$('verdicts').querySelectorAll('details.fold, details.folded')]"
    assert page(f"{folds}.length && {folds}.every(d => d.open && d.innerText.length > 40)")
    page("dispatchEvent(new Event('afterprint'))")
    assert page(f"{folds}.every(d => !d.open)")


def test_a_record_points_at_the_wait_that_it_releases(page):
    # the wait of stream 7 ends 5 us after the start, where the record of stream 13 lies: the arrow
    # is upright
    hits = "drawings.get(document.querySelector('#lanes')).hits"
    line = f"{hits}.find(h => h.said[0].startsWith('waits for')).over().querySelector('line')"
    x1, x2, at, up = page(f"((l) => [l.x1.baseVal.value, l.x2.baseVal.value, view.frame.x(5), l.y1.baseVal.value > l.y2.baseVal.value])({line})")  # fmt: skip
    assert [x1, x2] == pytest.approx([at, at], abs=0.1) and up
    assert "12 shortest CUDA calls" in page.text("missing")  # in sight, not folded away
    page("document.querySelector('#items').open = true")
    page.until("document.querySelectorAll('#items tbody tr').length == 12")


def test_the_waterfall_leads_from_the_event_to_the_kernel(page):
    fall = "[...document.querySelectorAll('#label-fall .fall')[0].children]"
    words = "['.name', '.value'].map(c => r.querySelector(c).textContent)"
    assert page(f"{fall}.map(r => {words})") == [
        ["measured", "234.72 us"],
        ["CPU", "− 174.49 us"],
        ["launch", "− 28.31 us"],
        ["event overhead", "− 7.15 us"],
        ["kernel", "= 24.77 us"],
    ]
    # what is printed adds up, however it was rounded
    assert page("addends([333, 333, 334], 1000)") == ["0.33 us", "0.33 us", "0.34 us"]
    assert page("addends([1204999, 1204999, 2], 2410000)") == ["1.205 ms", "1.205 ms", "0.000 ms"]
    # every step begins where the one above it ends
    edges = page(f"{fall}.slice(1).map(r => parseFloat(r.querySelector('.piece').style.left))")
    rests = [60_230, 31_920, 24_770]
    assert edges == [pytest.approx(100 * r / 234_720, abs=0.01) for r in rests] + [0]
    # a host timer's own time holds no kernel: what ran beside it is said, as in the terminal
    timer = "{label: 'timer', kind: 'host', elapsed: 9000, beside: 2240, parts: {host: 9000, kernel: 0, graph: 0}}"
    assert page(f"waterfall({timer}).lastChild.textContent") == "beside: meanwhile(2.24 us)"
    cell = "COLUMNS.find(c => c.key == 'kernel').show"
    assert page(f"{cell}({timer})") == "(2.24)"
    # some of it the thread waited for: both, as in the terminal
    both = timer.replace("kernel: 0", "kernel: 2000")
    assert page(f"{cell}({both})") == "2.00 (2.24)"
    assert page(f"waterfall({both}).lastChild.textContent") == "beside: meanwhile(2.24 us)"
    assert page(f"kernelsOf({timer})") == "2.24 us beside it"
    assert page(f"kernelsOf({both})") == "kernels 2.00 us (2.24 us)"


def test_a_link_carries_what_is_seen_and_arrives(page):
    page("choose('t1', 1, false), zoomTo([10, 60])")
    page("document.querySelector('[data-key=kernel]').click()")
    page.type("filter", "t1")
    link = page.until(
        "location.hash.includes('filter=t1') && location.hash.includes('from=10') && location.href"
    )
    page.driver.get("about:blank")
    page.driver.get(link)
    page.until(f"{DRAWN} == '1:10.000:60.000'")
    assert page(LABELS) == ["t1"]
    sort = "document.querySelector('[data-key=kernel]').parentNode.ariaSort"
    assert page(sort) == "descending"
    page.until("scrollY == 0")


def test_back_leads_to_the_interval_before_and_an_anchor_scrolls(page):
    at_first = page("selected.label")
    for label in ("t2", "t1"):
        page("choose(arguments[0], null, true)", label)
        page.until(f"location.hash.includes('label={label}')")
    page.driver.back()
    page.until("selected.label === 't2'")
    page.driver.back()
    page.until(f"selected.label === '{at_first}'")
    page.driver.forward()
    page.until("selected.label === 't2'")
    page("(location.hash = '#runs')")
    page.until("(({ top }) => top >= 0 && top < innerHeight)($('runs').getBoundingClientRect())")


def test_a_run_without_intervals_has_its_timeline(opened, tmp_path):
    world = World(streams={7: LEGACY})
    for begin in (0, 100, 4_000):
        kernel(world, (begin + 2, begin + 6), (begin + 10, begin + 60))
    world.sync(4_020, 4_080)
    analysis = check.analyze(*export.write(in_nanoseconds(world), tmp_path))
    page = opened(analysis)
    number = int(analysis.intervals["interval"].iloc[0])
    assert page("whatIsChosen().markdown") == markdown.interval(analysis, answer(analysis), number)
    assert "kernel" in page.text("legend")
    sections = "[...document.querySelectorAll('#main > section')]"
    shown = page(f"{sections}.filter(s => s.clientHeight).map(s => s.id)")
    assert {"timeline", "kernels", "answers"} <= set(shown) and "labels" not in shown
    assert "4.05 ms from the first GPU work to the last" in page.text("reading")
    assert sum("50.0 us, from " in text for text in page(SAID)) == 3
    assert page(LANES)[-1] == "stream 7"


def test_cards_have_both_kinds_of_advice_the_line_of_code_and_a_link(opened, builder, finding):
    # the rule marked only the third run of t1, the label's median is the first
    analysis = builder(findings=[{**finding, "interval": 2}])
    source = frames.of_rows([("puzzle.py:14", "start.record()  # <b>")], frames.SOURCE_LINES)
    page = opened(replace(analysis, source_lines=source))
    card = page.driver.find_element("css selector", "#cards .card")
    heads = [e.text.strip() for e in card.find_elements("css selector", ".advice strong")]
    assert heads == ["To measure the GPU only:", "To make it faster:"]
    assert card.find_element("css selector", ".advice.faster pre").text == "f = torch.compile(f)"
    assert card.find_element("css selector", ".source").text.split("\n")[-1].endswith("# <b>")
    assert page("document.querySelector('#cards a').hash") == "#interval-2"
    page("choose('t2', null, false)")
    page.until(f"{DRAWN}.startsWith('3:')")
    page("(location.hash = '#interval-2')")
    page.until(f"{DRAWN}.startsWith('2:')")
    # the mark beside a label in the table leads to its finding
    page("document.querySelector('#budgets .flag').click()")
    page.until("Math.abs(document.querySelector('#cards .card').getBoundingClientRect().top) < 100")


def test_the_clock_in_the_page(page, opened, analysis):
    """Six intervals, from 10 ms on, 1 ms apart; the clock falls at 12 ms."""
    assert not page.driver.find_element("id", "clocks").is_displayed()
    assert "SM clock" not in page.text("environment")  # nothing is known of it
    stretches = [(0, 11, 1980, 0), (12, 13, 1755, 4), (13, 40, 1740, 4)]
    rows = [
        (0, a * 10**6, b * 10**6, 1 + (b - a) // 25, mhz, mhz, 3201, why)
        for a, b, mhz, why in stretches
    ]
    page = opened(replace(analysis, gpu_clocks=frames.of_rows(rows, frames.GPU_CLOCKS)))
    strip = page.text("environment")
    assert "1740 to 1980 MHz" in strip and "slowed down at times" in strip
    assert "CUDA_EVENT" in page.text("notes")
    page("choose('t2', null, false)")  # from 13.7 ms on
    page("document.querySelector('#clocks').scrollIntoView()")
    plot = "drawings.get(document.querySelector('#clock-plot'))"
    page.until(plot)
    said = page(f"{plot}.hits.map(hit => hit.said.join(' | '))")
    assert "software power cap | for 28.0 ms" in said
    # one run of t2, which measured 57.2 us, as two marks: measured and kernel only
    assert said.count("t2#0 | measured 57.2 us, kernel only 24.7 us") == 2


@pytest.mark.parametrize("width", [1400, 1051, 1000, 800, 720, 390])
def test_a_labels_row_is_whole_at_every_width(driver, tmp_path, finding, width):
    """Its bar can be seen, no text is cut without a sign of that, and nothing lies beside the page."""
    long = "forward of the twelfth transformer block, with its dropout (train.py:120)"
    cases = [
        (name, *rest) for (_, *rest), name in zip(CASES, (long, "t2", "t3", "t4"), strict=True)
    ]
    wrong = {**finding, "severity": "error", "label": long, "words": "wrong: a wait of others"}
    html.write(build(cases, findings=[wrong]), tmp_path / "wide.html")
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        driver.get((tmp_path / "wide.html").as_uri())
        until(driver, "document.body.dataset.ready", "the page")
        bars = (
            "[...document.querySelectorAll('#rows .bar')].map(b => b.getBoundingClientRect().width)"
        )
        assert min(driver.execute_script(f"return {bars}")) > 150
        cut = driver.execute_script(
            "return [...document.querySelectorAll('#rows li > *, #rows-head > *, #label-fall *')]"
            ".filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline'"
            " && getComputedStyle(e).textOverflow !== 'ellipsis').map(e => e.outerHTML)"
        )
        assert cut == []
        # so are the sum of what is selected and the legend
        driver.execute_script("choose('t2', null, false); chooseStretch([10, 50])")
        inside = (
            "[...document.querySelectorAll('#selection div > *, #selection strong, #legend li, #label-fall *')]"
            ".filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth"
            " || (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')).map(e => e.outerHTML)"
        )
        assert (
            driver.execute_script(f"return $('selection').innerText.length > 60 && {inside}") == []
        )
        beside = "[...document.querySelectorAll('#rows li > *')].filter(e => e.getBoundingClientRect().right > document.querySelector('#rows').getBoundingClientRect().right + 1).length"
        assert driver.execute_script(f"return {beside}") == 0
        words = driver.execute_script("return document.querySelector('#rows li').innerText")
        assert "wrong: a wait of others" in " ".join(words.split())
        if width < 1051:  # there is room for the whole name
            assert long in words
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.get("about:blank")


LOOKS = [*product(("report", "two repetitions", "diff"), (1400, 390), ("light", "dark"))]
#: The same page in the same width and colours, without or with what is chosen on it.
LOOKS_ALIKE = [
    ("report", 1400, "dark"), ("report", 390, "light"), ("two repetitions", 1400, "light"), ("two repetitions", 390, "dark"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "width", "colours"), part([look for look in LOOKS if look not in LOOKS_ALIKE], LOOKS)
)
def test_axe_finds_nothing(driver, analysis, tmp_path, kind, width, colours):
    """In the widths and colours that people have them in."""
    html.write(analysis, tmp_path / "report.html")
    if kind == "diff":
        diff_page.write(compare(analysis, analysis), analysis, analysis, tmp_path / "report.html")
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
        if kind == "two repetitions":
            driver.execute_script("$('compare').click(); $('find').value = 'gemm'; drawFound()")
            assert driver.execute_script("return view.other !== null && !$('found').hidden")
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
