"""Marks beside Triton's Proton and NVIDIA's ncu, on a GPU; JSON lines.

    python scripts/marks/against.py proton FOLDER     the same matmul: plain, with our ranges, with Proton's scopes
    python scripts/marks/against.py ncu FOLDER BIN    how often warps took a path: NSYSALIGN_COUNT_WARPS, and ncu on the same kernel

What a machine lacks (Proton's instrumentation, ncu or the right to use its counters) is said, not hidden.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nsysalign.marks as marks
from nsysalign.marks import dump
from nsysalign.marks.layout import name_hash

METRICS = (
    "smsp__inst_executed_op_global_red.sum", "smsp__sass_inst_executed_op_global_red.sum",
    "smsp__inst_executed_op_global_atom.sum", "smsp__sass_inst_executed_op_global_atom.sum",
)  # fmt: skip


def say(**what: Any) -> None:
    """One line of the result."""
    print(json.dumps(what), flush=True)


def expected() -> int:
    """Executions of the path by warps, counted by hand."""
    return sum(
        1 for warp in range(6000) for i in range(20) if 32 * warp < 150_000 and (warp + i) % 3 == 0
    )


def ncu(folder: Path) -> None:
    """Our count, ncu's and the one by hand, with what `marks.sh build` made of paths.cu."""
    programs = Path(sys.argv[3])
    subprocess.run([programs / "paths", folder / "paths.nsam"], check=True, timeout=60)
    found = dump.read(folder / "paths.nsam").counters
    found = found[(found["id"] == name_hash("path") << 2) & (found["part"] == 0)]
    say(by_hand=expected(), marks=int(found["warps"].sum()))
    program = shutil.which("ncu")
    if not program:
        say(ncu="not installed")
        return
    done = subprocess.run(
        [program, "--clock-control", "none", "--csv", "--metrics", ",".join(METRICS), str(programs / "paths-off")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    values = {r["Metric Name"]: r["Metric Value"] for r in rows if "Metric Name" in r}
    say(ncu=values or (done.stdout + done.stderr)[-600:])


def proton(folder: Path) -> None:
    """Median times of one matmul, with a range or scope around every step of its loop."""
    import torch
    import triton_kernels as kernels

    size, block = 4096, 128
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    c, grid = torch.empty_like(a), (size // block, size // block)
    buffer = marks.buffer(mib=2048)

    def times(kernel: Any, *more: Any) -> dict[str, float]:
        def run() -> Any:
            return kernel[grid](a, b, c, size, *more, block, 64, num_warps=8, num_stages=3)

        compiled, found = run(), []
        for _ in range(30):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            found.append(1e3 * start.elapsed_time(end))
        found.sort()
        return {
            "median_us": found[15],
            "least_us": found[0],
            "registers": compiled.n_regs,
            "spills": compiled.n_spills,
        }

    for name in ("plain", "plain again"):
        say(kernel=name, **times(kernels.plain))
        say(kernel="ours, null pointer", **times(kernels.marked, 0))
        say(kernel="ours", **times(kernels.marked, buffer.address))
    try:
        import triton.profiler as profiler

        session = profiler.start(str(folder / "proton"), data="trace", backend="instrumentation")
        say(kernel="proton", **times(kernels.scoped()))
        profiler.finalize(session)
    except Exception as error:
        say(proton=f"{type(error).__name__}: {error}"[:600])


if __name__ == "__main__":
    {"proton": proton, "ncu": ncu}[sys.argv[1]](Path(sys.argv[2]))
