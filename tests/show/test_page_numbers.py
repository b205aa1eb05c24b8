"""What the page shows is what is stored: recomputed from the analysis' tables, in a real browser."""

import re

import pytest
from browsing import quiet
from recordings import analysed
from test_page_in_a_browser import Page

from nsysalign.text import duration

pytestmark = pytest.mark.browser

HITS = "drawings.get($('lanes')).hits.map(hit => hit.said)"


@pytest.fixture
def opened(driver, tmp_path):
    """The page of a recording, on demand; at the end it has said nothing on the console."""
    pages = []

    def open_it(name):
        analysis = analysed(name, tmp_path / "recordings").analysis
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
            assert f"±{duration(interval.error_ns)} with 95 % confidence" in of_event[1]
            if at == place:
                assert of_event[-1] == text
            else:  # the GPU's own time stamp, which is late now and then
                off = "later" if at > place else "earlier"
                assert of_event[-1] == f"by its own time stamp {duration(abs(at - place))} {off}"
            checked += 1
    assert checked
