"""Tables of an analysis come back from both files exactly, whatever they hold.

NaN and NA are null in both; infinity, which no measurement is, comes back as NaN.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from handmade import build
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nsysalign import frames
from nsysalign.engine import load
from nsysalign.store import database

INT64 = st.one_of(
    st.sampled_from([-1, 0, 2**53 + 1, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1)
)
TEXT = st.one_of(
    st.sampled_from(
        ["", "12", "1e5", "null", "nan", "None", "x\0y", "größe 片 \U0001f600", "</script>", "%s"]
    ),
    st.text(st.characters(codec="utf-8"), max_size=6),
)
VALUES = {
    "int64": INT64,
    "Int64": st.none() | INT64,
    "float64": st.one_of(st.sampled_from([0.1, -5.0, 2.0**53, math.nan, math.inf]), st.floats()),
    "str": TEXT
    | st.none(),  # nobody writes NA into a text, and nobody must get another row's text for it
}


def rows_of(spec: frames.Spec) -> st.SearchStrategy[list[tuple]]:
    key = {"baseline": 0, "unprofiled": 0}.get(
        spec.name
    )  # what the database's key says is there once
    values = [
        TEXT if k == key and c.dtype == "str" else VALUES[c.dtype]
        for k, c in enumerate(spec.columns)
    ]
    return st.lists(
        st.tuples(*values), max_size=3, unique_by=None if key is None else lambda row: row[key]
    )


def table(spec: frames.Spec, rows: list[tuple]) -> pd.DataFrame:
    lists = (
        [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in spec.columns]
    )
    return pd.DataFrame(
        {
            c.name: pd.Series(pd.array(v, dtype=c.dtype))
            for c, v in zip(spec.columns, lists, strict=True)
        }
    )


QUICK = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def some():
    return build([])


def as_stored(frame):
    """An absent text is stored as an empty one, an infinite number as none."""
    texts = frame.select_dtypes("str").columns
    return frame.replace([math.inf, -math.inf], math.nan).fillna(dict.fromkeys(texts, ""))


def with_its_bar(row):
    """A row of UNPROFILED: a prediction without an end of its bar is refused as unsound."""
    interval, *bar, reason = row
    return (interval, *((None,) * 3 if None in bar else bar), reason)


@QUICK
@given(*(rows_of(spec) for spec in (frames.GPU_CLOCKS, frames.BASELINE, frames.UNPROFILED)))
def test_arbitrary_values_come_back(some, clocks, baseline, unprofiled):
    tables = {
        "gpu_clocks": table(frames.GPU_CLOCKS, clocks),
        "baseline": table(frames.BASELINE, baseline),
        "unprofiled": table(
            frames.UNPROFILED, sorted(map(with_its_bar, unprofiled), key=lambda row: row[0])
        ),
    }
    analysis = replace(some, **tables)
    with tempfile.TemporaryDirectory() as folder:
        database.write(analysis, Path(folder) / "analysis.db")
        loaded = load(Path(folder) / "analysis.db")
        for name, frame in tables.items():
            pd.testing.assert_frame_equal(
                getattr(loaded, name), as_stored(frame), check_exact=True, obj=name
            )
