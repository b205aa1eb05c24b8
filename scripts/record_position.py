"""Where a record lies without event tracing, checked against the GPU's own clock.

    nsysalign run -o RUN -- python scripts/record_position.py > out.txt       on a GPU
    python scripts/record_position.py --check RUN out.txt                     anywhere

A write to memory that the stream itself performs (cuStreamWriteValue32: the same kind of semaphore release that stamps
an event) takes the place of the record, or follows it, and a kernel on another stream logs %globaltimer when it sees
the value:

    write      [spin]W           [spin]      seen w after the spin's end: what a record's latency must be like
    between    [spin] R W        [spin]      the record R lies between the spin's end and the value being seen

`--check` joins %globaltimer and the trace's clock on the spin kernels, which log both their ends, and compares.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
from pathlib import Path

REPEATS = 40


def measure() -> None:
    import torch

    import nsysalign

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))
    from kernels import spin_log, watch

    driver = ctypes.CDLL("libcuda.so.1")
    write = driver.cuStreamWriteValue32_v2
    write.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    side = torch.cuda.Stream()
    main_stream = torch.cuda.current_stream()
    logs = torch.zeros((5, 2), dtype=torch.int64, device="cuda")
    out = []
    for n in range(1, 2 * REPEATS + 1):
        kind = ("write", "between")[n % 2]
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            watch(flag, n, logs[2])
        with nsysalign.region(kind):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            spin_log(300, logs[0])
            if kind == "between":
                a.record()
            if write(main_stream.cuda_stream, flag.data_ptr(), n, 0):
                sys.exit("cuStreamWriteValue32 failed")
            spin_log(20, logs[1])
            if kind == "write":
                a.record()
            b.record()
        torch.cuda.synchronize()
        a.elapsed_time(b)
        first, second, seen = logs[0].tolist(), logs[1].tolist(), logs[2].tolist()[0]
        out.append({"kind": kind, "spin": first, "next": second, "seen": seen})
    print("POSITIONS " + json.dumps(out), flush=True)


def check(run_dir: Path, printed: Path) -> None:
    import numpy as np

    from nsysalign.trace.read import read_trace

    line = next(x for x in printed.read_text().splitlines() if x.startswith("POSITIONS "))
    rows = json.loads(line.removeprefix("POSITIONS "))
    analysis = json.loads((run_dir / "analysis.json").read_text())
    trace = read_trace(run_dir / "trace.sqlite")
    named = {i for i, text in trace.names.items() if "spin_log" in text}
    spins = trace.operations[trace.operations["name_id"].isin(named)].sort_values("start_ns")
    start, end = spins["start_ns"].to_numpy()[-4 * REPEATS :], spins["end_ns"].to_numpy()[-4 * REPEATS :]
    # %globaltimer minus trace: the kernel's own first and last reading lie inside [start, end)
    low = max(r["spin"][1] - e for r, e in zip(rows, end[0::2], strict=True))
    high = min(r["spin"][0] - s for r, s in zip(rows, start[0::2], strict=True))
    offset = (
        np.array([r["spin"][0] for r in rows])
        - start[0::2]
        + np.array([r["spin"][1] for r in rows])
        - end[0::2]
    ) / 2
    place = {i["name"]: i for i in analysis["intervals"]}
    seen = {"write": [], "between": []}
    placed, inside = [], 0
    for n, r in enumerate(rows):
        at = r["seen"] - offset[n] - end[0::2][n]  # after the spin's end on the trace's clock
        seen[r["kind"]].append(at)
        if r["kind"] == "between":
            interval = place[f"between#{len(seen['between']) - 1}"]
            placed.append(interval["start_ns"] - end[0::2][n])
            inside += interval["start_lower_ns"] <= end[0::2][n] + at and placed[-1] >= 0
    print(
        json.dumps(
            {
                "value_seen_after_spin_ns": int(statistics.median(seen["write"])),
                "value_seen_after_spin_and_record_ns": int(statistics.median(seen["between"])),
                "record_placed_after_spin_ns": int(statistics.median(placed)),
                "placed_before_the_value_was_seen": sum(
                    p <= s for p, s in zip(placed, seen["between"], strict=True)
                ),
                "bounds_hold": int(inside),
                "of": len(placed),
                "globaltimer_offset_spread_ns": round(float(np.ptp(offset))),
                "offset_bracket_ns": [int(low), int(high)],
            },
            indent=1,
            default=int,
        )
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", nargs=2, type=Path, metavar=("RUN", "PRINTED"))
    asked = arguments.parse_args()
    check(*asked.check) if asked.check else measure()
