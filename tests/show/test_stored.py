"""analysis.json and analysis.db: what they hold, and that an analysis comes back from the
latter."""

import sqlite3
from contextlib import closing

import pandas as pd
import pytest

import nsysalign
from nsysalign import registry
from nsysalign.errors import AnalysisError
from nsysalign.show import html
from nsysalign.store import database
from nsysalign.store import document as json


def same(left, right, tables):
    for name in tables:
        a, b = getattr(left, name), getattr(right, name)
        keys = [c for c in ("interval", "cause") if c in a.columns]
        if keys and name == "parts":  # a budget has no order of its own
            a, b = (t.sort_values(keys, ignore_index=True) for t in (a, b))
        pd.testing.assert_frame_equal(a, b)


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


def test_the_document_is_an_export_and_is_not_read(analysis, tmp_path):
    (tmp_path / "a.json").write_bytes(b"".join(json.pieces(analysis)))
    with pytest.raises(AnalysisError, match="analysis") as error:
        nsysalign.load(tmp_path / "a.json")
    assert "analysis.db" in error.value.next_step


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
