"""What a log alone proves is held against the trace of the same run: the CPU never cost more than
the bound, and what is called GPU-bound is."""

import lzma
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import DATA

from nsysalign.causes import CAUSES
from nsysalign.parts import parts_matrix
from nsysalign.place.lag import local_hull, lower_hull
from nsysalign.show.unprofiled_run import sentence
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.unprofiled_run import (
    CANNOT_TELL,
    CPU_BOUND,
    GPU_BOUND,
    LARGEST_SHARE,
    timed_intervals,
    timed_labels,
    timed_paces,
)

#: Parts in which the GPU waits because of the CPU; launch latency and the events' own cost lie
#: behind the calls.
BY_THE_CPU = [CAUSES.index(cause) for cause in ("host", "api", "sync", "api_launch", "profiler")]
RECORDINGS = ("behind_copies_h100", "globaltimer_h100", "graph_events_h100", "graph_loop_h100", "positions_h100", "threads_h200", "reference_clock")  # fmt: skip


def unpacked(tmp_path, name, what):
    path = tmp_path / f"{name}.{what}"
    path.write_bytes(lzma.decompress((DATA / f"{path.name}.xz").read_bytes()))
    return path


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_cpu_never_cost_more_than_the_bound(recorded, name):
    _, _, logs, analysis = recorded(name)
    by_the_cpu = parts_matrix(analysis)[:, BY_THE_CPU].sum(axis=1)
    told = analysis.intervals.assign(by_the_cpu=by_the_cpu)
    timed = timed_intervals(read_event_logs(logs))
    both = told[told["kind"] == "event"].merge(
        timed[["pid", "name", "elapsed_ns", "idle_at_most_ns", "verdict"]],
        on=["pid", "name", "elapsed_ns"], suffixes=("", "_without_nsys"),
    )  # fmt: skip
    assert len(both) == len(timed) > 0
    assert both["idle_at_most_ns"].notna().all()  # it stands beside the breakdown, too
    assert both["idle_at_most_ns"].equals(both["idle_at_most_ns_without_nsys"])
    assert (both["by_the_cpu"] <= both["idle_at_most_ns"]).all()
    proven = both[both["verdict"] == GPU_BOUND]
    assert (proven["by_the_cpu"] <= LARGEST_SHARE * proven["elapsed_ns"]).all()


def test_labels_take_the_word_that_holds_in_most_repetitions(tmp_path):
    log = read_event_logs([unpacked(tmp_path, "globaltimer_h100", "events.jsonl")])
    labels = timed_labels(timed_intervals(log)).set_index("label")
    word = labels["verdict"].to_dict()
    # queued behind a delay: the GPU sets the pace; on an idle stream, or with a wait inside: not
    assert {word[label] for label in ("copy", "graph", "matmul")} == {GPU_BOUND}
    assert {word[label] for label in ("idle", "behind_copy", "pageable", "side_waits")} == {
        CPU_BOUND
    }
    # it is the CPU's pause, but the GPU had work left at the end
    assert word["pause_inside"] == CANNOT_TELL
    assert labels.loc["pause_inside", "idle_at_most_ns"] > 10_000_000
    assert labels.loc["item", "first_ns"] == 1_886_944  # its first repetition is apart
    each = Counter()
    for pace in timed_paces(timed_intervals(log)):
        each[pace.label] += pace.count
    assert each == (labels["count"] - 1).to_dict() and (labels["steady"] < labels["count"]).all()


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(-(10**6), 10**6)), min_size=1, max_size=60
    ),
    st.floats(-1e-4, 1e-4),
)
def test_the_hull_lies_below_all_points_and_follows_any_line(points, slope):
    x, y = (np.array(column) for column in zip(*points, strict=True))
    hull = lower_hull(x, y)
    assert (hull <= y + 1e-6).all()
    # a clock that drifts linearly, either way, changes no lag
    drifting = lower_hull(x, y + slope * x)
    np.testing.assert_allclose(drifting - slope * x, hull, atol=1e-3)


def test_no_lag_is_too_long_where_the_clocks_wander():
    # a quarter of an hour on an H100: the rate of the two clocks fell by 0.7 ppm
    since_ns = np.arange(0, 900e9, 50e6)
    caught_up_ns = -23e-6 * since_ns - 0.7e-6 / 900e9 / 2 * since_ns**2
    waited_ns = np.where(np.arange(len(since_ns)) % 7, 5_000.0, 0.0)
    hull_ns = local_hull(since_ns, caught_up_ns + waited_ns)
    assert (hull_ns > caught_up_ns - 20).all()  # the arc of ten seconds
    assert (hull_ns <= caught_up_ns + waited_ns + 1).all()


def test_a_few_long_repetitions_are_a_pace_of_their_own(tmp_path):
    """Half of the time of 60 repetitions is 4 of them: the median says nothing of these."""
    log = read_event_logs([unpacked(tmp_path, "globaltimer_h100", "events.jsonl")])
    intervals = timed_intervals(log)
    one = intervals[intervals["label"] == intervals["label"].iloc[0]].iloc[[0] * 60]
    usual = 1_000_000 + 1_000 * (np.arange(60) % 7)
    elapsed = np.where(np.arange(60) % 15 == 9, 16_000_000, usual)
    one = one.assign(interval=np.arange(60), elapsed_ns=elapsed, verdict=CPU_BOUND)
    most, few = timed_paces(one)
    assert (most.count, most.slow, few.count, few.slow) == (55, False, 4, True)
    assert few.total_ns == 64_000_000 and few.typical_ns == 16_000_000
    (label,) = timed_labels(one).to_dict("records")
    assert (label["steady"], label["holds_in"], label["verdict"]) == (55, 55, CPU_BOUND)
    said = sentence(timed_labels(one).iloc[0], [most, few])
    assert "59 timings" in said and "4 of them" in said and "16" in said
