"""One clock for all events: distances become frames, and what records say places them on the
trace's clock."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import recordings

from nsysalign import frames
from nsysalign.intervals import FAR
from nsysalign.model import EventLog
from nsysalign.place.align import align
from nsysalign.place.bounded import Surroundings
from nsysalign.place.event_clock import (
    EventClock,
    Frames,
    _lines_of_frames,
    event_clock,
    fit_line,
    place_records,
    rounding_ns,
    tick_of,
)
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace

MS = 1_000_000


def as_told(ns: float, tick: int = 32) -> float:
    """What elapsed_time says of a distance: whole ticks, as float32 milliseconds."""
    return float(np.float32(round(ns / tick) * tick / 1e6))


def log_of(records, references=(), elapsed=(), distances=()):
    """`records`: seqs; `references`: (id, previous, ms); `elapsed`: (start, end, ms, reference,
    start_ms, end_ms); `distances`: (start, end, ms, reference, start_ms, end_ms)."""

    def table(spec, rows, columns):
        if not rows:
            return frames.empty(spec)
        frame = pd.DataFrame(rows, columns=columns)
        filled = frames.empty(spec).reindex(range(len(frame)))
        for c in spec.columns:
            none = {"int64": -1, "float64": np.nan, "bool": False}.get(c.dtype, "")
            filled[c.name] = frame.get(c.name, none)
        filled["process"] = 0
        return frames.check(filled, spec)

    both = ["start", "end", "ms", "reference", "start_ms", "end_ms"]
    return replace(
        EventLog.empty(),
        headers=({"pid": 1},),
        records=table(frames.RECORDS, [(s,) for s in records], ["seq"]),
        references=table(frames.REFERENCES, list(references), ["id", "previous", "ms"]),
        elapsed=table(frames.ELAPSED, list(elapsed), both),
        distances=table(frames.DISTANCES, list(distances), both),
    )


@pytest.mark.parametrize("tick", [32, 1_000, 1_024, 1])
def test_the_tick_is_measured(tick):
    ns = np.random.default_rng(1).integers(1, 9 * MS // tick, 200) * tick
    assert tick_of((ns / 1e6).astype(np.float32).astype(float)) == tick
    assert tick_of(np.array([0.32, 0.64])) == 1, "too few distances show none"


def test_consecutive_references_are_one_exact_clock():
    """r0 --- 100 ms --- r1; records 1 us after r0 and before r1."""
    step = 100 * MS + 32
    elapsed = [(1, 2, as_told(6_400), 0, as_told(1_024), as_told(7_424))]
    for n in range(3, 21, 2):
        later = 32 * (n // 2)
        elapsed.append(
            (n, n + 1, as_told(6_400 + later), 1, as_told(-1_024), as_told(5_376 + later))
        )
    clock = event_clock(log_of(range(1, 22), [(0, -1, np.nan), (1, 0, as_told(step))], elapsed))
    assert clock.tick_ns == 32 and len(clock.frames.line) == 1
    assert clock.at_ns[:4].tolist() == [1_024, 7_424, step - 1_024, step + 5_408]
    assert clock.frame[20] == -1, "a record that nothing reaches"
    assert event_clock(log_of([1, 2], elapsed=[(1, 2, 0.5, -1, np.nan, np.nan)])) is None


def test_a_long_pause_makes_a_frame_and_many_roundings_say_more_than_one():
    """Pairs behind a pause of 10 s, each measured against the old reference as well: 0.5 us of
    rounding shrink."""
    pause = 10_000 * MS + 320_032
    spread = np.arange(8) * 77_760
    elapsed, distances = [], []
    for n, later in enumerate(spread.tolist()):
        both = (2 * n + 1, 2 * n + 2)
        elapsed.append((*both, as_told(6_400), 1, as_told(later), as_told(later + 6_400)))
        far = (as_told(pause + later), as_told(pause + later + 6_400))
        distances.append((*both, np.nan, 0, *far))
    references = [(0, -1, np.nan), (1, 0, as_told(pause))]
    one = event_clock(log_of(range(1, 17), references, elapsed))
    many = event_clock(log_of(range(1, 17), references, elapsed, distances))
    for clock in (one, many):
        assert clock.frames.line.tolist() == [0, 0]
        assert abs(int(clock.at_ns[0]) - pause) <= clock.frames.error_ns[1] + 1
        exact = np.stack([spread, spread + 6_400], axis=1).ravel()
        assert (clock.at_ns - clock.at_ns[0] == exact).all(), "exact within the frame"
        assert (clock.frame == 1).all() and clock.frames.joined_to.tolist() == [-1, 0]
    assert many.frames.error_ns[1] < one.frames.error_ns[1] / 3


def test_a_chain_of_pairs_stays_exact_far_from_its_reference():
    """Events of 20 s compared at the end: each start measured from the end before it."""
    elapsed, distances, at = [], [], 0
    for n in range(200):
        at = n * 100 * MS
        start, end = 2 * n + 1, 2 * n + 2
        elapsed.append((start, end, as_told(50 * MS), 0, as_told(at), as_told(at + 50 * MS)))
        if n:
            distances.append((start - 1, start, as_told(50 * MS), -1, np.nan, np.nan))
    elapsed += [(s, s + 1, as_told(6_400 + 32 * s), -1, np.nan, np.nan) for s in range(401, 421, 2)]
    clock = event_clock(log_of(range(1, 421), [(0, -1, np.nan)], elapsed, distances))
    assert rounding_ns(np.array([as_told(at)]))[0] > 500, "too far for a float32 to name the tick"
    assert clock.at_ns[398] == at and clock.at_ns[399] == at + 50 * MS


def test_a_captured_record_is_no_place_of_the_clock():
    """Stamped at every replay of its graph: before a pause of 10 s and behind it, which it must not
    bridge."""
    elapsed = [(1, 2, as_told(6_400), 0, as_told(1_024), as_told(7_424))]
    elapsed += [(1, 2, as_told(6_400), 1, as_told(2_048), as_told(8_448))]
    log = log_of([1, 2], [(0, -1, np.nan), (1, 0, as_told(10_000 * MS))], elapsed)
    assert len(event_clock(log).frames.line) == 1, "a record that is no capture does bridge"
    captured = event_clock(replace(log, records=log.records.assign(captured=True)))
    assert len(captured.frames.line) == 2 and captured.frame.tolist() == [-1, -1]


def met(place, late=0):
    """Records on idle streams at `place`, made by calls 4 us before; CUPTI stamped them `late`."""
    none = np.zeros(len(place), np.int64)
    known = {"call_start": place - 4_000, "call_end": place - 2_500, "stamp": place + late}
    known |= dict.fromkeys(("next_start", "next_issued"), none + FAR)
    known |= dict.fromkeys(("previous_end", "records_before", "records_after"), none)
    columns = Surroundings.__dataclass_fields__
    return Surroundings(**{c: known.get(c, none.astype(bool)) for c in columns})


def joined(joined_to=(-1,), error=(0,)):
    """The frames of one line, each joined to another by a distance with an error (ns)."""
    count = len(joined_to)
    none = np.zeros(count, np.int64)
    errors = np.array(error, dtype=float)
    return Frames(np.arange(count), none, np.array(joined_to), errors, errors, none)


def line_of(s, at, frame, records, frames=None, tracing="on"):
    return fit_line(s.take(records), frame[records], at[records], tracing, frames or joined())


@pytest.mark.parametrize("rate", [-7e-6, 0.0, 20e-6])
def test_the_line_is_found_among_late_stamps(rate):
    rng = np.random.default_rng(3)
    at, frame = np.sort(rng.integers(0, 5_000 * MS, 400)), np.zeros(400, np.int64)
    truth = 1_700_000_000_000_000_000 + np.rint(rate * at).astype(np.int64)
    late = np.where(rng.random(400) < 0.2, rng.exponential(3_000, 400), rng.normal(0, 20, 400))
    line = line_of(met(at + truth, late.astype(np.int64)), at, frame, np.arange(400))
    place, spread = line.place(at, frame)
    assert np.abs(place - at - truth).max() < 100
    assert (np.abs(place - at - truth) <= 1.96 * spread + 32).mean() >= 0.95


def test_nothing_seen_no_line():
    elapsed = [(1, 2, as_told(6_400), 0, as_told(1_024), as_told(7_424))]
    clock = event_clock(log_of([1, 2], [(0, -1, np.nan)], elapsed))
    s = met(np.array([5_000, 11_400]))
    seen = place_records(clock, s, "off", np.ones(2, dtype=bool))
    assert seen.line.tolist() == clock.frame.tolist()
    unknown = place_records(clock, s, "off", np.zeros(2, dtype=bool))
    assert unknown.line.tolist() == [-1, -1]


@pytest.mark.parametrize("span_ms", [0, 1, 10_000])
def test_a_line_whose_records_may_all_be_held_up_is_placed_nowhere(span_ms):
    """Copies with the host run on other streams around every record: any of them may be microseconds late.
    A program that times nothing by events has one record on the clock, that of the reference."""
    count = 1 if span_ms == 0 else 5
    at = np.linspace(0, span_ms * MS, count).astype(np.int64)
    clock = EventClock(np.zeros(count, np.int64), at, joined(), 32)
    unstamped = replace(met(at + 1_000_000), stamp=np.zeros(count, np.int64))
    held_up = replace(unstamped, copying=np.ones(count, dtype=bool))
    known = np.ones(count, dtype=bool)
    assert (place_records(clock, held_up, "off", known).line == -1).all()
    # one that is certain is enough
    held_up.copying[0] = False
    places = place_records(clock, held_up, "off", known)
    assert (places.line == 0).all() and places.error_ns[0] < 3_000


def test_records_of_one_moment_know_as_much_as_those_of_a_millisecond():
    """The knots of the line may not lie so near to each other that rounding decides."""
    none = np.zeros(2, np.int64)
    spread = []
    for span in (0, 32, 1_000, MS):
        at = np.array([0, span])
        unstamped = replace(met(at + 1_000_000), stamp=none)
        line = line_of(unstamped, at, none, np.arange(2), tracing="off")
        spread.append(line.place(at, none)[1][0])
    assert spread == pytest.approx([spread[-1]] * 4, rel=0.02)


def test_pairs_on_no_reference_are_on_no_clock_however_many():
    """A line for each of them would take hours."""
    elapsed = [(1, 2, as_told(6_400), 0, as_told(1_024), as_told(7_424))]
    elapsed += [(n, n + 1, 0.0064, -1, np.nan, np.nan) for n in range(3, 100_001, 2)]
    clock = event_clock(log_of(range(1, 100_001), [(0, -1, np.nan)], elapsed))
    assert clock.frame[:2].tolist() == [0, 0] and (clock.frame[2:] == -1).all()
    s = met(np.arange(100_000) * 6_400 + 5_000)
    line = place_records(clock, s, "off", np.ones(100_000, dtype=bool)).line
    assert line[:2].tolist() == [0, 0] and (line[2:] == -1).all()


@pytest.fixture(scope="module")
def unpack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")

    @cache
    def unpacked(name: str):
        trace, log = recordings.unpack(name, folder)
        return read_trace(trace), read_event_logs([log])

    return unpacked


@pytest.mark.parametrize("how", ["timestamps", "table"])
def test_against_cupti_which_is_late_now_and_then_and_never_early(unpack, how):
    """1,001 pairs of mixed work on an H200 (shared by the project; nothing was fitted to it)."""
    trace, log = unpack("reference_clock")
    stamp = align(trace, log).records["timestamp_ns"].to_numpy()
    rows = trace.event_rows
    blind = rows.assign(timestamp_ns=0) if how == "timestamps" else rows.iloc[:0]
    windows = align(replace(trace, event_rows=blind), log).windows
    assert len(windows) == 1_001 and set(windows["method"]) == {"clock"}
    lag = stamp[windows["start"]] - windows["start_ns"].to_numpy()
    lag = np.concatenate([lag, stamp[windows["end"]] - windows["end_ns"].to_numpy()])
    assert abs(np.median(lag)) <= 150
    # over a long interval the clocks' rates differ by more, and the bar says so: 75 ms by 0.5 us,
    # half at each end
    short = np.tile(windows["elapsed_ns"] < 20 * MS, 2)
    assert lag[short].min() >= -300, "none is placed later than the stamp"
    assert (lag >= -np.tile(windows["error_ns"], 2)).all()
    assert (np.abs(lag - np.median(lag)) <= 64).mean() >= 0.75
    assert windows["error_ns"].median() <= 300
    on_time = np.abs(lag - np.median(lag)) <= 64
    assert (np.abs(lag[on_time]) <= windows["error_ns"].median() + 32).all()


def test_with_timestamps_the_clock_wins_and_says_how_late_they_are(unpack):
    windows = align(*unpack("reference_clock")).windows
    assert set(windows["method"]) == {"clock"}
    residual = windows["clock_residual_ns"].astype(float)
    assert abs(residual.median()) <= 64 and residual.max() > 5_000
    assert residual[windows["elapsed_ns"] < 20 * MS].min() >= -100


def test_every_record_lies_between_the_stamps_of_the_kernels_around_it(unpack):
    """A truth that is not CUPTI's, in nsys's default mode on an H100: kernels that read
    %globaltimer before and after each record; `bounds` are their readings on the trace's clock."""
    trace, log = unpack("globaltimer_h100")
    told = json.loads(
        lzma.decompress((recordings.DATA / "globaltimer_h100.bounds.json.xz").read_bytes())
    )
    windows = align(trace, log).windows.set_index("region")
    slack = told["width_ns"] // 2 + 32
    assert len(told["bounds_ns"]) == 960
    for name, (floor, ceiling, end_floor, end_ceiling) in told["bounds_ns"].items():
        row = windows.loc[name]
        assert row["method"] == "clock" and row["error_ns"] <= 300
        assert floor - slack <= row["start_ns"] <= ceiling + slack, name
        assert end_floor - slack <= row["end_ns"] <= end_ceiling + slack, name


