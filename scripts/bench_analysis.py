"""How long an analysis takes, against `nsys stats` of the same export, and how that grows.

    python scripts/bench_analysis.py big.sqlite big.events.jsonl --copies 1,3,10,30 --nsys PATH

Both are whole processes, started cold (imports included, files in the page cache), in turn, each
`--repeat` times, the medians printed.  Ours is what a user types, `nsysalign analyze TRACE --events
LOG`: reading, placing, splitting, explaining, and writing analysis.db and report.html; nsys's is `stats -r cuda_kern_exec_trace`, which joins kernels with their launches and
prints a table. Wall time is for a quiet machine; CPU time (user and system) is good on a busy one,
too.  0 copies: `nsysalign demo`. Python's compiled files are used and kept, as they are where
nsysalign was installed, whatever the environment says.

    git archive REVISION | tar x -C OLD; python scripts/bench_analysis.py ... --before OLD

puts another checkout's first analysis beside, in turn with this one's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from replicate_trace import replicate


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float
    peak_mb: float


def cost(command: Sequence[str], *, weighed: bool = False) -> Cost:
    """One run of a command and all processes that it starts, its output thrown away.  Exits where
    it fails.

    The peak is what all of them hold at once (proportional set sizes, looked at ten times a second:
    which takes time itself) where it is `weighed`, else that of the largest one.
    """
    begin = time.perf_counter()
    compiled = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=compiled
    )
    over, peaks = threading.Event(), [0.0]
    if weighed:
        threading.Thread(target=_weigh, args=(process.pid, over, peaks), daemon=True).start()
    said = process.stderr.read() if process.stderr else b""
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    over.set()
    if status:
        sys.exit(f"{' '.join(command)} failed:\n{said.decode(errors='replace')}")
    return Cost(
        wall, used.ru_utime + used.ru_stime, max(peaks) if weighed else used.ru_maxrss / 1024
    )


def _weigh(pid: int, over: threading.Event, peaks: list[float]) -> None:
    while not over.wait(0.1):
        total = 0.0
        for one in _family(pid):
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
                total += (
                    sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
                )
        peaks.append(total)


def _family(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def median(costs: Sequence[Cost]) -> Cost:
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


class Measured(NamedTuple):
    first: Cost
    nsys: Cost | None
    before: Cost | None  # the first analysis of another checkout


def of_tree(tree: Path, command: Sequence[str]) -> list[str]:
    """The command with another checkout's nsysalign."""
    return [
        "env",
        "-C",
        str(tree),
        f"PYTHONPATH={tree.resolve()}",
        *command,
    ]  # where Python begins to look


def measure_demo(repeat: int, before: Path | None) -> Measured:
    """`nsysalign demo`, once more than asked for: the first run compiles."""
    demo = [sys.executable, "-m", "nsysalign", "demo", "-q", "-o"]
    ours, earlier = [], []
    for _ in range(repeat + 1):
        with tempfile.TemporaryDirectory() as out:
            ours.append(cost([*demo, f"{out}/new"]))
            earlier += [cost(of_tree(before, [*demo, f"{out}/old"]))] if before else []
    first = median(ours[1:])
    return Measured(first, None, median(earlier[1:]) if earlier else None)


def measure(
    trace: Path, events: Path | None, nsys: str | None, repeat: int, before: Path | None
) -> Measured:
    ours, theirs, earlier = [], [], []
    log = ["--events", str(events)] if events is not None else []
    analyze = [sys.executable, "-m", "nsysalign", "analyze", str(trace), *log, "-q"]
    weighed = weighed_before = None
    for _ in range(repeat):
        if before:
            with tempfile.TemporaryDirectory(dir=trace.parent) as out:
                old = of_tree(before, [*analyze, "-o", out])
                earlier.append(cost(old))
                weighed_before = weighed_before or cost([*old], weighed=True)
        with tempfile.TemporaryDirectory(dir=trace.parent) as out:
            ours.append(cost([*analyze, "-o", out]))
            weighed = cost([*analyze, "-o", out], weighed=True) if weighed is None else weighed
        if nsys:
            stats = [
                nsys,
                "stats",
                "-r",
                "cuda_kern_exec_trace",
                "--force-export=false",
                str(trace),
            ]
            theirs.append(cost(stats))
    ours = [one._replace(peak_mb=weighed.peak_mb) for one in ours]
    earlier = [one._replace(peak_mb=weighed_before.peak_mb) for one in earlier]
    return Measured(
        median(ours),
        median(theirs) if theirs else None,
        median(earlier) if earlier else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("events", type=Path)
    parser.add_argument(
        "--copies", default="1,3,10", help="how many times over, comma between (default: 1,3,10)"
    )
    parser.add_argument("--nsys", default=os.environ.get("NSYS") or shutil.which("nsys"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--tmp", type=Path, help="where the longer traces are made (41 MB a copy for `big`)"
    )
    parser.add_argument(
        "--nsys-up-to",
        type=int,
        default=10,
        help="no nsys on more copies than these (it takes long)",
    )
    parser.add_argument(
        "--before", type=Path, metavar="TREE", help="another checkout, to be put beside"
    )
    parser.add_argument("--without-log", action="store_true", help="analyse the trace by itself")
    a = parser.parse_args()
    print(
        "| copies | trace MB | before s (CPU) | before peak MB | analyze s (CPU) | peak MB | "
        "nsys stats s (CPU) | ratio wall | ratio CPU |"
    )
    print("|---" * 9 + "|")
    with tempfile.TemporaryDirectory(dir=a.tmp) as folder:
        for copies in map(int, a.copies.split(",")):
            made = replicate(a.trace, a.events, copies, Path(folder).resolve()) if copies else ()
            nsys = a.nsys if copies <= a.nsys_up_to else None
            if made:
                log = None if a.without_log else made[1]
                ours, theirs, old = measure(made[0], log, nsys, a.repeat, a.before)
            else:
                ours, theirs, old = measure_demo(a.repeat, a.before)
            cells = [
                str(copies),
                f"{made[0].stat().st_size / 1e6:.0f}" if made else "-",
                f"{old.wall_s:.2f} ({old.cpu_s:.2f})" if old else "-",
                f"{old.peak_mb:.0f}" if old else "-",
                f"{ours.wall_s:.2f} ({ours.cpu_s:.2f})",
                f"{ours.peak_mb:.0f}",
                f"{theirs.wall_s:.2f} ({theirs.cpu_s:.2f})" if theirs else "-",
                f"{ours.wall_s / theirs.wall_s:.2f}" if theirs else "-",
                f"{ours.cpu_s / theirs.cpu_s:.2f}" if theirs else "-",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)
            for file in made:
                file.unlink()


if __name__ == "__main__":
    main()
