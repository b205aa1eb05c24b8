"""Ranks on a Dask cluster: N copies of one trace, a scheduler and workers started by their own commands.

    python scripts/bench_dask.py TRACE.sqlite [--events LOG] [--copies 8,16,64] [--workers 2]
    unshare --net sh -c 'ip link set lo up && python scripts/bench_dask.py ...'

Prints a row for each N: wall time of `nsysalign analyze FOLDER --dask ADDRESS` as a whole process, beside
`--jobs WORKERS` without a cluster on the same files where `--beside` is given; bytes over the loopback (in a network
of its own, as in the second line, nothing else is on it); the size of all summaries, pickled; and the most memory that
the scheduler, a worker and the client held (VmHWM, MB).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENTRY = [sys.executable, "-c", "from nsysalign.cli import main; main()"]
DASK = [sys.executable, "-m", "dask"]


def most_mb(pid: int) -> float:
    """The most memory that a process has held."""
    said = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(said[1]) / 1024 if said else 0.0


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def carried() -> int:
    """Bytes that the loopback has carried."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(
        int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")
    )


class Cluster:
    """A scheduler and workers with one thread each."""

    def __init__(self, workers: int, folder: Path) -> None:
        log = folder / "scheduler.log"
        quiet = {"stdout": subprocess.DEVNULL}
        self.scheduler = subprocess.Popen(
            [*DASK, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"],
            stderr=log.open("w"),
            **quiet,
        )
        while not (found := re.search(r"tcp://127\.0\.0\.1:\d+", log.read_text())):
            time.sleep(0.1)
        self.address = found[0]
        options = ["--nthreads", "1", "--no-dashboard", "--local-directory", str(folder)]
        logs = [folder / f"worker{n}.log" for n in range(workers)]
        self.workers = [
            subprocess.Popen(
                [*DASK, "worker", self.address, *options], stderr=log.open("w"), **quiet
            )
            for log in logs
        ]
        while not all("Registered to" in log.read_text() for log in logs):
            time.sleep(0.1)

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.send_signal(signal.SIGINT)
            process.wait()


def timed(command: list[str]) -> tuple[float, float, float]:
    """(wall seconds, CPU seconds of it and its own processes, its peak in MB)."""
    begin, process = time.perf_counter(), subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command} failed")
    return time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def summaries_mb(folder: Path, output: Path) -> float:
    """Size of what one worker sends back, pickled, times the number of traces: the copies are alike."""
    import pickle

    from nsysalign.ranks.command import Job, one
    from nsysalign.ranks.sources import find

    sources = find([folder])
    output.mkdir()
    return len(sources) * len(pickle.dumps(one(Job(sources[0], output, "one", None)))) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=Path)
    parser.add_argument("--copies", default="8,16,64")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--beside", action="store_true", help="the same without a cluster, in turn")
    args = parser.parse_args()
    print(
        "| traces | s | without a cluster, s | over the network, MB | summaries, MB | scheduler | worker | client |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for copies in map(int, args.copies.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "traces"
            folder.mkdir()
            for rank in range(copies):
                shutil.copyfile(args.trace, folder / f"report_rank{rank}.sqlite")
                if args.events:
                    shutil.copyfile(args.events, folder / f"report_rank{rank}.events.jsonl")
            cluster = Cluster(args.workers, Path(scratch))
            try:
                before = carried()
                command = [*ENTRY, "analyze", str(folder), "-q", "-o"]
                wall, _, client = timed([*command, f"{scratch}/out", "--dask", cluster.address])
                moved = carried() - before
                scheduler = most_mb(cluster.scheduler.pid)
                worker = max(most_mb(pid) for w in cluster.workers for pid in family(w.pid))
            finally:
                cluster.stop()
            alone = "-"
            if args.beside:
                jobs = ["--jobs", str(args.workers)]
                alone = f"{timed([*command, f'{scratch}/out2', *jobs])[0]:.1f}"
                same = (
                    Path(f"{scratch}/out/ranks.json").read_bytes()
                    == Path(f"{scratch}/out2/ranks.json").read_bytes()
                )
                if not same:
                    sys.exit("the answers differ")
            size = summaries_mb(folder, Path(scratch) / "one")
            numbers = (
                f"{moved / 1e6:.1f} | {size:.1f} | {scheduler:.0f} | {worker:.0f} | {client:.0f}"
            )
            print(f"| {copies} | {wall:.1f} | {alone} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
