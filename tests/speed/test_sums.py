"""Budgets by running sums are those of the pieces, whatever the chunks; what is not kept changes
nothing else."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from simulator import export, machine
from simulator.export import Style
from thorough import part

import nsysalign
from nsysalign import engine, registry
from nsysalign.cli import cli
from nsysalign.split import budget
from nsysalign.store import database
from tests.properties.programs import host_programs, loops, programs

QUICK = settings(
    max_examples=part(3, 6),
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TABLES = [spec.name for spec in registry.specs()]


def same(one, other, tables=TABLES) -> None:
    for name in tables:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)


def consistent(analysis) -> None:
    """Parts and details are sums of the segments, which are made window by window."""
    s = analysis.segments.assign(ns=analysis.segments["end_ns"] - analysis.segments["start_ns"])
    parts = (
        analysis.parts[analysis.parts["ns"] > 0].set_index(["interval", "cause"])["ns"].sort_index()
    )
    by_cause = s.groupby(["interval", "cause"])["ns"].sum().sort_index()
    assert by_cause.to_dict() == parts.to_dict()
    on = s[
        s["ref_kind"].isin(["kernel", "graph", "memcpy", "memset"]) & (s["cause"] == s["ref_kind"])
    ]
    on = on[~on["detail"].str.startswith("staging")]
    on = on[
        on["interval"].isin(analysis.measured["interval"])
    ]  # what a whole run holds is in its kernels
    count = (
        on.drop_duplicates(["interval", "ref_kind", "ref_id"]).groupby("interval").size().to_dict()
    )
    operations = analysis.measured.set_index("interval")["operations"]
    # nodes of a graph may lie behind others all the time: no piece shows them
    assert all(0 < count.get(n, 0) <= has for n, has in operations[operations > 0].items())
    named = s[s["ref_kind"].isin(["api", "nvtx", "overhead"]) & s["cause"].isin(["api", "sync", "api_launch", "host", "event", "profiler"])]  # fmt: skip
    d = analysis.details[analysis.details["cause"].isin(named["cause"].unique())]
    key = ["interval", "cause", "detail"]
    assert named.groupby(key)["ns"].sum().to_dict() == d.groupby(key)["ns"].sum().to_dict()


@QUICK
@given(
    st.one_of(programs(), loops(), host_programs()),
    st.sampled_from(["timed", "untimed", "none"]),
    st.integers(1, 5),
    st.booleans(),
)
def test_chunks_of_any_size_give_the_same_sums_as_the_pieces(program, event_rows, chunk, logged):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        trace, events = export.write(
            machine.run(program), Path(folder), Style(event_rows=event_rows)
        )
        logs = events if logged else []
        whole = nsysalign.analyze(trace, events=logs)
        consistent(whole)
        patch.setattr(budget, "_BLOCKS", chunk)
        patch.setattr(budget, "_CALLS", chunk)
        same(whole, nsysalign.analyze(trace, events=logs))


@pytest.mark.parametrize("name", part(["truth_linears"], ["truth_linears", "truth_oracle"]))
def test_segments_that_are_not_kept_change_nothing_else(recording, monkeypatch, name):
    trace, events = recording(name)
    whole = nsysalign.analyze(trace, events=[events])
    consistent(whole)
    monkeypatch.setattr(engine, "MOST_PIECES", 500)
    some = nsysalign.analyze(trace, events=[events], draw=[whole.measured["name"].iloc[-1]])
    # what the host did is looked at in some of very many intervals, the same ones whatever is drawn
    # or kept
    unmoved = [t for t in TABLES if t != "host_activity"]
    same(whole, some, [t for t in unmoved if t not in ("segments", "timeline")])
    kept = some.segments["interval"].unique()
    assert 0 < len(kept) < len(whole.measured) and whole.measured["interval"].iloc[-1] in kept
    mine = whole.segments[whole.segments["interval"].isin(kept)].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine, some.segments, check_exact=True)
    (note,) = (
        n for n in set(some.notes) - set(whole.notes) if not n.startswith("what the host did")
    )
    assert f"segments are kept of {len(kept)} of {len(whole.measured)}" in note
    assert set(some.timeline["interval"]) >= set(whole.timeline["interval"])
    every = nsysalign.analyze(trace, events=[events], all_segments=True)
    same(whole, every, unmoved)
    same(some, every, ["host_activity"])
    looked = some.host_activity.loc[some.host_activity["view"] == "all", "count"].sum()
    assert 0 < looked < whole.host_activity.loc[whole.host_activity["view"] == "all", "count"].sum()


def test_show_makes_segments_that_are_not_stored_from_the_trace_beside_them(
    recording, monkeypatch, tmp_path
):
    trace, events = recording("truth_linears")
    whole = nsysalign.analyze(trace, events=[events])
    log = tmp_path / "events-1.jsonl.gz"  # as runs with as many events leave it
    log.write_bytes(gzip.compress(events.read_bytes()))
    events.unlink()
    name = whole.measured["name"].iloc[-1]
    monkeypatch.setattr(engine, "MOST_PIECES", 15)
    database.write(nsysalign.analyze(trace, events=[log]), tmp_path / "analysis.db")
    shown = CliRunner(env={"COLUMNS": "100"}).invoke(
        cli, ["show", str(tmp_path), "--interval", name, "--all"]
    )
    pieces = whole.segments[whole.segments["interval"] == whole.measured["interval"].iloc[-1]]
    assert shown.exit_code == 0 and "--all-segments" not in shown.output
    assert len(shown.output.splitlines()) >= len(pieces) > 1
    trace.unlink()
    alone = CliRunner().invoke(cli, ["show", str(tmp_path), "--interval", name])
    assert "--all-segments" in alone.output