@pytest.mark.parametrize(("name", "count", "early", "usual", "bar"), [
    # deep queues leave 4.5 us between kernels instead of 2.4: most records behind one are late
    ("positions_h100", 660, 64, 150, 500),
    # four threads on streams that every record finds idle: nothing but calls says where the clock lies
    ("threads_h200", 160, 1_500, 1_000, 1_500),
])  # fmt: skip
def test_late_records_do_not_move_the_line(unpack, name, count, early, usual, bar):
    """CUPTI's stamps are late, never early."""
    trace, log = unpack(name)
    stamp = align(trace, log).records["timestamp_ns"].to_numpy()
    windows = align(replace(trace, event_rows=trace.event_rows.iloc[:0]), log).windows
    windows = windows[windows["kind"] == "event"]
    assert len(windows) == count and set(windows["method"]) == {"clock"}
    assert windows["error_ns"].max() <= bar
    edges = [stamp[windows[edge]] - windows[f"{edge}_ns"].to_numpy() for edge in ("start", "end")]
    lag = np.concatenate(edges)
    assert lag.min() >= -early and np.median(lag) <= usual and (lag < -300).mean() <= 0.01
    assert (lag >= -np.tile(windows["error_ns"], 2) - 64).all()


@pytest.mark.parametrize(
    "name", ["behind_copies_h100", "graph_loop_h100", "graph_events_h100", "threads_h200"]
)
def test_without_references_bars_hold_beside_copies_and_behind_graphs(unpack, name):
    """graph_events: traced node by node, and the graph ends with an event of its own, which takes
    2.5 us."""
    trace, log = unpack(name)
    unstamped = trace.event_rows.assign(timestamp_ns=np.int64(0))
    by_clock = align(trace, log).windows.set_index("source")
    without = replace(
        log,
        references=frames.empty(frames.REFERENCES),
        distances=frames.empty(frames.DISTANCES),
        elapsed=log.elapsed.assign(reference=np.int64(-1), start_ms=np.nan, end_ms=np.nan),
    )
    windows = align(replace(trace, event_rows=unstamped), without).windows.set_index("source")
    by_clock, windows = (w[w["kind"] == "event"] for w in (by_clock, windows))
    assert set(by_clock["method"]) == {"clock"} and set(windows["method"]) == {"bounds"}
    error = (windows["start_ns"] - by_clock["start_ns"]).abs()
    assert (error <= windows["error_ns"]).mean() >= 0.97
    assert windows["error_ns"].median() <= 8_100 and error.max() <= 6_500


