"""A comparison in a terminal and as JSON."""

import io
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from browsing import quiet, until
from handmade import CASES, FINDING, bad, build
from rich.console import Console

from nsysalign.compare.label_changes import compare
from nsysalign.show import diff as screen
from nsysalign.show import diff_page as page
from nsysalign.text import duration


def twelve(factor, name=str):
    cases = []
    for label, kind, site, library, runs in CASES:
        pieces = [
            (cause, int(ns * (factor if cause == "host" else 1)), what)
            for cause, ns, what in runs[0]
        ]
        cases.append((label, kind, site, library, [pieces] * 12))
    return build(cases, name=name)


@pytest.fixture
def comparison():
    return compare(twelve(1), twelve(0.25), names=("old", "new"))


def shown(comparison, width):
    stream = io.StringIO()
    screen.render(
        comparison, Console(file=stream, width=width, color_system=None, legacy_windows=False)
    )
    return stream.getvalue()


def test_the_document_is_in_nanoseconds_and_the_terminal_has_room(comparison):
    for width in (60, 80, 130, 200):
        assert max(map(len, shown(comparison, width).splitlines())) <= width
    t1 = screen.document(comparison)["labels"][0]
    assert (t1["label"], t1["verdict"]) == ("t1", "faster")
    assert t1["total"]["change_ns"] == pytest.approx(t1["parts"]["host"]["change_ns"])


def test_causes_that_do_not_fit_are_counted_not_cut(comparison):
    t1, *more = comparison.labels
    host = t1.parts["host"]
    parts = {"host": host} | {
        cause: replace(host, change_ns=-20_000.0)
        for cause in ("api_launch", "launch_latency", "api")
    }
    text = shown(replace(comparison, labels=(replace(t1, parts=parts), *more)), 100)
    assert (
        "-55.8 to -55.8 %; CPU -131 us, launch -20.0 us, launch latency -20.0 us, … 1 more" in text
    )


def test_hostile_names_are_only_text():
    hostile = compare(twelve(1, bad), twelve(0.25, bad), names=(bad("old"), bad("new")))
    text = shown(hostile, 200)
    assert "\x1b" not in text and "\u202e" not in text


def test_nothing_in_common_is_said():
    text = shown(compare(twelve(1), build([])), 100)
    assert "nothing can be compared" in text and "only in A" in text


def test_a_run_is_the_same_as_itself_however_its_timings_vary():
    runs = [[("kernel", 1_000 * (7 * k % 13) ** 2 + 9_000, "gemm")] for k in range(6)]
    varied = build([("t1", "event", "a.py:1", False, runs)])
    assert [label.verdict for label in compare(varied, varied).labels] == ["same"]
    # fewer than all of them are no longer the same ones
    fewer = build([("t1", "event", "a.py:1", False, runs[:5])])
    assert [label.verdict for label in compare(varied, fewer).labels] == ["unclear"]


def test_the_same_recording_is_called_that():
    """The same numbers at other times are another one."""
    one, two = twelve(1), twelve(1)
    later = two.intervals.assign(start_ns=two.intervals["start_ns"] + 1_000)
    assert "The two are the same recording: nothing can have changed in 4 labels." in shown(
        compare(one, two), 100
    )
    text = shown(compare(one, replace(two, intervals=later)), 100)
    assert "the same recording" not in text and "4 same" in text
    assert " to " not in text.partition("\n\n")[2].partition("Times are")[0]  # no bounds of nothing


def test_wrong_timings_are_named_with_their_side(tmp_path):
    """Once for both sides where they are wrong alike; not those of libraries."""

    def wrong(label):
        return {
            **FINDING,
            "severity": "error",
            "label": label,
            "title": f"{label} times the launching",
        }

    before = build(findings=[wrong("t1"), wrong("do_bench")])
    after = build(findings=[wrong("t1"), wrong("t2")])
    comparison = compare(before, after)
    lines = ["✖ A and B: t1 times the launching", "✖ B: t2 times the launching"]
    text = shown(comparison, 100).splitlines()
    # before anything else is said of the two
    assert text[:4] == ["A A", "B B", *lines]
    assert [
        line.split()[0]
        for line in text
        if line.rstrip().endswith(("wrong in A and B", "wrong in B"))
    ] == ["t1", "t2"]
    page.write(comparison, before, after, tmp_path / "diff.html")
    assert '"wrong":["A and B: t1 times the launching","B: t2 times the launching"]' in (
        tmp_path / "diff.html"
    ).read_text("utf-8")


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_wrong_timing_gets_neither_faster_nor_slower(side):
    wrong = {**FINDING, "severity": "error", "label": "t1", "title": "t1 times the launching"}

    def timed(ns, *findings):
        runs = [[("kernel", ns + 100 * n, "gemm")] for n in range(12)]
        return build([(t, "event", "a.py:1", False, runs) for t in ("t1", "t2")], findings=findings)

    before = timed(90_000, *([wrong] if side == "A" else []))
    after = timed(40_000, *([wrong] if side == "B" else []))
    verdicts = [(change.verdict, change.reason) for change in compare(before, after).labels]
    assert verdicts == [("unclear", "wrong timing"), ("faster", "")]
    document = screen.document(compare(before, after))
    assert [label["wrong"] for label in document["labels"]] == [side, ""]
    text = shown(compare(before, after), 100)
    lines = text.splitlines()
    assert lines[2:4] == [
        f"✖ {side}: t1 times the launching",
        "Of 2 labels in both: 1 wrong (what is wrong has no change to judge), 1 faster.",
    ]
    assert f"✖ wrong in {side}" in text and text.count("▼ faster") == 1
    # neither bounds that are better nor the parts in which it would be so
    assert "Wrong timing: what was timed is not what is meant" in " ".join(text.split())


