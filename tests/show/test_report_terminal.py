"""The table a user sees: widths, marks, and that its rows add up."""

import io
import re
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.show import terminal
from nsysalign.show.label_table import label_text, layout
from nsysalign.show.table import GAP


def shown(analysis, width, **options):
    stream = io.StringIO()
    terminal.render(
        analysis,
        Console(file=stream, width=width, color_system=None, legacy_windows=False),
        **options,
    )
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(analysis, width):
    assert max(map(len, shown(analysis, width).splitlines())) <= width


def test_the_answer_at_80_columns(analysis):
    text = shown(analysis, 80)
    assert text.startswith(
        "NVIDIA H200, nsys 2024.2.3, 5 intervals in 3 labels, 1 more that the program did\nnot time "
        "itself, events placed within 800 ns"
    )
    row = next(line for line in text.splitlines() if "puzzle.py:14" in line and "28.3" in line)
    assert row.split() == [
        "t1",
        "puzzle.py:14",
        "3",
        "234.72",
        "24.77",
        ".",
        "28.31",
        "174.49",
        "7.15",
        "!",
    ]
    assert "memcpy" not in text and "sync" not in text  # empty in every row
    assert "2 captured  (lost#0, lost#1)" in text
    assert "Evidence: idle 174 us, kernel only 24.8 us, copies inside 0, host share 74 %" in text
    assert "note: NVTX was lost" in text and "not in the trace: CUDA_EVENT" in text


def test_a_wide_terminal_shows_two_decimals_and_whole_names(analysis):
    text = shown(analysis, 200, report_path="runs/1/report.html")
    assert "234.72" in text
    assert "replay a/very/long/path/to/the/file/that/replays_a_graph.py:120" in text
    assert text.splitlines()[-1] == "report: runs/1/report.html"


def test_a_graph_stands_in_the_kernel_column_as_a_bound(analysis):
    row = next(line for line in shown(analysis, 200).splitlines() if "replays_a_graph" in line)
    assert "<=35.20" in row
    numbers = [float(n) for n in re.findall(r"\d+\.\d+", row.split(":120")[1])]
    assert numbers[0] == pytest.approx(sum(numbers[1:]))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_row_adds_up_at_every_width(analysis, width):
    rows = answer(analysis).labels
    columns = [c for c in layout(rows, width)[0] if c.unit and c.head != "w/o nsys"]
    for number in range(len(rows)):
        cells = [c.cells[number].split()[-1].removeprefix("<=") for c in columns]
        values = [0.0 if cell == "." else float(cell) for cell in cells]
        assert values[0] == pytest.approx(sum(values[1:]), abs=0.06 * len(values))


def test_columns_go_before_names_where_nothing_is_predicted(analysis):
    """As of NVTX ranges: the layout with most columns was taken, and all names were cut to 8."""
    rows = [replace(row, unprofiled_ns=None) for row in answer(analysis).labels]
    columns, _ = layout(rows, 60)
    assert columns[0].width > 8 and sum(c.width + GAP for c in columns) <= 60 + GAP


def test_a_narrow_terminal_folds_the_small_causes_and_says_so(analysis):
    text = shown(analysis, 72)
    assert "other" in text and "other: " in text


def test_small_causes_go_before_a_name_is_cut(builder):
    parts = [("api_launch", 900, ""), ("event", 800, ""), ("api", 700, ""), ("kernel", 50_000, "k")]
    name = "layers.31.self_attn.forward"
    text = shown(builder([(name, "event", "", False, [parts])], timeline=False), 60)
    assert name in text and "other: launch, api, event" in text


def test_what_a_row_is_made_of_is_named_where_no_column_for_it_fits(analysis):
    text = shown(analysis, 52)
    row = next(
        line for line in text.splitlines() if line.strip().startswith("t1") and "234.7" in line
    )
    assert "host 174.5" in row and "largest other: what took most" in text


def test_library_labels_come_last(analysis):
    assert [row.label for row in answer(analysis).labels] == ["t1", "t2", "replay", "do_bench"]
    assert "dimmed: timed by a library" in shown(analysis, 80)


def test_many_labels_are_counted_when_not_shown(analysis):
    assert "… 2 more rows in the report" in shown(analysis, 80, max_labels=2)


def test_hostile_names_neither_drive_the_terminal_nor_rich(hostile_analysis):
    text = shown(hostile_analysis, 200)
    assert "\x1b" not in text and "\u202e" not in text
    assert "<img" in text


def test_nothing_placed(builder):
    assert "no interval was placed" in shown(builder([]), 80)


def test_labels_of_one_site_stay_apart_when_there_is_little_room():
    from types import SimpleNamespace

    rows = [
        SimpleNamespace(
            label=f"host_timers.py:{n} (host_timers.py:42-45)", site="host_timers.py:42"
        )
        for n in (115, 121)
    ]
    assert label_text(rows[0]) == rows[0].label
    assert [label_text(row, 28) for row in rows] == [
        "host_timers.py:115 (:42-45)",
        "host_timers.py:121 (:42-45)",
    ]
    assert [label_text(row, 20) for row in rows] == ["host_timers.py:115", "host_timers.py:121"]


