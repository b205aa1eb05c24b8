"""What the probe costs: intervals and record calls, with and without it.

    python scripts/bench_probe.py                                       the plain numbers
    NSYSALIGN_PROBE=1 python scripts/bench_probe.py                     with the probe, without nsys
    nsysalign run --quiet -o DIR -- python scripts/bench_probe.py       with the probe, under nsys
    nsys profile -t cuda,nvtx ... python scripts/bench_probe.py         without the probe, under nsys

Prints one JSON line.  All times are medians in microseconds:
    host_record   one Event.record() call, by perf_counter around 100 of them, stream idle or busy alike
    empty_pair    start.record(); end.record() on an idle stream, by elapsed_time
    small50       50 tiny launches between two records
    long          a 200 us kernel between two records: must not change at all
    clock_*       one reading of a host clock by the user's code, in nanoseconds; clock_pair: what two
                  readings one after the other differ by, that is, what a host timer holds of the
                  readings themselves

    NSYSALIGN_PROBE=1 python scripts/bench_probe.py --clocks             the clocks alone, on any machine with torch
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path


def start_probe() -> None:
    """Arm the probe in this process as `nsysalign run` would, for the row "probe without nsys"."""
    import tempfile

    folder = Path(__file__).resolve().parents[1] / "nsysalign" / "probe_path"
    run_dir = tempfile.mkdtemp()
    os.mkdir(os.path.join(run_dir, "raw"))
    path = os.environ.get("PYTHONPATH")
    env = {
        **os.environ,
        "NSYSALIGN_DIR": run_dir,
        "PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else str(folder),
    }
    env.pop("NSYSALIGN_PROBE")
    os.execve(sys.executable, [sys.executable, *sys.argv], env)


def clock_costs() -> dict[str, float]:
    """Nanoseconds per reading, loop overhead taken off; the least of many rounds, which noise
    cannot lower."""
    raw = getattr(sys.modules.get("_nsysalign_probe.rawtime"), "perf_counter", time.perf_counter)
    rounds, count = 40, 300

    def one(clock) -> float:
        full, empty = float("inf"), float("inf")
        for _ in range(rounds):
            begin = raw()
            for _ in range(count):
                clock()
            middle = raw()
            for _ in range(count):
                pass
            full, empty = min(full, middle - begin), min(empty, raw() - middle)
        return (full - empty) / count * 1e9

    differences = []
    for _ in range(2000):
        begin = time.perf_counter()
        end = time.perf_counter()
        differences.append(end - begin)
    return {
        "clock_perf_counter_ns": one(time.perf_counter),
        "clock_time_ns": one(time.time),
        "clock_pair_ns": statistics.median(differences) * 1e9,
    }


def main() -> None:
    if os.environ.get("NSYSALIGN_PROBE") == "1":
        start_probe()
    import torch

    if "--clocks" in sys.argv:
        if not torch.cuda.is_available():  # the probe keeps readings once CUDA is in use: pretend
            torch.cuda._initialized, torch.cuda.current_device = True, lambda: 0
        result = {
            "probe": "_nsysalign_probe" in sys.modules,
            "nsys": "NVTX_INJECTION64_PATH" in os.environ,
        }
        print(json.dumps(result | {k: round(v, 1) for k, v in clock_costs().items()}), flush=True)
        return

    if not torch.cuda.is_available():
        sys.exit("bench_probe.py needs a CUDA device")
    x = torch.zeros(1024, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def interval(work, repeat: int = 300) -> float:
        values = []
        for _ in range(repeat):
            torch.cuda.synchronize()
            start.record()
            work()
            end.record()
            end.synchronize()
            values.append(start.elapsed_time(end) * 1e3)
        return statistics.median(values)

    def host_record() -> float:
        values = []
        for _ in range(50):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(100):
                start.record()
            values.append((time.perf_counter_ns() - begin) / 1e3 / 100)
        return statistics.median(values)

    def small50() -> None:
        for _ in range(50):
            x.add_(1.0)

    interval(small50, 20)
    result = {
        "probe": "_nsysalign_probe" in sys.modules,
        "nsys": "NVTX_INJECTION64_PATH" in os.environ,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "host_record_us": host_record(),
        "empty_pair_us": interval(lambda: None),
        "small50_us": interval(small50),
        "long_us": interval(lambda: torch.cuda._sleep(400_000)),
        **clock_costs(),
    }
    print(
        json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in result.items()}),
        flush=True,
    )


if __name__ == "__main__":
    main()
