"""Every schema that nsys had from 2020 on, made from one recording, and exports of others: the same
numbers, or what is missing and what that costs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from recordings import unpack

import nsysalign
from nsysalign.errors import TraceError

P = "CUPTI_ACTIVITY_KIND_"
EVENTS, STREAMS, SYNCS = P + "CUDA_EVENT", "TARGET_INFO_CUDA_STREAM", P + "SYNCHRONIZATION"
WORK = (P + "KERNEL", P + "MEMCPY", P + "MEMSET")

Change = str | Callable[[sqlite3.Connection], None]


def without(column: str, *tables: str) -> Change:
    def change(db: sqlite3.Connection) -> None:
        for table in tables:
            if column in [row[1] for row in db.execute(f'pragma table_info("{table}")')]:
                db.execute(f'alter table "{table}" drop column "{column}"')

    return change


def version(schema: str, product: str = "2024.1.1", table: str = "META_DATA_EXPORT") -> Change:
    return (
        f"drop table META_DATA_EXPORT; create table {table} (name text, value text);"
        f"insert into {table} values ('EXPORT_PRODUCT_VERSION', '{product}'), ('EXPORT_SCHEMA_VERSION', '{schema}')"
    )


def drop(*tables: str) -> Change:
    return "".join(f"drop table {table};" for table in tables)


class Variant(NamedTuple):
    """`like`: whose numbers it must give ("recorded", "untimed": without GPU timestamps, None: its
    own, exact)."""

    name: str
    changes: tuple[Change, ...]
    like: str | None = None
    note: str = ""  # a regular expression that a note or an entry of `missing` matches
    version: str | None = "3.25.0"


untimed = without("timestamp", EVENTS)
no_waits_joined = without("eventSyncId", SYNCS, EVENTS)
before_2023 = (no_waits_joined, drop(EVENTS))
NO_EVENTS, NO_STREAMS = "CUDA_EVENT: no GPU timestamps", f"{STREAMS}: no stream table"

VARIANTS = (
    Variant(
        "2020: no globalPid, no graphNodeId, no version",
        (*before_2023, without("globalPid", *WORK, SYNCS), without("graphNodeId", *WORK), drop("META_DATA_EXPORT", STREAMS)),
        note=NO_STREAMS, version=None,
    ),
    Variant("2022.4", (*before_2023, version("3.0.0", "2022.4.2", "EXPORT_META_DATA")), None, NO_EVENTS, "3.0.0"),
    Variant(
        "2023.2: event rows without a time",
        (untimed, no_waits_joined, version("3.2.0", "2023.2.1", "EXPORT_META_DATA")), "untimed", version="3.2.0",
    ),
    Variant("2024.6: times are NULL", (f"update {EVENTS} set timestamp = null", version("3.16.1")), "untimed", version="3.16.1"),
    Variant(
        "2025.5: deprecatedSyncType, overheadType, copyCount",
        (f"alter table {SYNCS} rename column syncType to deprecatedSyncType; alter table {SYNCS} add syncType default 99;"
         f"alter table {P}MEMCPY add copyCount default 1", version("3.24.0")),
        "recorded", version="3.24.0",
    ),
    Variant("2026.3", (version("3.27.0", "2026.3.1"),), "recorded", version="3.27.0"),
    Variant(
        "a schema of the future",
        (version("9.99.0", "2031.1.1"), f"alter table {P}KERNEL add aColumnOf2031 default 'x';"
         f"alter table {P}RUNTIME add other default x'00'; create table {P}TELEPORT (start, end)"),
        "recorded", r"schema 9\.99\.0 is newer than 3\.27, the newest that this nsysalign knows", "9.99.0",
    ),
    Variant("event rows of a part of the program", (f"delete from {EVENTS} where rowid % 3 = 0",)),
    Variant("no event rows", (drop(EVENTS),), None, NO_EVENTS),
    Variant("no stream table", (drop(STREAMS),), None, NO_STREAMS),
    Variant("no synchronisation rows", (drop(SYNCS),), None, "SYNCHRONIZATION: no synchronisation rows"),
    Variant("no kernels", (drop(P + "KERNEL"),), None, "KERNEL: no kernel rows although CUDA calls were traced"),
    Variant(
        "times of zero and backwards",
        (f"update {P}KERNEL set end = 0 where rowid % 7 = 0; update {P}RUNTIME set end = 0 where rowid % 11 = 0",),
        None, "impossible times",
    ),
    Variant(
        "records dropped by the profiler",
        ("create table DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, globalPid);"
         "insert into DIAGNOSTIC_EVENT values (1, 1, 1, 2, 'CUPTI: 512 records were dropped.', 1)",),
        "recorded", "512 records were dropped",
    ),
)  # fmt: skip


class Recorded(NamedTuple):
    trace: Path
    log: Path
    analyses: dict[str, nsysalign.Analysis]  # whose numbers


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Recorded:
    """The first half of a recording with two devices' worth of streams, graphs, waits, copies and
    every event's GPU time, as `nsys profile --duration` leaves it, and of its log."""
    folder = tmp_path_factory.mktemp("recorded")
    trace, log = unpack("truth_oracle", folder)
    with closing(sqlite3.connect(trace)) as db:
        (end,) = db.execute(f"select (min(start) + max(end)) / 2 from {P}RUNTIME").fetchone()
        for table in (*WORK, P + "RUNTIME", SYNCS):
            db.execute(f"delete from {table} where start > ?", (end,))
        known = f"select correlationId from {P}RUNTIME"
        db.execute(f"delete from {EVENTS} where correlationId not in ({known})")
        (epoch,) = db.execute("select utcEpochNs from TARGET_INFO_SESSION_START_TIME").fetchone()
        db.commit()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    clock = lines[0]["clock"]
    until = end + epoch - clock["realtime_ns"] + clock["monotonic_ns"]
    kept = {x["seq"] for x in lines if x["type"] == "record" and x["t1_ns"] < until}
    with log.open("w") as file:
        for line in lines:
            late = line["type"] in ("record", "host") and line["t1_ns"] >= until
            compares = line["type"] in ("elapsed", "calibration")
            if not late and not (compares and not {line["start"], line["end"]} <= kept):
                file.write(json.dumps(line) + "\n")
    analyses = {}
    for name, changes in (("recorded", ()), ("untimed", (untimed,))):
        (folder / name).mkdir()
        analyses[name] = nsysalign.analyze(changed(trace, folder / name, changes), [log])
    check_exact(analyses["recorded"])
    assert len(analyses["recorded"].intervals) > 40
    return Recorded(trace, log, analyses)


