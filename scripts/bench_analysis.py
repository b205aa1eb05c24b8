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
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

#: Tables whose rows are events of the timeline: everything else is copied once.
TIMELINE = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "PROFILER_OVERHEAD", "OSRT_API")
TIMES = ("start", "end", "timestamp")
GAP_NS = 1_000_000
#: Keys of the log that are times.
CLOCKS = ("t0_ns", "t1_ns", "monotonic_ns", "realtime_ns", "trace_ns")


def replicate(trace: Path, events: Path, copies: int, out: Path) -> tuple[Path, Path]:
    """A trace and its event log so many times over, later on the same clocks; the paths of both.

    Times are shifted by the trace's own length, correlation ids and record numbers by their own
    range, so that nothing of one copy can be taken for another's; rows of one copy follow those of
    the copy before, as nsys writes them.  The original is opened read-only."""
    out.mkdir(parents=True, exist_ok=True)
    new_trace = out / f"{trace.stem}-x{copies}.sqlite"
    new_events = out / f"{trace.stem}-x{copies}.events.jsonl"
    new_trace.unlink(missing_ok=True)
    shift_ns = _trace(trace, copies, new_trace)
    _log(events, copies, shift_ns, new_events)
    return new_trace, new_events


def _trace(trace: Path, copies: int, out: Path) -> int:
    with closing(sqlite3.connect(out, uri=True)) as db:
        db.executescript("pragma journal_mode = off; pragma synchronous = off")
        db.execute("attach ? as old", (trace.resolve().as_uri() + "?mode=ro",))
        tables = dict(db.execute("select name, sql from old.sqlite_master where type = 'table'"))
        columns = {
            name: [
                c for (c,) in db.execute("select name from pragma_table_info(?, 'old')", (name,))
            ]
            for name in tables
        }
        busy = [
            name
            for name in tables
            if name.startswith(TIMELINE) and {"start", "correlationId"} & set(columns[name])
        ]
        begins, ends, ids = [], [], [0]
        for name in busy:
            if "start" in columns[name]:
                end = "end" if "end" in columns[name] else "start"
                span = f'select min(start), max("{end}") from old."{name}" where start > 0'
                begin, last = db.execute(span).fetchone()
                begins += [begin] if begin is not None else []
                ends += [last] if last is not None else []
            if "correlationId" in columns[name]:
                ids += db.execute(f'select max(correlationId) from old."{name}"').fetchone()
        shift_ns = max(ends) - min(begins) + GAP_NS
        step = 1 + max(filter(None, ids), default=0)
        for name, sql in tables.items():
            db.execute(sql)
            db.execute(f'insert into main."{name}" select * from old."{name}"')
            for copy in range(1, copies) if name in busy else ():
                moved = [_moved(column, copy * shift_ns, copy * step) for column in columns[name]]
                rows = f'select {", ".join(moved)} from old."{name}" order by rowid'
                db.execute(f'insert into main."{name}" {rows}')
        db.commit()
    return shift_ns


def _moved(column: str, shift_ns: int, ids: int) -> str:
    if column in TIMES:  # 0 and NULL stand for "no time"
        return f'case when "{column}" > 0 then "{column}" + {shift_ns} else "{column}" end'
    return f'"{column}" + {ids}' if column == "correlationId" else f'"{column}"'


def _log(events: Path, copies: int, shift_ns: int, out: Path) -> None:
    items = [json.loads(line) for line in events.read_text("utf-8").splitlines() if line.strip()]
    numbers = [i[k] for i in items for k in ("seq", "start", "end") if isinstance(i.get(k), int)]
    sequence = 1 + max(numbers, default=0)
    runs: dict[str, int] = {}
    for item in items:
        name, number = _repetition(item.get("region"))
        runs[name] = max(runs.get(name, 0), number + 1)
    with out.open("w", encoding="utf-8") as file:
        for copy in range(copies):
            for item in items:
                if copy and item["type"] in ("header", "sync", "note"):
                    continue
                later = dict(item)
                for key, value in item.items():
                    if not isinstance(value, int) or isinstance(value, bool):
                        continue
                    if key in CLOCKS and value >= 0:
                        later[key] = value + copy * shift_ns
                    elif key in ("seq", "record", "start", "end"):
                        later[key] = value + copy * sequence
                name, number = _repetition(item.get("region"))
                if name:
                    later["region"] = f"{name}#{number + copy * runs[name]}"
                file.write(json.dumps(later) + "\n")


def _repetition(region: object) -> tuple[str, int]:
    found = re.fullmatch(r"(.*)#(\d+)", region) if isinstance(region, str) else None
    return (found[1], int(found[2])) if found else ("", 0)


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
