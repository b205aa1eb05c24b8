"""Cut the demo trace from a recorded export: every case, fewer repetitions, only the tables that
are read.

    python scripts/make_demo.py PROBE.sqlite PROBE.events.jsonl OUT_DIR [REPETITIONS]

Rows of the kept span of time are kept whole: nothing inside a kept interval is thinned out.
"""

from __future__ import annotations

import json
import lzma
import re
import sqlite3
import sys
import tempfile
from pathlib import Path

CASES = re.compile(
    r"^(h2d_t[123]|dev_t[123]|flush_t[123]|empty|syncin|item|pageable|pinned|cpugap|otherstream|"
    r"wrongstream|crossstream|small50|graph|host_\w+)#"
)
#: Of these the rows in the kept spans, of the others all.
IN_SPANS = (
    *(
        f"CUPTI_ACTIVITY_KIND_{kind}"
        for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "SYNCHRONIZATION")
    ),
    "PROFILER_OVERHEAD",
    "NVTX_EVENTS",
)
WHOLE = (
    "TARGET_INFO_CUDA_STREAM",
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "TARGET_INFO_GPU",
    "TARGET_INFO_SESSION_START_TIME",
    "META_DATA_EXPORT",
)
#: What a kept interval may wait for began this long before it.
AROUND_NS = 12_000_000


def main(trace: Path, events: Path, out: Path, keep: int = 6) -> None:
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    header = next(x for x in lines if x["type"] == "header")
    kept = [x for x in lines if x["type"] == "header" or wanted(x.get("region") or "", keep)]
    source = sqlite3.connect(f"file:{trace}?mode=ro", uri=True)
    (epoch,) = source.execute("select utcEpochNs from TARGET_INFO_SESSION_START_TIME").fetchone()
    offset = header["clock"]["realtime_ns"] - header["clock"]["monotonic_ns"] - epoch
    spans = spans_of(kept, offset)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "demo.sqlite"
        write(source, path, spans)
        out.mkdir(parents=True, exist_ok=True)
        log = "".join(json.dumps(x) + "\n" for x in kept).encode()
        for name, data in (("demo.sqlite.xz", path.read_bytes()), ("demo.events.jsonl.xz", log)):
            (out / name).write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
            size = (out / name).stat().st_size
            print(name, size, "bytes,", len(kept), "log lines,", len(spans), "spans")


def wanted(region: str, keep: int) -> bool:
    return bool(CASES.match(region)) and int(region.rsplit("#", 1)[1]) < keep


def spans_of(lines: list[dict], offset: int) -> list[tuple[int, int]]:
    """Trace time of everything that belongs to a kept region, with the work before it that it may
    wait for; sorted and apart."""
    times: dict[str, list[int]] = {}
    for x in lines:
        if "t0_ns" in x:
            times.setdefault(x["region"], []).extend((x["t0_ns"] + offset, x["t1_ns"] + offset))
    spans: list[tuple[int, int]] = []
    for start, end in sorted((min(t) - AROUND_NS, max(t) + AROUND_NS) for t in times.values()):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((start, end))
    return spans


def write(source: sqlite3.Connection, path: Path, spans: list[tuple[int, int]]) -> None:
    target = sqlite3.connect(path)
    inside = " or ".join(f"(end >= {s} and start <= {e})" for s, e in spans)

    def copied(table: str, sql: str, where: str = "") -> tuple[list[str], list[tuple]]:
        target.execute(sql)
        cursor = source.execute(f"select * from {table}{where}")
        columns, rows = [d[0] for d in cursor.description], cursor.fetchall()
        target.executemany(f"insert into {table} values ({','.join('?' * len(columns))})", rows)
        return columns, rows

    tables = dict(source.execute("select name, sql from sqlite_master where type = 'table'"))
    used: set[int] = set()
    for table in (*IN_SPANS, *WHOLE):
        if table in tables:
            where = f" where {inside}" if table in IN_SPANS else ""
            columns, rows = copied(table, tables[table], where)
            for n, column in enumerate(columns):
                if column.endswith("Name") or column in ("nameId", "textId"):
                    used |= {row[n] for row in rows if isinstance(row[n], int)}
    names = f" where id in ({','.join(map(str, sorted(used)))})"
    copied(
        "StringIds",
        "create table StringIds (id integer not null primary key, value text not null)",
        names,
    )
    copied(
        "TARGET_INFO_SYSTEM_ENV",
        "create table TARGET_INFO_SYSTEM_ENV (globalVid integer, devStateName text, name text, "
        "nameEnum integer, value text)",
        " where name in ('NvDriverVersion', 'CudaDriverVersion')",
    )
    target.commit()
    target.execute("vacuum")
    target.close()


if __name__ == "__main__":
    trace, events, out, *keep = sys.argv[1:]
    main(Path(trace), Path(events), Path(out), *map(int, keep))