def test_a_line_places_frames_of_which_it_saw_nothing():
    at = np.arange(0, 300, 3) * MS
    frame = np.repeat([0, 1, 2, 3, 4], 20)
    # what the links between frames were rounded by
    shift = np.array([0, 300, 300, 300, 100])[frame]
    seen = np.flatnonzero(np.isin(frame, [0, 2, 4]))
    frames = joined([-1, 0, 1, 2, 3], [0, 500, 500, 500, 500])
    line = line_of(met(at + 1_000 + shift), at, frame, seen, frames)
    place, spread = line.place(at, frame)
    error = np.abs(place - at - 1_000 - shift)
    assert error[np.isin(frame, [0, 2, 4])].max() < 60
    unseen = np.isin(frame, [1, 3])
    assert (error[unseen] <= 1.96 * spread[unseen] + 32).all()
    assert spread[unseen].min() > 2 * spread[~unseen].max(), "and it says that it did not see them"


def test_lines_grow_by_the_most_certain_joints():
    """Frame 3 lies 300 ns behind 0: by one joint within 40 ns, by three others within 3."""
    joints = {(0, 3): (270, 350), (0, 1): (99, 101), (1, 2): (99, 101), (2, 3): (99, 101)}
    frames = _lines_of_frames(joints, 5)
    assert frames.line.tolist() == [0, 0, 0, 0, 4]
    assert frames.joined_to.tolist() == [-1, 0, 1, 2, -1]
    assert frames.origin_ns.tolist() == [0, 100, 200, 300, 0]
    assert frames.error_ns.tolist() == [0, 1, 1, 1, 0]
    assert frames.from_first_ns.tolist() == [0, 1, 2, 3, 0]


def test_a_frame_is_held_by_the_one_that_it_was_joined_to():
    """Frame 2 is joined to 0 within 30 ns; frame 1, whose number comes before it, lies 20 us elsewhere."""
    at = np.arange(0, 300, 3) * MS
    frame = np.repeat([0, 1, 2, 0, 1], 20)
    shift = np.array([0, 20_000, 20])[frame]
    seen = np.flatnonzero(frame != 2)
    line = line_of(met(at + 1_000 + shift), at, frame, seen, joined([-1, 0, 0], [0, 30_000, 30]))
    place, spread = line.place(at, frame)
    error = np.abs(place - at - 1_000 - shift)
    assert (error <= 1.96 * spread + 32).all() and error.max() < 100
