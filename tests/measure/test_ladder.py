"""One call by every clock: rows that add up, causes that are right, and what cannot be measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from nsysalign.addons.measure import page, terminal
from nsysalign.addons.measure.profile import Profile
from nsysalign.addons.measure.result import load
from nsysalign.cli import cli
from nsysalign.errors import UsageError
from nsysalign.store.objects import to_json

from .conftest import CALLS
from .test_page import made, said

CLOCKS = {"clocks": True, "processes": 1}


def of(measure, l2):
    (point,) = measure.points
    return {r.way: r for r in measure.rungs(point, l2)}


def test_the_rows_of_a_known_call_and_their_differences(measured):
    """A kernel of 50 us (65 with a cold L2): the distances of tests/measure/simulated.py."""
    m = load(measured("with_inputs", **CLOCKS).folder)
    warm, cold = of(m, "warm"), of(m, "cold")
    assert list(warm) == ["latency", "event", "device", "do_bench_cudagraph", "graph"]
    assert list(cold) == ["latency", "event", "device", "do_bench", "graph"]
    us = {way: r.value_ns / 1e3 for way, r in warm.items()}
    expected = {"latency": 62, "event": 58.3, "device": 52.6, "do_bench_cudagraph": 50}
    assert us == pytest.approx(expected | {"graph": 61.3}, abs=0.2)
    assert cold["do_bench"].value_ns == pytest.approx(cold["device"].value_ns, abs=200)
    assert cold["device"].value_ns - warm["device"].value_ns == pytest.approx(15_000, abs=400)
    for rows in (warm, cold):
        first, *_, last = rows.values()
        steps = sum(r.next_ns for r in rows.values() if r is not last)
        assert steps + last.value_ns == pytest.approx(first.value_ns) and math.isnan(last.next_ns)
    assert warm["event"].cause == "without waits for launches"
    # the flush hides one launch, and the rest is the same
    assert cold["device"].cause == "nothing that should differ" and cold["device"].known_ns == 0
    # a synchronisation of 2 us and a launch of 4, and half of the records, which the pair has
    assert warm["latency"].known_ns == pytest.approx(warm["latency"].next_ns, abs=100)
    document = json.loads((m.folder / "measure.json").read_text())
    assert [r["way"] for r in document["ladder"]] == [*warm, *cold]


@pytest.mark.parametrize(
    ("call", "ways", "words"),
    [
        ("waits", ["latency", "event"], "device is not measured: the call waits for the GPU"),
        ("waits", ["latency", "event"], "graph is not measured: not capturable"),
        ("elsewhere", ["latency"], "do_bench/cold is not measured: the call's work"),
        ("without_triton", ["latency", "event", "device", "graph"], "triton is not installed"),
    ],
)
def test_what_a_call_cannot_be_timed_by_is_left_out_and_said(measured, call, ways, words):
    m = load(measured(call, **CLOCKS).folder)
    assert list(of(m, "warm")) == ways and any(words in n for n in m.notes)


def test_without_nsys_the_timed_half_is_there(measured, tmp_path):
    m = load(measured("default", **CLOCKS, profile=True, nsys=str(tmp_path / "none")).folder)
    assert "span" not in of(m, "warm") and "device" in of(m, "warm") and not m.failed
    assert any(n.startswith("no profile: ") and "nsys" in n for n in m.notes)


def with_profile(**numbers):
    m = made(batches=(None,))
    gpu = {"sum": 740e3, "queued": 760e3, "event": 1.0e6, "graph": 745e3, "replay": 752e3}
    profile = Profile(
        0, None, "profile-default", gpu_ns={"warm": gpu | numbers}, empty_kernel_ns=1_000.0
    )
    facts = {"device": {"empty_kernel_ns": 2_600}}
    runs = tuple(replace(run, facts=facts) for run in m.runs)
    return replace(m, profiles=(profile,), runs=runs, options={**m.options, "clocks": True})


def test_what_else_was_measured_explains_the_differences():
    m = with_profile()
    rows = of(m, "warm")
    assert list(rows)[-2:] == ["span", "sum"] and rows["sum"].value_ns == 740e3
    assert rows["span"].cause == "without gaps between kernels"
    assert rows["span"].known_ns == rows["span"].next_ns == 20e3
    assert rows["event"].known_ns == pytest.approx(1.0e6 - 760e3 - 1_600)
    # a graph less its launch and records, and with the gaps of a stream instead of its own
    assert rows["graph"].known_ns == pytest.approx(7e3 + 5e3 - 20e3)
    verdict = terminal.clocks_verdict(m, m.points[0])
    assert verdict[0] == "how long one caller waits: 1.15 ms (host timer + synchronise)"
    assert "in a model that keeps the GPU busy: 770 us (event pair behind a delay)" in verdict[2]
    assert not any("that nsys saw" in line for line in verdict)
    lines = said(m).splitlines()
    assert all(len(line) <= 100 for line in lines if " us  " in line)
    assert any("without gaps between kernels (-20.00 us known, +0.00 not)" in x for x in lines)
    assert f"  {verdict[0]}" in lines


def paced(**facts):
    """The ladder of `with_profile` whose worker also read the host's clock around its pairs."""
    m = with_profile(event=1.3e6, event_read=1.5e6, event_host=400e3)
    runs = [replace(r, facts={"device": {"empty_kernel_ns": 2_600} | facts}) for r in m.runs]
    return of(replace(m, runs=tuple(runs)), "warm")


