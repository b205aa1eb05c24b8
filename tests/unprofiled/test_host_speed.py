"""What the readings of the meter say of an interval, and what the prediction makes of it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from nsysalign import engine
from nsysalign.host_speed import HostSpeed
from nsysalign.trace.eventlog import read_event_logs

from .recordings import unpack

MS = 1_000_000
SAME = {"meter_work": 1, "meter_python": "3.11.7", "python": "3.11.7"}


def log_of(folder, readings, *, header=None, name="log"):
    """Of one process: (at ms, us that the work took[, number of the work])."""
    head = {"type": "header", "format": "nsysalign-events", "version": 1, "pid": 1, **(header or {})}
    lines = [head] + [
        {"type": "meter", "work": (r[2:] or (1,))[0], "t0_ns": round(r[0] * MS), "t1_ns": round(r[0] * MS + r[1] * 1e3), "tid": 1}
        for r in readings
    ]  # fmt: skip
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_event_logs([path])


def speeds(log, *spans, process=0):
    begin, end = (np.array([s[k] for s in spans]) * MS for k in (0, 1))
    return HostSpeed(log).speeds(np.full(len(spans), process), begin, end)


def test_the_median_of_the_readings_around_an_interval(tmp_path):
    log = log_of(tmp_path, [(0, 5), (100, 6), (200, 7), (2_000, 9), (5_000, 1)])
    near = HostSpeed(log).near(np.zeros(4, int), np.array([90, 1_000, 2_400, 3_500]) * MS, np.array([110, 1_600, 2_500, 3_600]) * MS)  # fmt: skip
    assert near[[0, 1, 2]].tolist() == [6_000, 9_000, 9_000] and np.isnan(near[3]), (
        "nothing within half a second"
    )


def test_many_readings_in_a_row_count_as_one(tmp_path):
    """Those of a calibration: twenty within a millisecond."""
    log = log_of(tmp_path, [(k / 20, 12) for k in range(20)] + [(100, 6), (200, 6)])
    assert HostSpeed(log).near(np.zeros(1, int), np.array([0]), np.array([250 * MS])).tolist() == [6_000]


def test_slower_than_usual_is_slower_than_the_faster_quarter(tmp_path):
    log = log_of(tmp_path, [(100 * k, 5) for k in range(30)] + [(100 * k, 8) for k in range(100, 110)])
    found = speeds(log, (1_000, 1_001), (10_400, 10_500))
    assert found.slowdown.tolist() == [1.0, 1.6]
    assert found.least.tolist() == [1.0, 0.625] and found.most.tolist() == [1.6, 1.0]


def test_few_readings_do_not_say_what_is_usual(tmp_path):
    found = speeds(log_of(tmp_path, [(100 * k, 5) for k in range(4)]), (100, 101))
    assert all(np.isnan(v).all() for v in found)


def test_what_was_measured_on_the_machine_before_counts_as_well(tmp_path):
    """A run that was slow from beginning to end."""
    header = {"meter_usual_ns": 4_000, "meter_least_ns": 3_900, "meter_most_ns": 7_000, **SAME}
    found = speeds(log_of(tmp_path, [(100 * k, 6) for k in range(9)], header=header), (100, 101))
    assert (found.slowdown.tolist(), found.least.tolist()) == ([1.5], [0.65])
    assert found.most == pytest.approx([7 / 6])


@pytest.mark.parametrize("other", [{"meter_work": 2}, {"meter_python": "3.12.1"}, {"meter_python": None}])
def test_another_work_or_python_is_not_compared(tmp_path, other):
    header = {"meter_usual_ns": 4_000, "meter_least_ns": 3_900, "meter_most_ns": 7_000, **SAME, **other}
    found = speeds(log_of(tmp_path, [(100 * k, 6) for k in range(9)], header=header), (100, 101))
    assert found.slowdown.tolist() == [1.0]


@pytest.mark.parametrize("bad", [0, -1, 1e12, None, "4000"])
def test_headers_of_others_may_hold_anything(tmp_path, bad):
    header = {"meter_usual_ns": bad, "meter_least_ns": 3_900, "meter_most_ns": 7_000, **SAME}
    found = speeds(log_of(tmp_path, [(100 * k, 6) for k in range(9)], header=header), (100, 101))
    assert found.slowdown.tolist() == [1.0]


def test_works_are_not_mixed_processes_neither_and_no_log_says_nothing(tmp_path):
    log = log_of(tmp_path, [(100 * k, 500, 1) for k in range(9)] + [(100 * k + 10, 6, 2) for k in range(9)])
    assert HostSpeed(log).near(np.zeros(1, int), np.array([0]), np.array([MS])).tolist() == [6_000]
    for none in (speeds(log, (0, 1), process=1), speeds(log, (0, 1), process=-1), speeds(None, (0, 1))):
        assert all(np.isnan(v).all() for v in none)


def test_on_the_clock_of_the_trace(tmp_path):
    log = log_of(tmp_path, [(100, 5)])
    later = {0: SimpleNamespace(to_trace=lambda t: t + 10_000 * MS)}
    spans = np.zeros(1, int), np.array([10_100 * MS]), np.array([10_101 * MS])
    assert HostSpeed(log, later).near(*spans).tolist() == [5_000]
    assert np.isnan(HostSpeed(log).near(*spans)).all() and np.isnan(HostSpeed(log, {}).near(*spans)).all()


@pytest.mark.parametrize(
    "line", [{"work": 1, "t0_ns": 5}, {"t0_ns": 5, "t1_ns": 9}, {"work": "1", "t0_ns": 5, "t1_ns": 9}]
)
def test_malformed_lines_are_counted(tmp_path, line):
    head = {"type": "header", "format": "nsysalign-events", "version": 1, "pid": 1}
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in (head, {"type": "meter", **line})))
    log = read_event_logs([path])
    assert log.meters.empty and "1 lines could not be used" in log.notes[0]


# --- what a prediction makes of it -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return unpack("unprofiled_micro", tmp_path_factory.mktemp("micro"))


def predicted(files, tmp_path, took_us):
    """The recording as if the meter had been read every 50 ms; `took_us(region of the interval that follows)`."""
    lines, readings, due = files["events.jsonl"].read_text().splitlines(), [], 0
    for line in map(json.loads, lines):
        if line["type"] == "record" and not line.get("calibration") and line["t0_ns"] >= due:
            due, t = line["t0_ns"] + 51 * MS, line["t0_ns"] - 100_000
            took = round(1e3 * took_us(line.get("region", "").partition("#")[0]))
            readings.append({"type": "meter", "work": 1, "t0_ns": t, "t1_ns": t + took, "tid": 1})
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([*lines, *map(json.dumps, readings)]) + "\n")
    found = engine.analyze(files["sqlite"], events=[path])
    label = found.labels.set_index("row_interval")["label"]
    return found.unprofiled.assign(label=label.reindex(found.unprofiled["interval"]).to_numpy()).set_index(
        "label"
    )


def test_a_steady_host_changes_nothing(recorded, tmp_path):
    plain = engine.analyze(recorded["sqlite"], events=[recorded["events.jsonl"]]).unprofiled
    steady = predicted(recorded, tmp_path, lambda region: 5.5)
    columns = ["predicted_ns", "lower_ns", "upper_ns"]
    assert (steady[columns].to_numpy() == plain[columns].to_numpy()).all()


def test_a_host_that_varies_widens_the_bars_of_what_it_decides(recorded, tmp_path):
    """By a tenth at most, up and down: too little to be disturbed."""
    turn = iter(range(1_000))
    steady = predicted(recorded, tmp_path, lambda region: 5.5)
    varied = predicted(recorded, tmp_path, lambda region: 5.5 * (1, 1.1, 1.2)[next(turn) % 3])
    assert (varied["predicted_ns"] == steady["predicted_ns"]).all()
    wider = (varied["upper_ns"] - steady["upper_ns"]) / steady["predicted_ns"]
    assert wider["small50"] > 0.03 and wider["matmul"] < 0.01, "50 launches, one long kernel"
    assert (varied["lower_ns"] <= steady["lower_ns"]).all()


def test_where_the_host_was_slow_there_is_a_reason_instead(recorded, tmp_path):
    """The recording is half a second long, and readings half a second away still count: so all of it is slow, against what
    was measured on the machine before."""
    lines = recorded["events.jsonl"].read_text().splitlines()
    python = json.loads(lines[0])["python"]
    before = {
        "meter_usual_ns": 4_000,
        "meter_least_ns": 4_000,
        "meter_most_ns": 4_400,
        "meter_work": 1,
        "meter_python": python,
    }
    files = {**recorded, "events.jsonl": tmp_path / "with_header.jsonl"}
    files["events.jsonl"].write_text(
        "\n".join([json.dumps(json.loads(lines[0]) | before), *lines[1:]]) + "\n"
    )
    slow = predicted(files, tmp_path, lambda region: 12)
    assert slow["predicted_ns"].isna().all()
    assert (slow["reason"] == "the host was 3.0 times slower than usual when it was measured").all()
    # half as fast again is no reason, but the time may be shorter by as much
    usual, slower = (predicted(files, tmp_path, lambda region, us=us: us) for us in (4.2, 6))
    assert usual["predicted_ns"].notna().any() and (slower["reason"] == usual["reason"]).all()
    known = usual["predicted_ns"].notna()
    assert (slower["lower_ns"] <= usual["lower_ns"])[known].all()
    assert (slower["lower_ns"] < usual["lower_ns"])[known].any()
