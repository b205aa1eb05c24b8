"""What the probe costs per call, in memory and on disk, for 1 and for 8 threads.

    python scripts/bench_calls.py            on a machine with a GPU; about two minutes, without nsys one
    python scripts/bench_calls.py --fake     with the tests' torch without a GPU: the wrapper's own part

A table in microseconds: the thread's own processor time per call (what the calling thread pays), and in brackets the
wall time (with 8 threads most of it is waiting for the interpreter lock).  `record` and `elapsed` are
Event.record() and elapsed_time(), `region` is entering and leaving one.  Then, per million records, the growth of the
process's own memory and of the mapped file, and bytes per record on disk: the raw slots and the event log.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import threading
import time
from pathlib import Path

BATCH = 100
ROOT = Path(__file__).resolve().parents[1]


def child(threads: int, batches: int) -> None:
    """Measure in this process and print one JSON line."""
    import torch

    import nsysalign

    sync = getattr(torch.cuda, "synchronize", lambda: None)
    stream_of = getattr(torch.cuda, "stream", None)
    barrier = threading.Barrier(threads)
    spent: dict[str, list[tuple[float, float]]] = {"record": [], "elapsed": [], "region": []}
    region = nsysalign.region("bench")

    def measured(name: str, work) -> None:
        barrier.wait()
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        work()
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        spent[name].append((cpu / 1e3 / BATCH, wall / 1e3 / BATCH))

    def thread() -> None:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(BATCH)]

        def record() -> None:
            for event in events:
                event.record()

        def elapsed() -> None:
            first = events[0]
            for event in events:
                first.elapsed_time(event)

        def regions() -> None:
            for _ in events:
                with region:
                    pass

        def all_of_it() -> None:
            for _ in range(batches):
                measured("record", record)
                sync()
                measured("elapsed", elapsed)
                measured("region", regions)

        if stream_of is None:
            all_of_it()
        else:
            with stream_of(torch.cuda.Stream()):
                all_of_it()

    running = [threading.Thread(target=thread) for _ in range(threads)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    result = {"batches": batches}
    for name, values in spent.items():
        values = values[len(values) // 5 :]  # the first ones learn places and map pages
        result[name] = statistics.median(cpu for cpu, _ in values)
        result[f"{name}_wall"] = statistics.median(wall for _, wall in values)
    before, events = _memory(), [torch.cuda.Event(enable_timing=True) for _ in range(BATCH)]
    for _ in range(2000):
        for event in events:
            event.record()
        sync()
        events[0].elapsed_time(events[1])
    after = _memory()
    for kind in after:
        result[kind] = (after[kind] - before[kind]) * 1024 / 1e6 * (1e6 / (2000 * BATCH))
    print(json.dumps(result), flush=True)


def _memory() -> dict[str, int]:
    """kB of the process's own pages, and of pages of files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {kind: int(lines[kind].split()[0]) for kind in ("RssAnon", "RssFile", "RssShmem")}


def disk(run_dir: Path) -> tuple[float, float]:
    """Bytes per record: raw, and as the event log that is kept."""
    from nsysalign.record.convert import convert
    from nsysalign.trace.eventlog import read_event_logs

    raw = sum(p.stat().st_size for p in (run_dir / "raw").iterdir())
    logs = convert(run_dir / "raw", run_dir, ROOT)
    records = len(read_event_logs(logs).records)
    return raw / records, sum(p.stat().st_size for p in logs) / records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--fake", action="store_true", help="use the tests' torch, which needs no GPU"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, 400 // options.child)
        return
    import bench_modes as modes

    path = [str(ROOT / "tests" / "collect" / "faketorch")] * options.fake + [
        str(ROOT),
        os.environ.get("PYTHONPATH", ""),
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    names, nsys = modes.modes()
    names = [n for n in names if n != modes.TRACED]
    for threads in (1, 8):
        argv = [str(Path(__file__).resolve()), "--child", str(threads)]
        results = modes.rounds(names, nsys, argv, options.rounds)
        print(
            f"\n{threads} thread{'s' * (threads > 1)}, us per call: processor time of the thread (wall time)"
        )
        print(f"{'':10}" + "".join(f"{name:>20}" for name in names))
        for call in ("record", "elapsed", "region"):
            cells = [
                (modes.median(results[n], call), modes.median(results[n], f"{call}_wall"))
                for n in names
            ]
            print(f"{call:10}" + "".join(f"{f'{cpu:.2f} ({wall:.2f})':>20}" for cpu, wall in cells))
    result, run_dir = modes.run(
        modes.PROBE, nsys, [str(Path(__file__).resolve()), "--child", "1"], os.environ
    )
    alone, alone_dir = modes.run(
        modes.ALONE, nsys, [str(Path(__file__).resolve()), "--child", "1"], os.environ
    )
    mapped = sum(result[kind] - alone[kind] for kind in ("RssFile", "RssShmem"))
    print(
        f"\nper million records: {result['RssAnon'] - alone['RssAnon']:.1f} MB of its own, {mapped:.1f} MB of mapped file"
    )
    print(
        "on disk, bytes per record: {:.0f} while it runs, {:.0f} in the event log".format(
            *disk(run_dir)
        )
    )
    shutil.rmtree(run_dir)
    shutil.rmtree(alone_dir)


if __name__ == "__main__":
    main()