def test_both_sides_reasons_are_said_where_they_differ():
    def wrong(title):
        return {**FINDING, "severity": "error", "label": "t1", "title": title}

    before = build(findings=[wrong("t1 times nothing")])
    after = build(findings=[wrong("t1 times the launching")])
    comparison = compare(before, after)
    lines = shown(comparison, 100).splitlines()
    assert lines[2:4] == ["✖ A: t1 times nothing", "✖ B: t1 times the launching"]
    assert screen.wrong_of(comparison, comparison.labels[0]) == [line[2:] for line in lines[2:4]]
    assert screen.words(comparison.labels[0]) == "wrong in A and B"


def test_many_wrong_timings_are_counted_those_in_both_runs_first():
    runs = [[("kernel", 9_000, "gemm")] for _ in range(12)]

    def timed(*labels):
        wrong = [
            {**FINDING, "severity": "error", "label": label, "title": f"{label} times nothing"}
            for label in labels
        ]
        return build([(label, "event", "a.py:1", False, runs) for label in labels], findings=wrong)

    comparison = compare(timed(*(f"t{k}" for k in range(9)), "both"), timed("both"))
    sentences, more = screen.wrong(comparison)
    assert sentences[0] == "A and B: both times nothing"
    assert len(sentences) == screen.MOST_WRONG and more == "4 more wrong timings"


LANES = "[...document.querySelectorAll('#lanes text.lane')].map(t => t.lastChild.textContent)"


@pytest.mark.browser
def test_the_page_has_both_sides_of_a_label_and_their_parts_add_up(driver, tmp_path):
    before, after = twelve(1, bad), twelve(0.25, bad)
    comparison = compare(before, after, names=(bad("old"), bad("new")))
    page.write(comparison, before, after, tmp_path / "diff.html")
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get((tmp_path / "diff.html").as_uri())
    until(driver, "document.body.dataset.ready", "the page")
    ask = lambda words: driver.execute_script(f"return {words}")  # noqa: E731
    names = ask("[...document.querySelectorAll('#rows button')].map(b => b.textContent)")
    assert len(names) == 4
    for row in range(4):
        ask(f"document.querySelectorAll('#rows button')[{row}].click()")
        label = screen.ordered(comparison)[row]
        assert duration(label.total.before_ns) in driver.find_element("id", "reading").text
        cells = "[...$('label-fall').querySelectorAll('tbody tr')].map(r => [...r.querySelectorAll('td')].map(c => Math.round(100 * parseFloat(c.innerText.replace('−', '-')))))"
        *parts, whole = ask(cells)
        for column, total in zip(zip(*parts, strict=True), whole, strict=True):
            assert sum(column) == pytest.approx(total, abs=len(parts))
        lanes = ask(LANES)
        assert [lane[:2] for lane in lanes].count("A ") == [lane[:2] for lane in lanes].count("B ")
        assert sum(lane.startswith(("A ", "B ")) for lane in lanes) == 2
        # what is saved has the numbers of the table
        rows = ask(
            "[...$('label-fall').querySelectorAll('tr')].map(r => [...r.children].map(c => c.textContent.trim()))"
        )
        saved = ask("(() => { let given; const before = saveFile; saveFile = (name, text) => { given = text; };"
            " $('save-svg').click(); saveFile = before; return given; })()")  # fmt: skip
        drawn = [e.text for e in ElementTree.fromstring(saved).iter() if e.tag.endswith("}text")]
        at = drawn.index(rows[0][0])
        texts = [text for row in rows for text in row]
        assert drawn[at : at + len(texts)] == texts  # behind them names that were cut, in full
        assert rows[0][1:] == ["A", "B", "B − A"]
    assert ask("document.querySelectorAll('img, iframe, [onerror]').length") == 0
    quiet(driver)


def test_a_page_without_a_label_in_common_is_a_page(tmp_path):
    before, after = twelve(1), build([])
    page.write(compare(before, after), before, after, tmp_path / "diff.html")
    assert "nothing can be compared" in (tmp_path / "diff.html").read_text("utf-8")
