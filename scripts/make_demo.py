"""Cut the demo trace from a recorded export: every case, fewer repetitions, only the tables that
are read.

    python scripts/make_demo.py PROBE.sqlite PROBE.events.jsonl OUT_DIR [--keep N]

Rows of the kept span of time are kept whole: nothing inside a kept interval is thinned out.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sqlite3
import tempfile
from pathlib import Path

CASES = re.compile(
    r"^(h2d_t[123]|dev_t[123]|flush_t[123]|empty|syncin|item|pageable|pinned|cpugap|otherstream|wrongstream|crossstream|small50|graph|host_\w+)#"
)
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "span",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "span",
    "CUPTI_ACTIVITY_KIND_MEMSET": "span",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "span",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "span",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "span",
    "PROFILER_OVERHEAD": "span",
    "NVTX_EVENTS": "span",
    "TARGET_INFO_CUDA_STREAM": "all",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "all",
    "TARGET_INFO_GPU": "all",
    "TARGET_INFO_SESSION_START_TIME": "all",
    "META_DATA_EXPORT": "all",
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("trace", type=Path)
    arguments.add_argument("events", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--keep", type=int, default=6, help="repetitions per case")
    a = arguments.parse_args()
    lines = [json.loads(line) for line in a.events.read_text().splitlines()]
    header = next(x for x in lines if x["type"] == "header")
    kept = [x for x in lines if x["type"] == "header" or wanted(x.get("region") or "", a.keep)]
    source = sqlite3.connect(f"file:{a.trace}?mode=ro", uri=True)
    epoch = source.execute("select utcEpochNs from TARGET_INFO_SESSION_START_TIME").fetchone()[0]
    offset = header["clock"]["realtime_ns"] - header["clock"]["monotonic_ns"] - epoch
    spans = merge(regions(kept, offset))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "demo.sqlite"
        write(source, path, spans)
        a.out.mkdir(parents=True, exist_ok=True)
        log = "".join(json.dumps(x) + "\n" for x in kept).encode()
        for name, data in (("demo.sqlite.xz", path.read_bytes()), ("demo.events.jsonl.xz", log)):
            (a.out / name).write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
            print(
                name,
                (a.out / name).stat().st_size,
                "bytes,",
                len(kept),
                "log lines,",
                len(spans),
                "spans",
            )


def wanted(region: str, keep: int) -> bool:
    return bool(CASES.match(region)) and int(region.rsplit("#", 1)[1]) < keep


def regions(lines: list[dict], offset: int) -> list[tuple[int, int]]:
    """Trace time of everything that belongs to a kept region, with the work before it that it may
    wait for."""
    at: dict[str, list[int]] = {}
    for x in lines:
        if "t0_ns" in x:
            at.setdefault(x["region"], []).extend((x["t0_ns"] + offset, x["t1_ns"] + offset))
    return [(min(t) - 12_000_000, max(t) + 12_000_000) for t in at.values()]


def merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def write(source: sqlite3.Connection, path: Path, spans: list[tuple[int, int]]) -> None:
    target = sqlite3.connect(path)
    inside = " or ".join(f"(end >= {s} and start <= {e})" for s, e in spans)
    used: set[int] = set()
    for table, rows in TABLES.items():
        found = source.execute("select sql from sqlite_master where name = ?", (table,)).fetchone()
        if not found:
            continue
        target.execute(found[0])
        cursor = source.execute(
            f"select * from {table}" + (f" where {inside}" if rows == "span" else "")
        )
        columns = [d[0] for d in cursor.description]
        data = cursor.fetchall()
        target.executemany(f"insert into {table} values ({','.join('?' * len(columns))})", data)
        for n, column in enumerate(columns):
            if column.endswith("Name") or column in ("nameId", "textId"):
                used |= {r[n] for r in data if isinstance(r[n], int)}
    target.execute("create table StringIds (id integer not null primary key, value text not null)")
    for number in sorted(used):
        target.executemany(
            "insert into StringIds values (?, ?)",
            source.execute("select id, value from StringIds where id = ?", (number,)),
        )
    target.execute(
        "create table TARGET_INFO_SYSTEM_ENV (globalVid integer, devStateName text, name text, nameEnum integer, value text)"
    )
    target.executemany(
        "insert into TARGET_INFO_SYSTEM_ENV values (?,?,?,?,?)",
        source.execute(
            "select * from TARGET_INFO_SYSTEM_ENV where name in ('NvDriverVersion', 'CudaDriverVersion')"
        ),
    )
    target.commit()
    target.execute("vacuum")
    target.close()


if __name__ == "__main__":
    main()