def test_both_kinds_of_advice_are_told_apart_and_code_stands_alone(analysis):
    lines = shown(analysis, 80).splitlines()
    measure = next(
        i
        for i, line in enumerate(lines)
        if "To measure GPU time only: let the host run ahead" in line
    )
    faster = next(
        i for i, line in enumerate(lines) if "To make it faster: launch less and earlier:" in line
    )
    assert measure < faster and "      torch.cuda._sleep(2_000_000); start.record()" in lines
    assert lines[faster + 1] == "      f = torch.compile(f)"


def test_the_time_without_nsys_stands_beside_the_profiled_one(analysis):
    from dataclasses import replace

    from nsysalign import frames

    row, other = (int(analysis.labels["row_interval"].iloc[k]) for k in (0, 1))
    columns = [
        pd.Series([row, other]),
        *(pd.array([n, None], "Int64") for n in (200_000, 180_000, 230_000)),
    ]
    columns.append(["", "long: too long to replay"])
    table = frames.check(
        pd.DataFrame(dict(zip(frames.UNPROFILED.names, columns, strict=True))), frames.UNPROFILED
    )
    text = shown(replace(analysis, unprofiled=table), 120)
    assert "w/o nsys" in text and "long: too long to replay" in text
    assert "200 ±30" in next(
        line for line in text.splitlines() if "puzzle.py:14" in line and "28.3" in line
    )
    assert "w/o nsys" not in shown(analysis, 120)


def test_what_is_folded_is_named_where_it_is_much(builder):
    parts = [("kernel", 50_000, "k"), ("host", 20_000, "")]
    parts += [("launch_latency", 12_000, ""), ("sync", 10_000, "")]
    case = ("layers.31.self_attn.forward_of_the_model", "event", "", False, [parts])
    text = " ".join(shown(builder([case], timeline=False), 68).split())
    assert re.search(r"other: latency( \(12.00 in .+?\))?, sync \(10.00 in .+?\) \(a wider", text)


def test_the_same_advice_about_several_labels_is_given_once(builder, finding):
    text = shown(
        builder(findings=[finding, {**finding, "label": "t2", "title": "t2 measures the host"}]),
        100,
    )
    assert "Also in:  t2" in text and "t2 measures the host" not in text


def _opened(analysis, *rows):
    """The analysis with rows of host_activity: (label, view, name, place, within, samples, ns,
    share)."""
    columns = ["label", "view", "name", "place", "within", "samples", "ns", "share"]
    table = pd.DataFrame(rows, columns=columns).assign(count=1)
    return replace(analysis, host_activity=frames.check(table, frames.HOST_ACTIVITY))


def test_a_finding_says_what_the_host_did(analysis):
    opened = _opened(
        analysis,
        ("t1", "all", "", "", "", 8, 45_000_000, 1.0),
        ("t1", "python", "resize", "transforms.py:41", "", 5, 0, 0.625),
        ("t1", "python", "load", "loader.py:12", "read (io.py)", 3, 0, 0.375),
        ("t1", "range", "augment", "", "", 0, 30_000_000, 0.67),
        ("t1", "os", "futex", "", "", 0, 300_000, 0.007),
    )
    text = " ".join(shown(opened, 120).split())
    assert (
        "Host: 62 % resize (transforms.py:41), 38 % load (loader.py:12, in read (io.py)) (8 samples in 45.0 ms of gaps); "
        "NVTX ranges: 67 % augment" in text
    )
    assert "futex" not in text  # less than is worth naming


def test_gaps_without_a_sample_are_not_sampled(analysis):
    seen = ("t2", "all", "", "", "", 4, 30_000, 1.0)
    opened = _opened(analysis, ("t1", "all", "", "", "", 0, 500_000, 1.0), seen)
    assert "not sampled: none of the samples fell into its 500 us of gaps" in " ".join(
        shown(opened, 120).split()
    )


def test_long_gaps_that_nothing_recorded_say_how_to_record_them(analysis):
    long, short = (
        _opened(analysis, ("t1", "all", "", "", "", 0, ns, 1.0)) for ns in (45_000_000, 800_000)
    )
    assert "Host:" not in shown(long, 120)  # the warm intervals lost less than that
    slow = replace(
        long, intervals=long.intervals.assign(elapsed_ns=long.intervals["elapsed_ns"] * 100)
    )
    slow = replace(slow, parts=slow.parts.assign(ns=slow.parts["ns"] * 100))
    assert "nsysalign run --sample-python" in shown(slow, 120)
    assert "Host:" not in shown(short, 120) and "Host:" not in shown(analysis, 120)


def test_what_the_host_did_is_foreign_text(analysis):
    opened = _opened(
        analysis,
        ("t1", "all", "", "", "", 1, 9_000_000, 1.0),
        ("t1", "python", "\x1b[31mred", "a\u202e.py:1", "", 1, 0, 1.0),
    )
    assert "\x1b[31m" not in shown(opened, 120) and "red (a.py:1)" in shown(opened, 120)
