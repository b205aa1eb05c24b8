"""analysis.json and analysis.db: what they hold, and that an analysis comes back from the
latter."""

import json as stdlib_json
import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from nsysalign import registry
from nsysalign.errors import AnalysisError
from nsysalign.model import CAUSES
from nsysalign.show import html
from nsysalign.store import database
from nsysalign.store import document as json

DESIGN_INTERVAL = set(
    [
        "name",
        "label",
        "kind",
        "pid",
        "start_record",
        "end_record",
        "device",
        "start_stream",
        "end_stream",
        "elapsed_ns",
        "start_ns",
        "end_ns",
        "start_lower_ns",
        "start_upper_ns",
        "error_ns",
        "method",
        "clock_residual_ns",
        "kernel_only_ns",
        "kernel_only_upper_ns",
        "parts_ns",
        "parts_lower_ns",
        "parts_upper_ns",
        "details",
        "other_streams_ns",
        "site",
        "callers",
        "findings",
    ]
)


def same(left, right, tables):
    for name in tables:
        a, b = getattr(left, name), getattr(right, name)
        keys = [c for c in ("interval", "cause") if c in a.columns]
        if keys and name == "parts":  # a budget has no order of its own
            a, b = (t.sort_values(keys, ignore_index=True) for t in (a, b))
        pd.testing.assert_frame_equal(a, b)


def test_the_document_has_the_keys_of_the_design(analysis):
    document = stdlib_json.loads(json.dumps(analysis))
    assert document["format"] == "nsysalign-analysis" and document["version"] == 1
    assert {"path", "nsys_version", "schema_version", "devices", "missing", "notes"} <= set(
        document["trace"]
    )
    first = document["intervals"][0]
    assert set(first) >= DESIGN_INTERVAL
    assert (
        set(first["parts_ns"])
        == set(first["parts_lower_ns"])
        == set(first["parts_upper_ns"])
        == set(CAUSES)
    )
    assert sum(first["parts_ns"].values()) == first["elapsed_ns"] == 234_720
    assert first["other_streams_ns"] == {"13": 500}
    assert {"cause", "ns", "direction", "memory", "bytes"} <= set(first["details"][0])
    assert (
        first["clock_residual_ns"] == 40 and document["intervals"][1]["clock_residual_ns"] is None
    )
    label = document["labels"][0]
    assert {"label", "count", "row", "elapsed", "parts_mean_ns"} <= set(label)
    assert {"median_ns", "mean_ns", "std_ns", "min_ns", "max_ns"} <= set(label["elapsed"])
    assert label["row"] == "t1#0" and label["parts_mean_ns"]["host"] == pytest.approx(
        (174_490 + 184_490 + 154_490) / 3
    )
    finding = document["findings"][0]
    keys = set(
        [
            "rule",
            "severity",
            "label",
            "interval",
            "title",
            "evidence",
            "advice",
            "faster",
            "site",
            "loss_ns",
        ]
    )
    assert set(finding) == keys | {"confirmation"}  # what a re-run said about it
    assert document["unaligned"][0]["reason"] == "captured"


def test_nan_becomes_null(analysis):
    document = stdlib_json.loads(json.dumps(analysis), parse_constant=pytest.fail)
    assert document["labels"][1]["elapsed"]["std_ns"] is None


def test_database_round_trip(analysis, tmp_path):
    database.write(analysis, tmp_path / "a.db")
    loaded = database.load(tmp_path / "a.db")
    same(analysis, loaded, [spec.name for spec in registry.specs()])
    assert loaded.trace == analysis.trace and loaded.notes == analysis.notes
    assert {p.name for p in tmp_path.iterdir()} == {"a.db"}


def test_the_database_documents_itself(analysis, tmp_path):
    database.write(analysis, tmp_path / "a.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        documented = set(
            connection.execute(
                "SELECT table_name, column_name FROM documentation WHERE column_name != ''"
            )
        )
        assert documented == {(spec.name, name) for spec in registry.specs() for name in spec.names}
        total = "SELECT p.interval, sum(ns) = elapsed_ns FROM parts p JOIN intervals USING (interval) GROUP BY 1"
        assert all(exact for _, exact in connection.execute(total))


def test_the_view_of_budgets_adds_up(analysis, tmp_path):
    database.write(analysis, tmp_path / "a.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        row = connection.execute(
            "SELECT elapsed_ns, kernel_ns + host_ns + api_launch_ns + event_ns FROM budgets"
        )
        assert row.fetchone() == (234_720, 234_720)


def test_the_document_is_an_export_and_is_not_read(analysis, tmp_path):
    json.write(analysis, tmp_path / "a.json")
    with pytest.raises(AnalysisError, match="an export for other programs") as error:
        database.load(tmp_path / "a.json")
    assert "analysis.db" in error.value.next_step


def test_an_empty_analysis_and_a_hostile_one_come_back(builder, hostile_analysis, tmp_path):
    for analysis in (builder([]), hostile_analysis):
        database.write(analysis, tmp_path / "a")
        same(
            analysis,
            database.load(tmp_path / "a"),
            ["intervals", "labels", "findings", "unaligned"],
        )


def test_an_undecodable_name_is_stored(builder, finding, tmp_path):
    """Python reads undecodable bytes of a path as lone surrogates, which UTF-8 cannot write."""
    analysis = builder(findings=[{**finding, "evidence": {"file": "x\udcff.py"}}])
    database.write(analysis, tmp_path / "a")
    assert database.load(tmp_path / "a").findings["evidence"][0] == {"file": "x\udcff.py"}
    html.write(analysis, tmp_path / "a.html")


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b'{"format": "nsysalign-analysis", "version": 99}', b"\xff\xfe"]
)
def test_what_is_no_analysis_is_named(content, tmp_path):
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AnalysisError, match="x"):
        database.load(path)
    assert path.exists() == (content is not None)  # looking for a file does not make it
