"""A recording that knows how large the L2 is: which of two labels has it cold."""

from __future__ import annotations

import sqlite3

from recordings import DATA, untar
from simulator import check

from nsysalign.answer import answer


def test_behind_120_mb_of_zeroes_the_l2_is_cold(tmp_path):
    untar(DATA / "puzzles" / "cold_l2.tar.xz", tmp_path)
    (log,) = tmp_path.glob("events-*.jsonl")
    connection = sqlite3.connect(tmp_path / "trace.sqlite")
    values = {"cuDevice": 0, "smCount": 132, "l2CacheSize": 60 << 20, "memoryBandwidth": 4_800 * 10**9}  # fmt: skip
    for name, value in values.items():
        connection.execute(f"alter table TARGET_INFO_GPU add column {name} integer")
        connection.execute(f"update TARGET_INFO_GPU set {name} = {value}")
    connection.commit()
    connection.close()
    told = answer(check.analyze(tmp_path / "trace.sqlite", [log]))
    words = {row.label: row.words for row in told.labels}
    assert words["cold_l2.py:26-28"].startswith("cold L2: 2")
    assert "which is cold here and warm there" in told.sentence
