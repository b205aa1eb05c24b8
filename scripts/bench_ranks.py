"""What analysing many traces at once saves: N copies of one trace, one after the other and in worker processes.

    python scripts/bench_ranks.py TRACE.sqlite [--events LOG] [-n 4] [--jobs 2] [--rounds 2] [--dask]

Whole processes, cold, alternating; wall time and CPU time of each, their ratio, the peak of the largest process, and
whether the answers are the same.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENTRY = "from nsysalign.cli import main; main()"


def measure(folder: Path, output: Path, *options: str) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of one analysis, its workers included."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [
        sys.executable,
        "-c",
        ENTRY,
        "analyze",
        str(folder),
        "-o",
        str(output),
        "-q",
        *options,
    ]
    subprocess.run(command, check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=Path)
    parser.add_argument("-n", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dask", action="store_true", help="a local Dask cluster as well")
    args = parser.parse_args()
    ways = {"serial": ("--jobs", "1"), f"{args.jobs} processes": ("--jobs", str(args.jobs))}
    if args.dask:
        ways[f"dask, {args.jobs} workers"] = ("--dask", "local", "--jobs", str(args.jobs))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "traces"
        folder.mkdir()
        for rank in range(args.n):
            shutil.copyfile(args.trace, folder / f"report_rank{rank}.sqlite")
            if args.events:
                shutil.copyfile(args.events, folder / f"report_rank{rank}.events.jsonl")
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        answers = set()
        for _ in range(args.rounds):
            for name, options in ways.items():
                output = Path(scratch) / "out"
                times[name].append(measure(folder, output, *options))
                answers.add((output / "ranks.json").read_bytes())
                shutil.rmtree(output)
    size = args.trace.stat().st_size
    print(f"{args.n} copies of {args.trace.name} ({size / 1e6:.0f} MB), best of {args.rounds}")
    first = min(wall for wall, _ in times["serial"])
    for name, found in times.items():
        wall, cpu = min(w for w, _ in found), statistics.median(c for _, c in found)
        print(
            f"  {name:20s} wall {wall:6.1f} s   CPU {cpu:6.1f} s   {first / wall:.2f} times as fast as serial"
        )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(
        f"  peak of the largest process {peak / 1e6:.0f} MB = {peak / size:.1f} bytes per byte of the export"
    )
    print(f"  answers are {'the same' if len(answers) == 1 else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
