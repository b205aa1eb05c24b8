"""What can be wrong with an export or an event log, as hypothesis strategies: damage done to a good
one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

EDGES = (0, 1, -1, 7, 2**24, 2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
values = st.one_of(
    st.none(),
    st.sampled_from(EDGES),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(
        ["", "seven", "12", "nsysalign:sync", "x\0y", "\ud7ff\U0001f600", "n" * 20_000, "a.py:1#0"]
    ),
    st.floats(allow_nan=False),
    st.binary(max_size=12),
)
positions = st.floats(0, 1, exclude_max=True)
#: (what, where of the tables, where of the columns, where of the rows, value)
cell_changes = st.lists(
    st.tuples(
        st.sampled_from(
            ["set", "set", "set", "shift", "swap", "fill", "delete", "double", "column", "table"]
        ),
        positions,
        positions,
        positions,
        values,
    ),
    min_size=1,
    max_size=6,
)
byte_changes = st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=12)


def change_cells(path: Path, changes: list[tuple]) -> None:
    """Damage rows, columns and tables, each by its relative place."""
    with closing(sqlite3.connect(path)) as db:
        for what, table, column, row, value in changes:
            tables = [
                n for (n,) in db.execute("select name from sqlite_master where type = 'table' order by name")
                if not n.startswith("ENUM") and db.execute(f'select 1 from "{n}" limit 1').fetchone()
            ]  # fmt: skip
            if not tables:
                break
            name = tables[int(table * len(tables))]
            columns = [r[1] for r in db.execute(f'pragma table_info("{name}")')]
            field = columns[int(column * len(columns))]
            ids = [i for (i,) in db.execute(f'select rowid from "{name}"')]
            at, other = ids[int(row * len(ids))], ids[int(row * 7919) % len(ids)]
            try:
                _change(db, what, name, field, at, other, value)
            except sqlite3.Error:
                continue  # NOT NULL, PRIMARY KEY, the last column: the schema itself forbids it
        db.commit()


def _change(
    db: sqlite3.Connection, what: str, table: str, field: str, at: int, other: int, value: Any
) -> None:
    place = f'"{table}" set "{field}"'
    if what == "set":
        db.execute(f"update {place} = ? where rowid = ?", (value, at))
    elif what == "fill":
        db.execute(f"update {place} = ?", (value,))
    elif what == "shift":
        db.execute(f'update {place} = "{field}" + ? where rowid >= ?', (value, at))
    elif what == "swap":
        query = f'select "{field}" from "{table}" where rowid = ?'
        values = [db.execute(query, (row,)).fetchone()[0] for row in (other, at)]
        for row, mine in zip((at, other), values, strict=True):
            db.execute(f"update {place} = ? where rowid = ?", (mine, row))
    elif what == "delete":
        between = min(at, other), max(at, other)
        db.execute(f'delete from "{table}" where rowid between ? and ?', between)
    elif what == "double":
        db.execute(f'insert into "{table}" select * from "{table}" where rowid = ?', (at,))
    elif what == "column":
        db.execute(f'alter table "{table}" drop column "{field}"')
    else:
        db.execute(f'drop table "{table}"')


def change_bytes(data: bytes, changes: list[tuple], keep: float = 1.0) -> bytes:
    """Flip bytes (not the magic number, which is tested elsewhere) and cut the end."""
    bad = bytearray(data)
    for position, value in changes:
        bad[16 + int(position * (len(bad) - 16))] ^= value
    return bytes(bad[: max(100, int(keep * len(bad)))])


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from(EDGES),
        st.sampled_from([2**64, 10**400, -1.5, 1e308, float("inf"), float("-inf"), float("nan")]),
        st.text(max_size=8),
        st.sampled_from(["a#0", "not ready", "\ud800", "x" * 5_000, "../../x", "<script>"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
log_changes = st.lists(
    st.tuples(
        st.sampled_from(
            ["set", "set", "set", "drop", "delete", "double", "move", "header", "cut", "raw"]
        ),
        positions,
        positions,
        json_values,
    ),
    min_size=1,
    max_size=6,
)


def change_log(text: str, changes: list[tuple]) -> str:
    lines: list[Any] = [json.loads(line) for line in text.splitlines()]
    for what, where, key, value in changes:
        if not lines:
            break
        at = int(where * len(lines))
        line = lines[at]
        if what == "raw":
            lines[at] = value
        elif what == "delete":
            del lines[at]
        elif what == "double":
            lines.insert(int(key * len(lines)), line)
        elif what == "move":
            lines.insert(int(key * len(lines)), lines.pop(at))
        elif what == "header":
            lines.insert(at, lines[0])
        elif isinstance(line, dict) and line and what in ("set", "drop"):
            name = sorted(line)[int(key * len(line))]
            lines[at] = {
                k: value if k == name else v for k, v in line.items() if what == "set" or k != name
            }
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    cut = [int(where * len(whole)) for what, where, _, _ in changes if what == "cut"]
    return whole[: min(cut)] if cut else whole