def test_the_host_s_own_clock_explains_what_the_host_paces():
    """1.1 ms from record to record; kernels, gaps and records take 761.6 us of them."""
    row = paced(event_warm_paced_ns=1.099e6, event_warm_host_ns=1.1e6)["event"]
    assert row.known_ns == pytest.approx(1.099e6 - 761.6e3)


def test_where_the_gpu_is_last_the_wait_under_nsys_is_scaled_by_the_host_s_speed():
    """A host that is twice as fast as the profiled one waits half as long, if that is less than
    what is predicted."""
    row = paced(event_warm_paced_ns=199e3, event_warm_host_ns=200e3)["event"]
    assert row.known_ns == pytest.approx((1.5e6 - 761.6e3) / 2)
    row = paced(event_warm_paced_ns=399e3, event_warm_host_ns=400e3)["event"]
    assert row.known_ns == pytest.approx(1.3e6 - 761.6e3)


def test_a_graph_of_copies_has_no_length_in_the_trace():
    rows = of(with_profile(graph=480.0), "warm")
    assert math.isnan(rows["graph"].known_ns) and rows["event"].known_ns > 0


def test_another_sm_clock_is_named_with_what_it_may_explain():
    m = with_profile()
    (profile,) = m.profiles
    blocks = tuple(replace(b, sm_mhz=1500.0) for b in m.blocks)
    m = replace(m, blocks=blocks, profiles=(replace(profile, mhz={"warm": 1650.0}),))
    rows = of(m, "warm")
    assert rows["event"].mhz == 1500 and rows["event"].clock_ns == 0 and rows["sum"].mhz == 1650
    above = list(rows)[-3]  # the last one that was timed, above the span
    # at a clock that is 10 % faster the kernels take 10 % less, at most
    assert rows[above].clock_ns == pytest.approx(0.1 * rows["sum"].value_ns)
    assert terminal.ladder_row(rows[above])[-1].endswith("; another SM clock up to -74.00")


def test_one_kernel_has_no_gaps_and_no_span():
    rows = of(with_profile(queued=740e3), "warm")
    assert "span" not in rows and "gaps between kernels" not in rows["graph"].cause.split(", ")[0]


def test_a_call_that_no_delay_can_hide_has_a_sum_and_unknown_gaps():
    m = with_profile()
    (profile,) = m.profiles
    gpu = {"warm": {"sum": 740e3, "event": 1.0e6}}
    rows = of(replace(m, profiles=(replace(profile, gpu_ns=gpu),)), "warm")
    assert list(rows)[-1] == "sum" and "span" not in rows
    assert math.isnan(rows["event"].known_ns) and rows["event"].cause


def test_a_profile_of_other_kernels_is_contradicted():
    m = with_profile(queued=9e5, sum=8.9e5)
    *_, line = terminal.clocks_verdict(m, m.points[0])
    assert line.startswith("warm L2: the kernels that nsys saw take 890 us, longer than the call")


def test_the_page_has_the_same_rows():
    m = with_profile()
    data = json.loads(to_json(page.payload(m)))
    assert [r["cells"] for r in data["ladder"]] == [
        terminal.ladder_row(r) for r in of(m, "warm").values()
    ]
    assert data["verdicts"]["the call"] == terminal.clocks_verdict(m, m.points[0])
    assert json.loads(to_json(page.payload(made())))["ladder"] == []


def test_a_search_has_no_ladder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--clocks is about one batch"):
        cli.main(["measure", f"{CALLS}:make", "--batch", "auto", "--clocks"], standalone_mode=False)