def changed(trace: Path, folder: Path, changes: tuple[Change, ...]) -> Path:
    path = folder / "changed.sqlite"
    shutil.copyfile(trace, path)
    with closing(sqlite3.connect(path)) as db:
        for change in changes:
            change(db) if callable(change) else db.executescript(change)
        db.commit()
    return path


def check_exact(analysis: nsysalign.Analysis) -> None:
    """Every interval has an exact budget, every pair that was left out a reason."""
    intervals, parts = analysis.intervals, analysis.parts
    elapsed = intervals.set_index("interval")["elapsed_ns"]
    assert (parts["ns"] >= 0).all()
    sums = parts.groupby("interval")["ns"].sum().reindex(elapsed.index, fill_value=0)
    assert (sums == elapsed).all()
    assert (intervals["end_ns"] - intervals["start_ns"] == intervals["elapsed_ns"]).all()
    assert analysis.unaligned["reason"].str.len().gt(5).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_a_variant(recorded, tmp_path, variant: Variant):
    analysis = nsysalign.analyze(changed(recorded.trace, tmp_path, variant.changes), [recorded.log])
    reference = recorded.analyses["recorded"]
    check_exact(analysis)
    asked = len(analysis.measured) + len(analysis.unaligned)
    assert asked == len(reference.measured) + len(reference.unaligned)
    said = [*analysis.trace.missing, *analysis.trace.notes, *analysis.notes]
    assert any(re.search(variant.note, text) for text in [*said, ""]), said
    assert analysis.trace.schema_version == variant.version
    if variant.like:
        like = recorded.analyses[variant.like]
        columns = ["name", "start_ns", "end_ns", "method", "error_ns"]
        pd.testing.assert_frame_equal(analysis.measured[columns], like.measured[columns])
        assert analysis.parts.equals(like.parts)
    # whatever is missing, what was compared is never changed
    pair = ["pid", "start_record", "end_record"]  # names count only what could be placed
    known = reference.measured.set_index(pair)["elapsed_ns"]
    found = analysis.measured.set_index(pair)["elapsed_ns"]
    assert (found == known.reindex(found.index)).all()


@pytest.mark.parametrize(
    ("table", "said", "option"),
    [
        (P + "RUNTIME", "no CUDA API calls", "-t cuda"),
        ("StringIds", "no names of its API", "nsys "),
    ],
)
def test_without_a_needed_table_the_option_is_named(recorded, tmp_path, table, said, option):
    with pytest.raises(TraceError, match=said) as error:
        nsysalign.analyze(changed(recorded.trace, tmp_path, (drop(table),)), [recorded.log])
    assert option in error.value.next_step


FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "exports"


@pytest.mark.parametrize("name", ["mordred_report1", "nsys-ai_h100_2gpu_1s", "nsys-ai_mock"])
def test_an_export_from_a_public_repository(name):
    """Of 2021 and 2026, where they are: NSYSALIGN_EXPORTS names their folder."""
    path = Path(os.environ.get("NSYSALIGN_EXPORTS", FOLDER)) / f"{name}.sqlite"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    before = hashlib.sha256(path.read_bytes()).digest()
    check_exact(nsysalign.analyze(path))
    assert hashlib.sha256(path.read_bytes()).digest() == before
