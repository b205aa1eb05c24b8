"""What is written column by column is what its rows say, read from the tables one by one."""

import json as stdlib_json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from handmade import CASES

from nsysalign import frames, registry
from nsysalign.causes import CAUSES
from nsysalign.store import database
from nsysalign.store import document as json
from nsysalign.store.objects import to_json


def cell(value):
    """A cell of a table as JSON knows it."""
    if isinstance(value, (tuple, list)):
        return [cell(item) for item in value]
    if isinstance(value, dict):
        return {str(key): cell(item) for key, item in value.items()}
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def rows_of(table):
    return [{name: cell(table[name].iloc[k]) for name in table.columns} for k in range(len(table))]


def intervals_of(analysis):
    """`intervals` of the document, row by row."""
    parts, details, others = (
        rows_of(getattr(analysis, t)) for t in ("parts", "details", "other_streams")
    )
    expected = rows_of(analysis.intervals)
    for interval in expected:
        number = interval["interval"]
        for key, column in json._BOUNDS.items():
            mine = {part["cause"]: part[column] for part in parts if part["interval"] == number}
            interval[key] = {cause: mine.get(cause, 0) for cause in CAUSES}
        own = [dict(detail) for detail in details if detail["interval"] == number]
        interval["details"] = [detail for detail in own if detail.pop("interval") == number]
        mine = [other for other in others if other["interval"] == number]
        interval["other_streams_ns"] = {str(other["stream"]): other["ns"] for other in mine}
    return expected


def mixed(analysis):
    """Numbers that are not 0, 1, 2..., details out of order, several streams, copies beside calls,
    odd texts."""
    renumbered = {old: 7 * (old % 3) + 100 * old for old in analysis.intervals["interval"].tolist()}
    tables = {}
    for name in ("intervals", "parts", "segments", "details", "other_streams"):
        table = getattr(analysis, name)
        tables[name] = table.assign(interval=table["interval"].map(renumbered))
    first, second = list(renumbered.values())[:2]
    details = tables["details"]
    copies = details.assign(ns=7, detail="100 % \"of\" it, %s", bandwidth_gb_s=[math.inf, 12.5, 1e-9] + [math.nan] * (len(details) - 3))  # fmt: skip
    tables["details"] = pd.concat([copies.iloc[::-1], details], ignore_index=True)
    streams = [(second, 13, 5, False), (first, 13, 1, True), (first, 2, 9, False)]
    tables["other_streams"] = frames.check(pd.DataFrame(streams, columns=frames.OTHER_STREAMS.names), frames.OTHER_STREAMS)  # fmt: skip
    tables["labels"] = analysis.labels.assign(
        row_interval=analysis.labels["row_interval"].map(renumbered)
    )
    return replace(analysis, timeline=frames.empty(frames.TIMELINE), **tables)


@pytest.fixture(params=["by hand", "hostile", "mixed", "one interval", "none"])
def case(request, analysis, hostile_analysis, builder):
    return {
        "by hand": lambda: analysis,
        "hostile": lambda: hostile_analysis,
        "mixed": lambda: mixed(analysis),
        "one interval": lambda: builder(CASES[1:2]),  # every column is the same in all rows
        "none": lambda: builder([]),
    }[request.param]()


def test_the_text_has_every_row(case, monkeypatch):
    monkeypatch.setattr(json, "_AT_ONCE", 2)
    text = b"".join(json.pieces(case)).decode()
    assert repr(stdlib_json.loads(text)["intervals"]) == repr(intervals_of(case))
    assert text.isascii()


def test_any_value_is_ascii_and_comes_back():
    """What orjson refuses or would not spell in ASCII is spelled by the standard library."""
    odd = [1 << 80, "half \udcff", "µs", {"k": [None, True, 1e-9, 1e22, -0.0]}, '"\n</script>', []]
    for value in [*odd, 2**63 + 1]:
        assert repr(stdlib_json.loads(to_json(value))) == repr(value)
        assert to_json(value).isascii()


def test_the_tables_have_every_row(case, monkeypatch, tmp_path):
    monkeypatch.setattr(database, "_LISTED_AT_ONCE", 3)
    database.write(case, tmp_path / "a.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        for spec in registry.specs():
            names = ", ".join(f'"{name}"' for name in spec.names)
            sql = f'SELECT {names} FROM "{spec.name}" ORDER BY rowid'
            stored = connection.execute(sql).fetchall()
            expected = [
                tuple(
                    to_json(row[c.name]) if c.dtype == "object" else row[c.name]
                    for c in spec.columns
                )
                for row in rows_of(getattr(case, spec.name))
            ]
            if spec.name in ("intervals", "unprofiled"):  # whose key is the rowid
                expected.sort()
            assert stored == expected, spec.name
