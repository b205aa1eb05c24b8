"""How long an analysis takes, against `nsys stats` of the same export, and how that grows.

    python scripts/bench_analysis.py big.sqlite big.events.jsonl --copies 1,3,10,30 --nsys PATH

Both are whole processes, started cold (imports included, files in the page cache), in turn, each
`--repeat` times, the medians printed.  Ours is what a user types, `nsysalign analyze TRACE --events
LOG`: reading, placing, splitting, explaining, and writing analysis.db and report.html; nsys's is
`stats -r cuda_kern_exec_trace`, which joins kernels with their launches and prints a table.  Wall
time is for a quiet machine; CPU time (user and system) is good on a busy one, too; the peak is that
of the largest process.  0 copies: `nsysalign demo`.

    git archive REVISION | tar x -C OLD; python scripts/bench_analysis.py ... --before OLD

puts another checkout's analysis beside, in turn with this one's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from replicate_trace import replicate


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float
    peak_mb: float


def cost(command: list[str], tree: Path | None = None) -> Cost:
    """One run of a command and all processes that it starts, its output thrown away; `tree`: with
    another checkout's nsysalign.  Exits where it fails."""
    # compiled files are used and kept, as they are where nsysalign was installed
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    if tree:
        environment["PYTHONPATH"] = str(tree.resolve())
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, cwd=tree
    )
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed:\n{said.decode(errors='replace')}")
    wall_s = time.perf_counter() - begin
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def measure(
    made: tuple[Path, Path] | None, nsys: str | None, repeat: int, before: Path | None
) -> dict[str, Cost]:
    """Medians of "now", "before" and "nsys"; without a trace of the demo."""
    costs: dict[str, list[Cost]] = {}
    python = [sys.executable, "-m", "nsysalign"]
    command = [*python, "analyze", str(made[0]), "--events", str(made[1])] if made else None
    for _ in range(repeat):
        for name, tree in (("now", None), ("before", before)) if before else (("now", None),):
            with tempfile.TemporaryDirectory() as out:
                ours = command or [*python, "demo"]
                costs.setdefault(name, []).append(cost([*ours, "-q", "-o", f"{out}/out"], tree))
        if nsys and made:
            stats = [nsys, "stats", "-r", "cuda_kern_exec_trace", "--force-export=false"]
            costs.setdefault("nsys", []).append(cost([*stats, str(made[0])]))
    return {
        name: Cost(*map(statistics.median, zip(*rows, strict=True))) for name, rows in costs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("events", type=Path)
    parser.add_argument("--copies", default="1,3,10", help="how many times over (default: 1,3,10)")
    parser.add_argument("--nsys", default=os.environ.get("NSYS") or shutil.which("nsys"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--before", type=Path, metavar="TREE", help="another checkout")
    a = parser.parse_args()
    print("| copies | trace MB | what | wall s | CPU s | peak MB |\n" + "|---" * 6 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for copies in map(int, a.copies.split(",")):
            made = replicate(a.trace, a.events, copies, Path(folder)) if copies else None
            size = f"{made[0].stat().st_size / 1e6:.0f}" if made else "-"
            for name, each in measure(made, a.nsys, a.repeat, a.before).items():
                cells = f"{each.wall_s:.2f} | {each.cpu_s:.2f} | {each.peak_mb:.0f}"
                print(f"| {copies} | {size} | {name} | {cells} |", flush=True)
            for file in made or ():
                file.unlink()


if __name__ == "__main__":
    main()
