"""Traces of torch.profiler: the shapes that its versions wrote, files that are something else, and programs
of the simulator, whose budgets must be those of the same program's export."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from click.testing import CliRunner
from kineto_file import PID, US, event, of_export, small, written
from simulator import check, export, machine
from simulator import program as p
from simulator.program import (
    Copy,
    Elapsed,
    Launch,
    Memset,
    Pop,
    Program,
    Push,
    Record,
    Sleep,
    Sync,
)  # fmt: skip
from simulator.style import Style
from simulator.world import LEGACY, NON_BLOCKING

import nsysalign
from nsysalign.answer import answer
from nsysalign.cli import cli
from nsysalign.errors import EventLogError, NoCudaWork, TraceError
from nsysalign.model import FRAME_RANGE, OPERATOR_RANGE, PUSH_POP, tid_of
from nsysalign.text import duration
from nsysalign.trace import chrome
from nsysalign.trace.kineto import nanoseconds
from nsysalign.trace.nccl import read_shared
from nsysalign.trace.read import read_trace


@pytest.fixture(params=["new", "long", "old"])
def shape(request):
    return request.param


def test_the_shapes_of_all_versions_hold_the_same(tmp_path, shape):
    trace = read_trace(written(small(), tmp_path / "t.json", shape))
    kernel, copy = trace.operations.itertuples()
    called = [trace.names[n] for n in trace.calls["name_id"].tolist()]
    assert called == ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"]
    first = int(trace.calls["start_ns"].iloc[0])
    rounded = 1000 if shape == "old" else 1
    assert abs(kernel.start_ns - first - 4_000) < rounded
    assert abs(kernel.end_ns - kernel.start_ns - 3_000) < rounded
    assert abs(copy.start_ns - first - 23_000) < rounded
    assert (copy.bytes, copy.copy_kind, copy.src_kind, copy.dst_kind) == (4096, 1, 1, 2)
    assert [kernel.call, copy.call] == [0, 1] and (kernel.stream, kernel.device) == (7, 0)
    assert trace.names[kernel.name_id] == "gemm"
    assert trace.shapes(np.array([kernel.row])).tolist() == [[132, 2, 1, 128, 1, 1, 40, -1, 64]]
    assert trace.info.devices == ("NVIDIA H200",) and trace.gpus[0].multiprocessors == 132
    assert trace.info.recorder == "kineto"
    assert trace.info.session_start_utc_ns + first >= 1_751_410_836_000_000_000
    assert any("whole microseconds" in note for note in trace.info.notes) == (shape == "old")


def test_annotations_are_ranges_and_the_rest_names_what_the_host_did(tmp_path, shape):
    ranges = read_trace(written(small(), tmp_path / "t.json", shape)).ranges
    kinds = dict(zip(ranges["text"], ranges["kind"], strict=True))
    # aten::linear lies in `forward`, aten::addmm in aten::linear, torch's own frames say nothing
    assert kinds == {
        "ProfilerStep#3": PUSH_POP, "forward": PUSH_POP, "train.py(7): step": FRAME_RANGE,
        "aten::item": OPERATOR_RANGE,
    }  # fmt: skip


def test_only_annotations_are_intervals(tmp_path):
    found = nsysalign.analyze(written(small(), tmp_path / "t.json"))
    assert {*found.labels["label"]} == {"ProfilerStep", "forward"}
    assert {*found.host_ranges["label"]} == {"ProfilerStep", "forward"}


@pytest.mark.parametrize("piece", [150, 999, 1 << 20])
def test_pieces_of_any_size_hold_all_events(tmp_path, monkeypatch, piece):
    """Also where arguments hold what looks like the border of two events, or of the list."""
    events = small()
    events[3]["args"]["deep"] = [{"a": 1}, {"name": "no event"}, {"ph": "X"}]
    events[4]["args"]["text"] = '}, {"ph": "X"}], {"name": "}]}"}'
    path = written(events, tmp_path / "t.json", distributedInfo={"rank": 3})
    whole = read_trace(path)
    monkeypatch.setattr(chrome, "_PIECE", piece)
    monkeypatch.setattr(chrome, "_TAIL", 64)
    again = read_trace(path)
    for table in ("operations", "calls", "ranges"):
        assert getattr(again, table).equals(getattr(whole, table)), table
    source = chrome.ChromeTrace(path)
    assert [one for some in source.events() for one in some] == json.loads(path.read_text())[
        "traceEvents"
    ]
    assert source.about["traceName"] == "t.json" and source.about["distributedInfo"] == {"rank": 3}


def test_a_packed_trace_and_a_bare_list_are_read(tmp_path):
    plain = read_trace(written(small(), tmp_path / "t.json"))
    (tmp_path / "t.json.gz").write_bytes(gzip.compress((tmp_path / "t.json").read_bytes()))
    assert read_trace(tmp_path / "t.json.gz").operations.equals(plain.operations)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    (tmp_path / "list.json").write_text(json.dumps(events))
    assert len(read_trace(tmp_path / "list.json").operations) == 2


def test_names_that_are_no_utf8_and_numbers_that_are_none(tmp_path):
    path = written(small(), tmp_path / "t.json")
    raw = (
        path.read_bytes()
        .replace(b'"gemm"', b'"ge\xffmm C:\\dir"')
        .replace(b'"bytes": 4096', b'"bytes": NaN')
    )
    path.write_bytes(raw)
    trace = read_trace(path)
    assert len(trace.operations) == 2 and trace.operations["bytes"].tolist()[1] == 0


def test_times_keep_their_last_digit():
    assert nanoseconds(["1751410836000001.123", "5", "-2.5"]).tolist() == [
        1751410836000001123,
        5000,
        -2500,
    ]
    assert nanoseconds([1419116104994.671, 2, 0.0005]).tolist() == [1419116104994671, 2000, 0]
    assert nanoseconds([1, 2]).tolist() == [1000, 2000]
    assert nanoseconds([2, 10**400, -(10**400)]).tolist() == [2000, 1000 << 52, -1000 << 52]
    assert nanoseconds([float("nan"), 1e300, None]).tolist()[0] == 0


def test_a_thread_known_by_a_handle_is_that_of_its_operator(tmp_path):
    events = small()
    for one in events:
        if one["cat"] == "cuda_runtime":
            one["tid"] = -247463936 if one["args"]["correlation"] != 12 else 140737488
    trace = read_trace(written(events, tmp_path / "t.json"))
    assert tid_of(trace.calls["thread"].to_numpy()).tolist()[0::2] == [PID, PID]
    assert any("known by a handle only" in note for note in trace.info.notes)


def test_work_without_its_launch_is_counted(tmp_path):
    events = [one for one in small() if one["name"] != "cudaLaunchKernel"]
    trace = read_trace(written(events, tmp_path / "t.json"))
    assert trace.operations["call"].tolist() == [-1, 0]
    assert any(note.startswith("1 operations whose launch") for note in trace.info.notes)


def test_a_cut_file_says_so_wherever_it_ends(tmp_path):
    whole = written(small(), tmp_path / "t.json").read_bytes()
    events = whole.index(b"traceEvents") + 20
    for end in range(events, whole.rindex(b"]"), 97):
        (tmp_path / "cut.json").write_bytes(whole[:end])
        with pytest.raises(TraceError, match="is cut"):
            read_trace(tmp_path / "cut.json")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(whole)[:-40])
    with pytest.raises(TraceError, match="is cut"):
        read_trace(tmp_path / "cut.json.gz")


AMD = [event("cuda_runtime", "hipLaunchKernel", 0, 10, correlation=1)]
MTIA = [event("cpu_op", "aten::add", 0, 10), {**event("mtia_runtime", "run", 0, 9)}]


def test_a_file_that_ends_before_its_events_is_cut(tmp_path):
    (tmp_path / "t.json").write_text('{"schemaVersion": 1,\n "deviceProperties": [\n {"id": 0, "na')
    result = CliRunner().invoke(cli, ["analyze", str(tmp_path / "t.json")])
    assert isinstance(result.exception, TraceError) and "is cut" in result.exception.message


@pytest.mark.parametrize(("contents", "what"), [
    ({"traceEvents": AMD, "schemaVersion": 1}, "AMD"),
    ({"traceEvents": [], "roctracer_version": 4.1}, "AMD"),
    ({"traceEvents": MTIA, "schemaVersion": 1}, "MTIA"),
    ({"traceEvents": [{"ph": "X", "cat": "blink", "name": "paint", "ts": 1, "dur": 2}]}, "another program.*blink"),
    ({"segments": [], "device_traces": []}, "memory snapshot"),
    ([[1, 2], [3, 4]], "something else than events"),
    ({"a": 1}, "without a list of events"),
    ({"traceEvents": [], "schemaVersion": 1}, "without CPU or GPU work"),
])  # fmt: skip
def test_other_files_are_named(tmp_path, contents, what):
    (tmp_path / "t.json").write_text(json.dumps(contents))
    with pytest.raises(TraceError, match=what) as raised:
        read_trace(tmp_path / "t.json")
    assert raised.value.next_step and "WSL2" not in str(raised.value)


def test_a_trace_of_the_cpu_alone_says_what_to_record(tmp_path):
    events = [one for one in small() if one["cat"] == "cpu_op"]
    with pytest.raises(NoCudaWork, match="no CUDA activity") as raised:
        read_trace(written(events, tmp_path / "t.json"))
    assert "torch.profiler" in raised.value.next_step


def test_two_processes_whose_calls_have_the_same_numbers_cannot_be_told_apart(tmp_path):
    events = small()
    more = [dict(one, pid=78, tid=78) for one in events if one["cat"] == "cuda_runtime"]
    with pytest.raises(TraceError, match="2 processes"):
        read_trace(written([*events, *more], tmp_path / "t.json"))


# --- the simulator's programs


STEPS = [
    Push("step"), Launch(40_000), Sleep(15_000), Copy(9_000, pageable=True), Launch(25_000, 13), Sync(), Pop(),
    Sleep(70_000), Push("step"), Memset(4_000), Launch(30_000), p.Api(20_000), Copy(8_000, 7), Launch(9_000), Sync(7),
    Pop(), Sleep(12_000), Launch(5_000, 13), Launch(5_000), Sync(),
]  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """One program's export, and the same as a trace of torch.profiler."""
    folder = tmp_path_factory.mktemp("both")
    program = Program({500: STEPS}, streams={7: LEGACY, 13: NON_BLOCKING})
    sqlite, _ = export.write(machine.run(program), folder)
    return sqlite, of_export(sqlite, folder / "trace.json")


