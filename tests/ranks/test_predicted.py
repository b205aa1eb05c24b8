"""Times without nsys of ranks that wait for each other, against jobs whose profiler's cost is known."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from made import alone, measured, results
from simulator.ranks import run, write_ranks
from simulator.style import Style

import nsysalign
from nsysalign.cli import cli
from nsysalign.predict.coupled import FAR, replay_open
from nsysalign.predict.replay import Call, Item, replay
from nsysalign.ranks import spread
from nsysalign.ranks.command import analyse, recovered
from nsysalign.ranks.compare import compare
from nsysalign.ranks.summary import WAITS_FOR_RANKS

DATA = Path(__file__).resolve().parents[1] / "data" / "ddp_slow_rank.tar.xz"

#: What attribute.overhead takes away: 0.36 of a launch, 0.6 of a record, 100 ns after each call, 12 us of a long pause.
UNDER = {"record_ns": 7_500, "launch_ns": 6_250, "pause_ns": 300}
WITHOUT = {"record_ns": 3_000, "launch_ns": 4_000, "pause_ns": 200}
PAUSE = 12_000


def written(job, folder: Path) -> list[Path]:
    """The traces, as nsys writes them in the default mode: no event was stamped."""
    (folder / "out").mkdir()
    return write_ranks(
        job, folder, lambda rank: Style(event_rows="none", shift=-100_000_000 * rank)
    )


def compared(folder: Path, *paths: Path):
    with spread.processes(1) as executor:
        return compare(
            analyse(recovered(paths or [folder], []), folder / "out", executor, debug=True)
        )


def elapsed(job, rank: int) -> float:
    return float(np.median([p.end.t - p.start.t for p in job.worlds[rank].pairs]))


SITUATIONS = {
    "even": lambda rank, step: 40,
    "rank 1 launches more": lambda rank, step: 120 if rank == 1 else 4,
    "rank 0 launches more": lambda rank, step: 120 if rank == 0 else 4,
    "in turns": lambda rank, step: 120 if rank == step % 2 else 4,
    "neither": lambda rank, step: 0,
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_rank_gains_what_the_slowest_gains(situation, tmp_path):
    launches = SITUATIONS[situation]
    under = run(2, 16, launches=launches, jitter=0, think=lambda r, s: 50_000, **UNDER)
    without = run(2, 16, launches=launches, jitter=0, think=lambda r, s: 50_000 - PAUSE, **WITHOUT)
    written(under, tmp_path)
    (label,) = compared(tmp_path).labels
    for row in label.ranks:
        truth, found = elapsed(without, row.rank), row.unprofiled
        assert found.reason == "" and found.repetitions >= 3
        assert abs(found.predicted_ns - truth) < 2_000, (row.rank, found, truth)
        assert found.lower_ns <= truth <= found.upper_ns
        assert (
            sum(found.parts_ns.values()) == found.predicted_ns and min(found.parts_ns.values()) > 0
        )


def test_a_slow_gpu_gains_nothing_for_anybody(tmp_path):
    """Rank 1 computes 3 ms behind work that was issued long before: rank 0 has launches to lose, and waits longer instead."""
    under = run(
        2,
        12,
        jitter=0,
        compute=lambda r, s: 3_000_000 if r else 20_000,
        launches=lambda r, s: 0 if r else 60,
        **UNDER,
    )
    written(under, tmp_path)
    (label,) = compared(tmp_path).labels
    waiting = label.ranks[0]
    assert waiting.wait_median_ns > 2_000_000
    assert abs(waiting.unprofiled.predicted_ns - waiting.times.median_ns) < 30_000


def test_without_collectives_each_rank_has_its_own_prediction():
    ranks = [replace(measured(n, [100_000] * 4), couplings=(alone(n),)) for n in range(2)]
    (label,) = compare(results(*ranks)).labels
    assert [(r.unprofiled.predicted_ns, r.unprofiled.lower_ns) for r in label.ranks] == [
        (90_000, 80_000)
    ] * 2
    assert label.ranks[0].unprofiled.parts_ns == {"host": 90_000}


def test_a_rank_that_was_not_replayed_has_the_reason_of_most_repetitions():
    why = ["the host was disturbed", "other", "the host was disturbed"]
    couplings = tuple(alone(0, k, reason) for k, reason in enumerate(why))
    (label,) = compare(results(replace(measured(0, [100_000] * 4), couplings=couplings))).labels
    assert label.ranks[0].unprofiled.predicted_ns is None
    assert label.ranks[0].unprofiled.reason == "the host was disturbed"
    (label,) = compare(results(measured(0, [100_000] * 4))).labels
    assert label.ranks[0].unprofiled.reason == "it was not replayed"


def test_one_rank_alone_is_not_predicted_where_it_waits_for_others(tmp_path):
    """Its trace says when it went on, not when it would have."""
    job = run(2, 12, launches=lambda r, s: 120 if r else 4)
    traces = written(job, tmp_path)
    (label,) = compared(tmp_path, traces[0]).labels
    assert (
        label.ranks[0].unprofiled.reason
        == "it waits in NCCL's kernels for ranks that are not known"
    )


def test_a_rank_that_did_not_time_the_work_leaves_the_other_without_a_prediction(tmp_path):
    job = run(2, 12)
    job.worlds[1].pairs.clear()
    written(job, tmp_path)
    (label,) = compared(tmp_path).labels
    assert label.ranks[0].unprofiled.reason == "rank 1, which it meets: it was not replayed there"


times = st.integers(0, 60)
calls = st.lists(
    st.tuples(times, st.integers(1, 30), st.integers(0, 30), times, st.booleans()),
    min_size=1,
    max_size=8,
)


@st.composite
def scenes(draw):
    """Calls of one thread, and operations on up to three lanes; every one begins after its call, and after its predecessor."""
    made, now = [], 0
    for pause, length, share, after, waits in draw(calls):
        now += pause
        made.append(Call(now, now + length, min(share, length), min(after, pause), waits))
        now += length
    items, free = [], {}
    for number, call in enumerate(made):
        for lane in draw(st.lists(st.integers(0, 2), max_size=2, unique=True)):
            begin = max(call.start + draw(times), free.get(lane, 0))
            end = begin + draw(times)
            latency = draw(st.integers(0, begin - call.start))
            gap = draw(st.integers(0, begin - free[lane])) if lane in free else 0
            earlier = [
                n
                for n, i in enumerate(items)
                if i.lane != lane and i.end <= begin and i.call < number
            ]
            behind = draw(st.sampled_from([-1, -2, *earlier]))
            items.append(Item(lane, begin, end, number, latency, gap, behind))
            free[lane] = end
    return made, items


@given(scenes(), st.data())
def test_the_open_replay_is_the_replay_where_collectives_take_as_long_as_they_did(scene, data):
    made, items = scene
    meeting = data.draw(
        st.lists(st.integers(0, max(len(items) - 1, 0)), unique=True, max_size=len(items))
    )
    meeting = sorted(at for at in meeting if at < len(items))
    found, ends, host = replay_open(made, items, meeting)
    rows = np.vstack([found, *ends, host]) if len(items) else np.array([host])
    shifts = np.full(len(meeting), FAR)
    for _ in range(len(meeting) + 1):
        shifts = (rows + np.concatenate([[0], shifts])).min(axis=1)[: len(meeting)]
    least = (rows + np.concatenate([[0], shifts])).min(axis=1)
    played = replay(made, items)
    assert least[len(meeting) : -1].tolist() == played.items
    assert int(least[-1]) == played.host


def test_two_h200s_with_a_slow_rank(tmp_path):
    """Rank 0 waits 6.5 of 8.8 ms for rank 1: it gains what rank 1 gains, not what its own launches would."""
    with tarfile.open(DATA) as packed:
        packed.extractall(tmp_path, filter="data") if hasattr(
            tarfile, "data_filter"
        ) else packed.extractall(tmp_path)
    runs = sorted(map(str, tmp_path.iterdir()))
    done = CliRunner().invoke(
        cli, ["analyze", "-q", *runs, "-o", str(tmp_path / "out"), "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    (label,) = json.loads((tmp_path / "out" / "ranks.json").read_text())["labels"]
    quick, slow = (row["unprofiled"] for row in label["ranks"])
    gains = [
        row["elapsed"]["median_ns"] - row["unprofiled"]["predicted_ns"] for row in label["ranks"]
    ]
    assert abs(gains[0] - gains[1]) < 10_000 and 20_000 < gains[1] < 200_000
    assert quick["lower_ns"] < quick["predicted_ns"] < quick["upper_ns"]
    assert sum(slow["parts_ns"].values()) == slow["predicted_ns"]


def test_what_waits_for_nobody_keeps_its_prediction(tmp_path):
    """The rank that arrives last decides how long it takes: a short collective after 3 ms of its own."""
    job = run(2, 12, jitter=0, launches=lambda r, s: 400 if r else 4, reduce_ns=5_000, **UNDER)
    traces = written(job, tmp_path)
    analyses = [nsysalign.analyze(t, sorted(tmp_path.glob(f"{t.stem}-events*"))) for t in traces]
    assert set(analyses[0].unprofiled["reason"]) == {WAITS_FOR_RANKS}
    assert set(analyses[1].unprofiled["reason"]) == {""} and len(analyses[1].unprofiled_parts)


def test_a_rank_s_own_pages_do_not_predict_what_it_waits_for(tmp_path):
    written(run(2, 12, launches=lambda r, s: 120 if r else 4, **UNDER), tmp_path)
    (label,) = compared(tmp_path).labels
    assert label.ranks[0].unprofiled.predicted_ns
    for folder in (tmp_path / "out").glob("*rank*"):
        unprofiled = nsysalign.load(folder).unprofiled
        assert len(unprofiled) and set(unprofiled["reason"]) == {WAITS_FOR_RANKS}
        assert unprofiled["predicted_ns"].isna().all() and not len(
            nsysalign.load(folder).unprofiled_parts
        )
