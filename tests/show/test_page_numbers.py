"""What the page shows is what is stored: recomputed from the analysis' tables, in a real browser."""

import pytest
from browsing import quiet
from test_page_in_a_browser import Page

from nsysalign.answer import answer
from nsysalign.causes import CAUSE_TABLE, COLUMN_FILLS
from nsysalign.show import markdown
from nsysalign.text import duration

pytestmark = pytest.mark.browser

HITS = "drawings.get($('lanes')).hits.map(hit => hit.said)"


@pytest.fixture
def opened(driver, tmp_path, recorded):
    """The page of a recording, on demand; at the end it has said nothing on the console."""
    pages = []

    def open_it(name):
        analysis = recorded(name).analysis
        pages.append(Page(driver, analysis, tmp_path / "report.html"))
        return analysis, pages[-1]

    yield open_it
    quiet(driver)


def stored_bounds(analysis, interval):
    """Per record of an interval, (earliest, latest) place in ns: of its start record the closer ones of the record and
    of the interval."""
    drawn = analysis.timeline
    records = drawn[(drawn["interval"] == interval.interval) & (drawn["ref_kind"] == "event")]
    bounds = {}
    for record in records.itertuples():
        low = record.start_ns - record.detail["at_most_earlier_ns"]
        high = record.start_ns + record.detail["at_most_later_ns"]
        if record.ref_id == interval.start_record:
            low, high = max(low, interval.start_lower_ns), min(high, interval.start_upper_ns)
        bounds[record.ref_id] = (record.start_ns, low, high)
    return bounds


@pytest.mark.parametrize("name", ["demo", "probe", "reference_clock", "truth_event_timestamps"])
def test_an_event_and_its_record_say_the_bounds_that_are_stored(opened, name):
    """Of both events, on their lines above the picture and on the lane of their stream."""
    analysis, page = opened(name)
    drawn = set(analysis.timeline.loc[analysis.timeline["ref_kind"] == "event", "interval"])
    of_events = analysis.intervals[analysis.intervals["kind"] == "event"]
    checked = 0
    for interval in of_events[of_events["interval"].isin(drawn)].itertuples():
        if checked == 6 or not page("hasPicture(arguments[0])", interval.interval):
            continue
        page("chooseNumber(arguments[0], false)", interval.interval)
        bounds = stored_bounds(analysis, interval)
        for word, record, place in (
            ("start", interval.start_record, interval.start_ns),
            ("end", interval.end_record, interval.end_ns),
        ):
            if record not in bounds:
                continue
            at, low, high = bounds[record]
            us = (
                place - interval.start_ns
            ) / 1e3  # so close that nothing is drawn together with it
            page("(view.range = [arguments[0] - 3, arguments[0] + 3], drawTimeline())", us)
            said = page(HITS)
            text = f"at most {duration(at - low)} earlier, at most {duration(high - at)} later"
            (of_record,) = [lines for lines in said if lines[0] == f"event record {record}"]
            assert of_record[-1] == text
            (of_event,) = [lines for lines in said if lines[0].startswith(f"{word} event at ")]
            assert f"±{duration(interval.error_ns)} (95 %), placed" in of_event[1]
            if at == place:
                assert of_event[-1] == text
            else:  # the GPU's own time stamp, which is late now and then
                off = "later" if at > place else "earlier"
                assert of_event[-1] == f"by its own time stamp {duration(abs(at - place))} {off}"
            checked += 1
    assert checked