def test_a_program_has_the_budgets_that_its_export_has(both):
    exported, profiled = map(nsysalign.analyze, both)
    check.invariants(profiled)
    columns = [
        "name",
        "label",
        "kind",
        "elapsed_ns",
        "kernel_only_ns",
        "operations",
        "device",
        "end_stream",
    ]
    assert profiled.intervals[columns].equals(exported.intervals[columns])
    for number in exported.intervals["interval"].tolist():
        assert check.parts(profiled, number) == check.parts(exported, number)
    assert profiled.host_ranges.equals(exported.host_ranges)
    assert profiled.kernels.equals(exported.kernels)


def test_nothing_that_is_said_names_another_recorder(both, tmp_path):
    trace = both[1]
    result = CliRunner().invoke(cli, ["analyze", "-v", str(trace), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    said = result.output.replace(str(trace.parent), "").replace(str(tmp_path), "")
    said = said.replace("nsysalign", "")
    assert "torch.profiler" in said
    assert not any(word in said for word in ("nsys", "WSL2", "NVTX", "CUPTI_ACTIVITY", "cuda,nvtx"))


def test_a_folder_of_ranks_is_compared(tmp_path):
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for rank in (0, 1):
        events = small()
        events[-2]["name"] = nccl
        job = {"backend": "nccl", "rank": 1 - rank, "world_size": 2}
        written(
            events, tmp_path / f"worker{rank}.pt.trace.json", distributedInfo=job, host_name="a"
        )
    shared = read_shared(tmp_path / "worker0.pt.trace.json")
    trace = read_trace(tmp_path / "worker0.pt.trace.json")
    assert shared.rank == 1 and shared.host and len(shared.collectives) == 1
    # read twice, the times are on one clock
    assert shared.collectives["start_ns"].tolist() == trace.operations["start_ns"].tolist()[:1]
    assert shared.collectives["process"].tolist() == trace.operations["process"].tolist()[:1]
    (tmp_path / "answer.json").write_text('{"format":"nsysalign-answer"}')
    result = CliRunner().invoke(
        cli, ["analyze", str(tmp_path), "--jobs", "1", "-o", str(tmp_path / "out")]
    )
    assert result.exit_code == 0, result.output
    assert "2 ranks of 2 traces" in " ".join(result.output.split())


def test_pairs_of_an_event_log_are_placed_in_it(tmp_path):
    """The log of a program that profiles itself: its clock and the trace's both tell the time of day."""
    steps = []
    for n in range(6):
        steps += [
            Record(f"a{n}"),
            Launch(20_000 + n * 100),
            Sleep(9_000),
            Launch(8_000),
            Record(f"b{n}"),
        ]
        steps += [Sync(), Elapsed(f"a{n}", f"b{n}", f"x#{n}")]
    style = Style(event_rows="none", clock_lines=False)
    program = Program({500: steps}, streams={7: LEGACY})
    sqlite, logs = export.write(machine.run(program), tmp_path, style)
    trace = of_export(sqlite, tmp_path / "trace.json", baseTimeNanoseconds=style.utc_epoch)
    exported = check.analyze(sqlite, logs)
    for (
        log
    ) in logs:  # as `run --recorder log` writes it: nothing but the program itself profiled it
        text = log.read_text("utf-8")
        log.write_text(
            text.replace('"type": "header"', '"type": "header", "baseline": true'), "utf-8"
        )
        assert '"baseline": true' in log.read_text("utf-8")
    with pytest.raises(EventLogError, match="belongs to no trace"):
        check.analyze(sqlite, logs)
    profiled = check.analyze(trace, logs)
    assert profiled.unaligned.empty and len(profiled.measured) == 6
    columns = ["name", "elapsed_ns", "kernel_only_ns", "method"]
    assert profiled.measured[columns].equals(exported.measured[columns])
    check.invariants(profiled)


def test_a_graph_launch_whose_nodes_have_no_numbers_is_a_graph(tmp_path):
    """Older versions write no `graph node id`; the gap between two nodes has no launch of its own."""
    at = 1_000_000_000_000
    where = {
        "device": 0,
        "context": 1,
        "stream": 7,
        "correlation": 11,
        "grid": [9, 1, 1],
        "block": [32, 1, 1],
    }
    rows = [
        ("user_annotation", "step", 0, 60, PID, PID, {}),
        ("cuda_runtime", "cudaGraphLaunch", 2, 5, PID, PID, {"correlation": 11}),
        *(("kernel", f"node{n}", a, a + 4, 7, 0, where) for n, a in enumerate((10, 20, 30))),
        ("cuda_runtime", "cudaStreamSynchronize", 6, 40, PID, PID, {"correlation": 12}),
    ]  # fmt: skip
    events = [
        event(c, n, at + a * US, at + b * US, tid, pid, **args)
        for c, n, a, b, tid, pid, args in rows
    ]
    found = nsysalign.analyze(written(events, tmp_path / "t.json"))
    (run,) = found.runs["interval"]
    parts = found.parts[found.parts["interval"] == run].set_index("cause")["ns"]
    assert parts.to_dict() == {"kernel": 12_000, "graph": 12_000}
    assert "GPU busy 50 %, between nodes of graphs 50 %" in answer(found).headline.text
    (step,) = found.grouped
    assert [group.work.graphs for group in step.groups] == [1]


def test_a_process_with_the_number_0_is_like_any(tmp_path):
    """Its threads have small numbers, which a trace keeps in less memory than those of records."""
    events = small()
    for one in events[5:]:
        one["tid"] = PID + 1 if one["tid"] == PID else one["tid"]
    expected = nsysalign.analyze(written(events, tmp_path / "usual.json"))
    for one in events:
        one["pid"] = 0
    found = nsysalign.analyze(written(events, tmp_path / "zero.json"))
    columns = ["name", "elapsed_ns", "kernel_only_ns"]
    assert len(found.intervals) and found.intervals[columns].equals(expected.intervals[columns])


AT, SHAPE = (
    1_000_000_000_000,
    {"context": 1, "stream": 7, "grid": [2000, 1, 1], "block": [256, 1, 1]},
)


def row(category, name, start_us, end_us, **args):
    """An event of the thread, or of GPU 0 where `args` name no other."""
    args = ({"device": 0, **SHAPE} | args) if category == "kernel" else args
    return event(category, name, AT + round(start_us * US), AT + round(end_us * US), **args)


def launched(name, launch_us, start_us, end_us, number, **args):
    """A launch and its kernel."""
    call = row("cuda_runtime", "cudaLaunchKernel", launch_us, launch_us + 3, correlation=number)
    return [call, row("kernel", name, start_us, end_us, correlation=number, **args)]


def test_of_a_trace_without_most_of_its_rows_no_idle_time_is_told(tmp_path):
    """Its operators have numbers with holes: what is left of the host's rows explains nothing."""
    for distance, thinned in ((1, False), (50, True)):
        events = []
        for n in range(120):
            ids = {"External id": 1 + distance * n}
            events.append(
                row("user_annotation", f"## part {n % 3} ##", 100 * n, 100 * n + 40, **ids)
            )
            events += launched("gemm", 100 * n + 2, 100 * n + 10, 100 * n + 50, n + 1)
        found = nsysalign.analyze(written(events, tmp_path / f"{distance}.json"))
        rules = set(found.findings["rule"])
        assert ("lost-records" in rules) == thinned
        assert ("whole-run" in rules or not found.labels.empty) != thinned
        assert bool(found.trace.thinned) == thinned
    assert "120 of some 5,951 operators" in found.trace.thinned
    (run,) = found.runs["interval"]
    parts = found.parts[found.parts["interval"] == run].set_index("cause")["ns"]
    assert set(parts.index) == {"kernel", "unknown"} and parts["kernel"] == 120 * 40_000
    assert answer(found).sentence.startswith("Rows were taken out of this trace")


def test_of_several_gpus_the_one_that_works_leads(tmp_path):
    events = launched("fill", 0, 10, 12, 1) + launched("fill", 900, 910, 912, 2)
    for n in range(40):
        events += launched("gemm", 20 * n, 20 * n + 10, 20 * n + 28, n + 10, device=1, context=2)
    found = answer(nsysalign.analyze(written(events, tmp_path / "t.json")))
    assert [run.label for run in found.runs] == ["run (GPU 1)", "run (GPU 0)"]
    assert found.proof.label == "run (GPU 1)" and "gemm" in found.sentence


@pytest.mark.parametrize("busy", [True, False])
def test_a_run_says_how_long_nccls_kernels_ran_and_sends_none_to_ncu(tmp_path, busy):
    events = []
    for n in range(20):
        end = 100 * n + (110 if busy else 60)
        events += launched("ncclDevKernel_AllReduce_Sum_f32", 100 * n, 100 * n + 10, end, n + 1)
    found = nsysalign.analyze(written(events, tmp_path / "t.json"))
    text = answer(found).sentence
    ran = found.kernels["total_ns"].sum()
    assert f"ran for {duration(ran)}" in text and "ncu" not in text


def test_a_wait_that_nothing_explains_is_no_late_launch(tmp_path):
    """The kernels were launched at the step's begin and began a millisecond later."""
    events = [row("user_annotation", "step", 0, 30)]
    for n, start in enumerate((20, 1_500, 3_000)):
        events += launched(f"k{n}", 1 + 4 * n, start, start + 400, n + 1)
    (label,) = answer(nsysalign.analyze(written(events, tmp_path / "t.json"))).labels
    assert label.words.startswith("unexplained wait")


@pytest.mark.parametrize("drift", [0, 2])
def test_work_that_began_before_its_launch_shows_clocks_that_differ(tmp_path, drift):
    """The GPU's clock runs ahead, by two microseconds more for each launch: the GPU's times stay, and the
    host's are moved back, so that the CPU's own code is what the GPU waited for."""
    events = []
    for n in range(50):
        at = 40 * n
        events += launched("gemm", at, at + 8 - drift * n, at + 14 - drift * n, n + 1)
    found = nsysalign.analyze(written(events, tmp_path / "t.json"))
    (run,) = found.runs.itertuples()
    parts = found.parts[found.parts["interval"] == run.interval].set_index("cause")["ns"]
    assert run.elapsed_ns == (49 * (40 - drift) + 6) * US and parts["kernel"] == 50 * 6 * US
    assert parts["host"] > 0.7 * (run.elapsed_ns - parts["kernel"])
    assert "unknown" not in parts
    assert any("its clocks differ" in note for note in found.trace.notes) == bool(drift)


@pytest.mark.parametrize("launch_us", [4_000, 40])
def test_a_slow_first_launch_among_calls_that_set_up_is_a_first_call(tmp_path, launch_us):
    """cuDNN's first convolution: handles are made in cudaFree, and the launch loads code."""
    begin = 20_000 - launch_us
    events = [
        row("user_annotation", "model", 0, 20_100),
        *launched("fill", 1, 10, 12, 1),
        row("cuda_runtime", "cudaFree", 100, 9_000, correlation=2),
        row("cuda_runtime", "cudaLaunchKernel", begin, 20_000, correlation=3),
        row("kernel", "conv", 20_005, 20_050, correlation=3),
        *launched("conv", 20_010, 20_060, 20_100, 4),
    ]
    (label,) = answer(nsysalign.analyze(written(events, tmp_path / "t.json"))).labels
    assert ("module-load" in label.findings) == (launch_us > 1_000)
    assert (label.words == "first call") == (launch_us > 1_000)


@pytest.mark.parametrize("gap_us", [5, 90])
def test_small_ranges_of_a_busy_run_do_not_lead(tmp_path, gap_us):
    """The program's own ranges hold a tenth of the run: what could be saved in them is next to nothing of
    it, unless the GPU idles in them for long."""
    events, at = [], 0
    for n in range(10):
        events.append(row("user_annotation", "read", at, at + 20 + gap_us))
        events += launched("a", at + 1, at + 10, at + 20, 3 * n + 1)
        at += gap_us
        events += launched("b", at + 1, at + 22, at + 32, 3 * n + 2)
        events += launched("work", at + 40, at + 50, at + 1_000, 3 * n + 3)
        at += 1_000
    found = answer(nsysalign.analyze(written(events, tmp_path / "t.json")))
    assert found.proof.kind == ("run" if gap_us == 5 else "nvtx")


def test_what_waits_for_other_work_of_a_busy_gpu_leads_no_screen(tmp_path):
    """Ranges hold the whole run, and what one of them launches waits behind another stream's kernels: of
    a run in which the GPU always works nothing would be saved."""
    events, at = [], 0
    for n in range(6):
        events += [
            row("user_annotation", "a", at, at + 20),
            row("user_annotation", "b", at + 20, at + 60),
        ]
        events += launched("long", at + 1, at + 10, at + 1_000, 3 * n + 1, stream=13)
        events += launched("first", at + 21, at + 30, at + 40, 3 * n + 2)
        events += launched("last", at + 41, at + 1_000, at + 1_008, 3 * n + 3)
        at += 1_000
    found = answer(nsysalign.analyze(written(events, tmp_path / "t.json")))
    assert found.proof.kind == "run" and found.labels[0].label == "b"


@pytest.mark.parametrize(("shift_s", "error"), [(1, None), (3600, EventLogError)])
def test_pairs_of_a_log_that_does_not_fit_are_counted_with_the_reason(tmp_path, shift_s, error):
    steps = [Record("a"), Launch(20_000), Record("b"), Sync(), Elapsed("a", "b", "x")]
    style = Style(event_rows="none", clock_lines=False)
    sqlite, logs = export.write(
        machine.run(Program({500: 4 * steps}, streams={7: LEGACY})), tmp_path, style
    )
    utc = style.utc_epoch + shift_s * 1_000_000_000
    trace = of_export(sqlite, tmp_path / "trace.json", baseTimeNanoseconds=utc)
    if error:
        with pytest.raises(error, match="another run") as raised:
            check.analyze(trace, logs)
        assert "events" in raised.value.next_step
        return
    found = check.analyze(trace, logs)
    assert len(found.unaligned) == 4 and found.measured.empty
    assert (
        "4 intervals could not be placed: its record call is not in the trace" in answer(found).lost
    )


def test_a_run_that_is_busy_for_most_of_it_says_what_it_waited_for(tmp_path):
    events = []
    for n in range(20):
        events += launched("gemm", 100 * n, 100 * n + 8, 100 * n + 83, n + 1)
    text = answer(nsysalign.analyze(written(events, tmp_path / "t.json"))).sentence
    assert "(76 %)" in text and "CPU 1" in text and "ncu" in text
