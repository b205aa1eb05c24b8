"""What the record calls say of the host's speed, and what predictions make of it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from nsysalign import engine
from nsysalign.predict.host_speed import HostSpeed
from nsysalign.trace.eventlog import read_event_logs

from .recordings import unpack

MS, US = 1_000_000, 1_000
HEADER = {"type": "header", "format": "nsysalign-events", "version": 1, "pid": 1}


def log_of(folder, pairs, *, alone=()):
    """Of one process: (at ms, us of the start record's call, us of the end record's call),
    compared; and records that no pair ends with: (at ms, us)."""
    lines = [HEADER]
    for at, *took in pairs:
        first = len(lines)
        for k, us in enumerate(took):
            t = round(at * MS) + k * 100 * US
            lines.append(
                {
                    "type": "record",
                    "seq": first + k,
                    "t0_ns": t,
                    "t1_ns": t + round(us * US),
                    "tid": 1,
                }
            )
        lines.append({"type": "elapsed", "start": first, "end": first + 1, "ms": 0.1})
    for at, us in alone:
        t = round(at * MS)
        lines.append(
            {
                "type": "record",
                "seq": 10_000 + len(lines),
                "t0_ns": t,
                "t1_ns": t + round(us * US),
                "tid": 1,
            }
        )
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_event_logs([path])


def spans(*found):
    """Those from `found` ms to 0.1 ms later."""
    begin = np.round(np.array(found) * MS).astype(np.int64)
    return np.zeros(len(begin), int), begin, begin + 100 * US


def test_the_mean_of_both_calls_else_of_those_nearby(tmp_path):
    speed = HostSpeed(log_of(tmp_path, [(0, 4, 9), (2_000, 5, 5)]))
    assert speed.near(*spans(0, 300, 2_000)) == pytest.approx([6 * US, 6 * US, 5 * US])
    assert np.isnan(speed.near(*spans(1_000))).all(), "nothing within half a second"


def test_a_call_that_is_under_way_when_the_span_begins_counts(tmp_path):
    """The trace's call of a record lies inside the log's."""
    process, begin, end = spans(0)
    speed = HostSpeed(log_of(tmp_path, [(0, 4, 9)]))
    assert speed.near(process, begin + 3 * US, end) == pytest.approx([6 * US])
    assert speed.near(process, begin + 5 * US, end) == pytest.approx([9 * US])


def test_records_that_no_pair_ends_with_do_not_count(tmp_path):
    """A loop of records: warm, and shorter."""
    pairs = [(k, 4, 4) for k in range(10)]
    speed = HostSpeed(log_of(tmp_path, pairs, alone=[(k + 0.05, 1) for k in range(10)]))
    assert speed.near(*spans(0, 5)) == pytest.approx([4 * US, 4 * US])
    assert speed.slowdown(*spans(5)) == pytest.approx([1])


def test_slower_than_usual_is_slower_than_the_faster_quarter(tmp_path):
    pairs = [(k, 4, 4) for k in range(20)] + [(100 + k, 8, 12) for k in range(5)] + [(200, 30, 4)]
    found = HostSpeed(log_of(tmp_path, pairs)).slowdown(*spans(3, 102, 200, 50))
    assert found[:3] == pytest.approx([1, 2, 1]), (
        "the shorter of both: a long one may only have found cold caches"
    )
    assert np.isnan(found[3]), "nothing was recorded there"


def test_few_records_do_not_say_what_is_usual(tmp_path):
    log = log_of(tmp_path, [(k, 4, 4) for k in range(7)])
    assert np.isnan(HostSpeed(log).slowdown(*spans(0))).all()


def test_processes_are_not_mixed_and_no_log_says_nothing(tmp_path):
    speed = HostSpeed(log_of(tmp_path, [(k, 4, 4) for k in range(20)]))
    _, begin, end = spans(3)
    for none in (speed.near(np.array([1]), begin, end), speed.slowdown(np.array([-1]), begin, end)):
        assert np.isnan(none).all()
    assert (
        np.isnan(HostSpeed(None).near(*spans(3))).all()
        and np.isnan(HostSpeed(None).slowdown(*spans(3))).all()
    )


def test_on_the_clock_of_the_trace(tmp_path):
    log = log_of(tmp_path, [(100, 4, 9)])
    later = {0: SimpleNamespace(to_trace=lambda t: t + 10_000 * MS)}
    assert HostSpeed(log, later).near(*spans(10_100)) == pytest.approx([6 * US])
    assert np.isnan(HostSpeed(log).near(*spans(10_100))).all()
    assert np.isnan(HostSpeed(log, {}).near(*spans(100))).all(), (
        "a process that the trace does not know"
    )


def test_lines_of_older_probes_are_passed_over(tmp_path):
    """They read a meter of the host's speed."""
    path = tmp_path / "old.jsonl"
    old = [
        HEADER | {"meter_usual_ns": 4_878.25, "meter_work": 1, "meter_python": "3.12.3"},
        {"type": "meter", "work": 1, "t0_ns": 5, "t1_ns": 9, "tid": 1},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    log = read_event_logs([path])
    assert log.notes == () and len(log.headers) == 1


# --- what a prediction makes of it
# -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return unpack("unprofiled_micro", tmp_path_factory.mktemp("micro"))


def predicted(files, tmp_path, factor):
    """The recording as if record calls had taken `factor(region)` times as long; by label, the
    first replayed interval."""
    lines = list(map(json.loads, files["events.jsonl"].read_text().splitlines()))
    for line in lines:
        if line["type"] == "record" and not line.get("calibration"):
            took = (line["t1_ns"] - line["t0_ns"]) * factor(
                line.get("region", "").partition("#")[0]
            )
            line["t1_ns"] = line["t0_ns"] + round(took)
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = engine.analyze(files["sqlite"], events=[path])
    label = found.labels.set_index("row_interval")["label"]
    return found.unprofiled.assign(
        label=label.reindex(found.unprofiled["interval"]).to_numpy()
    ).set_index("label")


def test_where_the_host_was_slow_there_is_a_reason_instead(recorded, tmp_path):
    """Not where the GPU decides: a long kernel."""
    usual = predicted(recorded, tmp_path, lambda region: 1)
    slow = predicted(recorded, tmp_path, lambda region: 3 if region in ("small50", "matmul") else 1)
    assert usual.loc["small50", "reason"] == "" and usual.loc["small50", "predicted_ns"] > 0
    assert slow.loc["small50", "reason"].startswith("disturbed: both of its record calls took ")
    assert slow["predicted_ns"].isna().sum() == usual["predicted_ns"].isna().sum() + 1
    assert slow.loc["matmul", "predicted_ns"] == usual.loc["matmul", "predicted_ns"]


def test_a_slow_run_as_a_whole_is_not_told_from_a_slow_machine(recorded, tmp_path):
    usual, slow = (predicted(recorded, tmp_path, lambda region, f=f: f) for f in (1, 2))
    columns = ["predicted_ns", "lower_ns", "upper_ns"]
    assert (usual[columns].to_numpy() == slow[columns].to_numpy()).all()
