"""An analysis in a notebook."""

import html as stdlib_html
import json
import re
import sys
from dataclasses import replace

import pytest
from browsing import until

from nsysalign.errors import UsageError
from nsysalign.show.notebook import Analysis


@pytest.fixture(name="analysis")
def in_a_notebook(analysis):
    return Analysis(**analysis.fields)


def test_repr_is_one_short_line(analysis):
    said = "<Analysis of runs/puzzle-003/trace.sqlite: 6 intervals in 4 labels, 4 findings>"
    assert repr(analysis) == said


def data_of(framed) -> dict:
    page = stdlib_html.unescape(re.search(r'srcdoc="([^"]*)"', framed._repr_html_())[1])
    assert page.startswith("<!DOCTYPE html>")
    return json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', page, re.S)[1])


def test_the_page_stands_in_a_frame_and_opens_where_it_is_asked_to(analysis):
    assert data_of(analysis.show("t2#0"))["focus"] == 3
    assert data_of(analysis.show("t1"))["focus"] == 0  # a label: its median run
    with pytest.raises(UsageError):
        analysis.show("t9")
    # an interval whose surroundings were not kept
    without = replace(analysis, timeline=analysis.timeline[analysis.timeline["interval"] != 1])
    data = data_of(without.show("t1#1"))
    assert data["focus"] == 1 and data["timelines"]["1"]["width"]


@pytest.mark.browser
def test_the_page_runs_inside_the_frame(driver, analysis, tmp_path):
    (tmp_path / "notebook.html").write_text(
        f"<title>notebook</title>{analysis.show('t2')._repr_html_()}"
    )
    driver.get_log("browser")
    driver.get((tmp_path / "notebook.html").as_uri())
    driver.switch_to.frame(0)
    drawn = "document.querySelector('#lanes')?.dataset.drawn?"
    try:
        until(driver, f"{drawn}.startsWith('3:')", "drawing t2")
        driver.execute_script("choose('t1', null, true)")
        until(driver, f"{drawn}.startsWith('0:')", "drawing t1")
    finally:
        driver.switch_to.default_content()
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_breakdown_is_a_wide_table_that_adds_up(analysis):
    row = analysis.breakdown.loc["t1"]
    assert row["count"] == 3 and row["elapsed_ns"] == 234_720 and row["host"] == 174_490
    parts = analysis.breakdown.drop(columns=["count", "elapsed_ns"]).sum(axis=1)
    assert (parts == analysis.breakdown["elapsed_ns"]).all()


def test_a_waterfall_is_a_figure_that_adds_up(analysis):
    bars = analysis.waterfall("t1").data[0]
    assert bars.y == ("measured", "CPU", "launch", "event overhead", "kernel")
    assert bars.x == (234.72, 174.49, 28.31, 7.15, 24.77)
    assert sum(bars.x[1:]) == pytest.approx(bars.x[0])
    # each step ends where the one above begins
    assert [b + x for b, x in zip(bars.base[2:], bars.x[2:], strict=True)] == pytest.approx(
        bars.base[1:4]
    )


def test_a_waterfall_without_plotly_says_what_to_install(analysis, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(UsageError) as raised:
        analysis.waterfall("t1")
    assert "pip install plotly" in raised.value.next_step
    assert "t1" in analysis._repr_html_() and len(analysis.breakdown)
