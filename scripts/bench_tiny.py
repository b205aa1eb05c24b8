"""What very many tiny intervals cost: each one launch between two records, as a program makes them that times every call.

    python scripts/bench_tiny.py big.sqlite --intervals 10000,100000,1000000

The tables' columns are those of an export (big.sqlite: any), the rows are made: times as an H200 has them (a record 1.5 us,
a launch 3 us, on the GPU 2.1 us later), so that every interval can be placed.  Whole processes, started cold.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
from bench_analysis import cost

_RECORD, _LAUNCH, _SYNC = 1, 2, 3
_PID = 7 << 24
_SYNC_EVERY = 500


def write(schema: Path, intervals: int, folder: Path) -> tuple[Path, Path]:
    """(export, event log) of so many intervals."""
    trace, log = folder / f"tiny-{intervals}.sqlite", folder / f"tiny-{intervals}.events.jsonl"
    k = np.arange(intervals, dtype=np.int64)
    begin = 1_000_000_000 + 9_000 * k + 40_000 * (k // _SYNC_EVERY)
    launched = begin + 2_000
    kernel = np.maximum(launched + 3_000 + 2_142, begin + 3_900 + 1_700)
    last = begin + 5_600
    end = kernel + 1_200 + 1_700 + k % 7 * 32
    with closing(sqlite3.connect(trace)) as db:
        db.executescript("pragma journal_mode = off; pragma synchronous = off")
        db.execute("attach ? as old", (str(schema),))
        for name, sql in db.execute(
            "select name, sql from old.sqlite_master where type = 'table' and name not like 'sqlite_%'"
        ).fetchall():
            db.execute(sql)
            if not name.startswith(
                ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "PROFILER_OVERHEAD", "StringIds")
            ):
                db.execute(f'insert into main."{name}" select * from old."{name}"')
        names = {_RECORD: "cudaEventRecord_v3020", _LAUNCH: "cudaLaunchKernel_v7000"}
        names |= {_SYNC: "cudaDeviceSynchronize_v3020", 4: "tiny"}
        db.executemany("insert into StringIds (id, value) values (?, ?)", names.items())
        synced = np.flatnonzero(k % _SYNC_EVERY == _SYNC_EVERY - 1)
        calls = np.concatenate(
            [
                np.stack([begin, begin + 1_500, 5 * k + 1, np.full(intervals, _RECORD)], axis=1),
                np.stack(
                    [launched, launched + 3_000, 5 * k + 2, np.full(intervals, _LAUNCH)], axis=1
                ),
                np.stack([last, last + 1_500, 5 * k + 3, np.full(intervals, _RECORD)], axis=1),
                np.stack(
                    [
                        last[synced] + 2_500,
                        last[synced] + 20_000,
                        5 * synced + 4,
                        np.full(len(synced), _SYNC),
                    ],
                    axis=1,
                ),
            ]
        )
        calls = calls[np.argsort(calls[:, 0], kind="stable")]
        db.executemany(
            'insert into CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", correlationId, nameId, globalTid, eventClass, returnValue) '
            f"values (?, ?, ?, ?, {_PID | 7}, 0, 0)",
            map(tuple, calls.tolist()),
        )
        table = {row[1]: row for row in db.execute("pragma table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
        needed = [
            c
            for c, row in table.items()
            if row[3] and c not in ("start", "end", "correlationId", "streamId")
        ]
        columns = ["start", '"end"', "correlationId", "globalPid", "streamId", *needed]
        values = ["?", "?", "?", str(_PID), "7", *("4" if "Name" in c else "0" for c in needed)]
        rows = np.stack([kernel, kernel + 1_200, 5 * k + 2], axis=1)
        db.executemany(
            f"insert into CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(columns)}) values ({', '.join(values)})",
            map(tuple, rows.tolist()),
        )
        db.commit()
    with log.open("w", encoding="ascii") as file:
        clock = '{"monotonic_ns":0,"trace_ns":0}'
        file.write(
            f'{{"type":"header","format":"nsysalign-events","version":1,"pid":7,"clock":{clock}}}\n'
        )
        head = '{"type":"record","tid":7,"device":0,"stream_handle":0,"site":"tiny.py:1"'
        for i, a, b, ms in zip(
            k.tolist(),
            begin.tolist(),
            last.tolist(),
            ((end - begin - 3_900) / 1e6).tolist(),
            strict=True,
        ):
            file.write(
                f'{head},"seq":{2 * i},"t0_ns":{a - 400},"t1_ns":{a + 1_700}}}\n'
                f'{head},"seq":{2 * i + 1},"t0_ns":{b - 400},"t1_ns":{b + 1_700}}}\n'
                f'{{"type":"elapsed","start":{2 * i},"end":{2 * i + 1},"ms":{ms:.6f}}}\n'
            )
    return trace, log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("schema", type=Path, help="an export, for its tables' columns")
    parser.add_argument("--intervals", default="10000,100000,1000000")
    parser.add_argument("--tmp", type=Path)
    a = parser.parse_args()
    print(
        "| intervals | trace MB | log MB | analyze s (CPU) | us per interval | peak MB |\n|---|---|---|---|---|---|"
    )
    for count in map(int, a.intervals.split(",")):
        with tempfile.TemporaryDirectory(dir=a.tmp) as folder:
            trace, log = write(a.schema.resolve(), count, Path(folder))
            command = [
                sys.executable,
                "-m",
                "nsysalign",
                "analyze",
                str(trace),
                "--events",
                str(log),
                "-q",
            ]
            spent = cost([*command, "-o", str(Path(folder) / "out")], weighed=True)
            sizes = [f"{path.stat().st_size / 1e6:.0f}" for path in (trace, log)]
            each = 1e6 * spent.cpu_s / count
            print(
                f"| {count:,} | {sizes[0]} | {sizes[1]} | {spent.wall_s:.1f} ({spent.cpu_s:.1f}) | {each:.0f} | "
                f"{spent.peak_mb:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