def test_the_parts_have_areas_in_proportion_to_their_times(opened):
    """Where hundreds of short pieces share the width, no cause looks longer than it is."""
    analysis, page = opened("probe")
    (number,) = analysis.labels.loc[analysis.labels["label"] == "effnet", "row_interval"]
    page("chooseNumber(arguments[0], false)", int(number))
    page("(view.range = [-5, view.picture.width / 1e3 + 5], drawTimeline())")
    # every rectangle of the lane: a piece "M x y h width v height" of a path
    drawn = page(
        "[...document.querySelectorAll('#lanes .shares, #lanes .blocks')].map(path => [path.getAttribute('fill'),"
        " [...path.getAttribute('d').matchAll(/M[\\d.]+ ([\\d.]+)h([\\d.]+)v([\\d.]+)/g)].filter(m => m[1] < HEAD + STRIP_TALL)"
        ".reduce((sum, m) => sum + m[2] * m[3], 0)])"
    )
    areas = {colour: 0.0 for colour, _ in drawn}
    for colour, area in drawn:
        areas[colour] += area
    parts = analysis.parts[analysis.parts["interval"] == number].set_index("cause")["ns"]
    whole = sum(areas.values())
    assert len(parts) > 5 and 0.1 < parts["kernel"] / parts.sum() < 0.2
    for cause, ns in parts.items():
        share = areas.get(page("CAUSE[arguments[0]].colour", cause), 0) / whole
        assert share == pytest.approx(ns / parts.sum(), abs=0.01), cause


def test_a_bar_of_letters_has_as_many_of_each_part_as_its_share(opened):
    """Also of a part that is nowhere the longest; the page's copy is the same to the letter."""
    analysis, page = opened("probe")
    (number,) = analysis.labels.loc[analysis.labels["label"] == "effnet", "row_interval"]
    page("chooseNumber(arguments[0], false)", int(number))
    text = page("whatIsChosen().markdown")
    assert text == markdown.interval(analysis, answer(analysis), int(number))
    (bar,) = [line.strip() for line in text.split("\n") if line.startswith("    █") or "░▒" in line]
    parts = analysis.parts[analysis.parts["interval"] == number]
    assert len(bar) == markdown.CELLS
    shares = {}
    for part in parts.itertuples():
        column = CAUSE_TABLE[part.cause].column
        shares[column] = shares.get(column, 0) + part.ns / parts["ns"].sum()
    for column, share in shares.items():
        if not share:
            continue
        letter = COLUMN_FILLS[column].letter.strip() or markdown.REST
        assert abs(bar.count(letter) - share * markdown.CELLS) < 1, column
        assert f"| {letter} | " in text
    assert bar.count("█") > 8  # kernels, 15 %


def test_a_saving_is_the_time_that_it_says_it_adds_up(opened):
    """In the row of its label, when pointed at, and in its card; from the tables of intervals and parts."""
    analysis, page = opened("probe")
    labels = {label["label"]: label for label in page("DATA.labels")}
    effnet = analysis.intervals[analysis.intervals["label"] == "effnet"]
    (finding,) = (
        analysis.findings[analysis.findings["rule"] == "many-tiny-kernels"]
        .query("label == 'effnet'")
        .itertuples()
    )
    of_group = effnet[effnet["group"] == finding.group]
    host = analysis.parts[
        (analysis.parts["cause"] == "host") & analysis.parts["interval"].isin(of_group["interval"])
    ]
    saving = int(host["ns"].sum())
    assert labels["effnet"]["saving"] == saving
    text = f"CPU {duration(saving)}, added up over {len(of_group)} repetitions of {duration(int(of_group['elapsed_ns'].sum()))} in all"
    row = "[...document.querySelectorAll('#rows li')].find(r => r.dataset.label == arguments[0]).querySelector('.saving')"
    assert page(f"{row}.title", "effnet") == text
    assert page(f"{row}.textContent", "effnet") == f"could save {duration(saving)} in all"
    assert text in page.text("verdicts") and not page("$('savings').hidden")
    # copies from pinned memory: nothing is advised, so that nothing is said to be saved by it
    pinned = labels["pinned"]
    assert pinned["fixes"] == [] and pinned["saving"] == 0
    page("(every.label = true, drawRows())")
    assert page(f"{row}.textContent", "pinned") == ""
    for card in page("DATA.cards"):
        for found in card["findings"]:
            assert found["advice"] or not found["loss_ns"], found["title"]
