"""`nsys stats -r cuda_kern_exec_trace` defines three durations per kernel; ours are the same, row
by row.

Two choices of ours differ from nsys's on purpose, and are asserted as such:
- nsys joins a kernel to the call whose correlation id it carries, which may be a driver call inside
  a runtime call; we take the outermost call, because that is what the host spends.
- nsys lists a kernel only where it has a call; we keep the others (call = -1), their cause is
  `unknown`.
"""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from recordings import unpack

from nsysalign.model import KIND, pid_of, tid_of
from nsysalign.record.nsys import find_nsys
from nsysalign.trace import schema
from nsysalign.trace.read import read_trace
from nsysalign.trace.sqlite import opened

pytestmark = pytest.mark.nsys

KEY = ["kernel_start", "pid", "device", "api_start"]


def of_nsys(path: Path) -> pd.DataFrame:
    """The report's rows; queue is NaN where nsys gives none (the kernel began before its call
    ended)."""
    report = [
        find_nsys().path,
        "stats",
        "-q",
        "-r",
        "cuda_kern_exec_trace",
        "--format",
        "csv",
        path,
    ]
    env = {**os.environ, "TMPDIR": str(path.parent)}
    done = subprocess.run(report, capture_output=True, text=True, timeout=120, env=env, check=True)
    text = done.stdout[done.stdout.index("API Start (ns)") :]
    names = {
        "API Start (ns)": "api_start", "API Dur (ns)": "api", "Queue Dur (ns)": "queue",
        "Kernel Start (ns)": "kernel_start", "Kernel Dur (ns)": "kernel", "PID": "pid", "TID": "tid", "DevId": "device",
    }  # fmt: skip
    table = pd.read_csv(io.StringIO(text))[list(names)].rename(columns=names).astype("float64")
    return table.sort_values(KEY, ignore_index=True)


def of_ours(path: Path) -> pd.DataFrame:
    """The same from a Trace, with the call that carries a kernel's correlation id."""
    trace = read_trace(path)
    with opened(path) as source:
        ids = pd.DataFrame(source.columns_of(schema.RUNTIME))[["row", "correlation"]]
    calls = trace.calls.merge(ids, on="row")
    kernels = trace.operations[trace.operations["kind"] == KIND["kernel"]]
    kernels = kernels[kernels["call"] >= 0]
    keys = ["process", "correlation"]
    both = kernels.merge(calls, on=keys, suffixes=("", "_call"))
    after = both["start_ns"] - both["end_ns_call"]
    outer = trace.calls.iloc[both["call"]].reset_index(drop=True)
    assert (outer["start_ns"] <= both["start_ns_call"]).all(), "ours is the outermost call"
    assert (outer["end_ns"] >= both["end_ns_call"]).all()
    table = {
        "api_start": both["start_ns_call"],
        "api": both["end_ns_call"] - both["start_ns_call"],
        "queue": after.where(after >= 0),
        "kernel_start": both["start_ns"],
        "kernel": both["end_ns"] - both["start_ns"],
        "pid": pid_of(both["thread"].to_numpy()),
        "tid": tid_of(both["thread"].to_numpy()),
        "device": both["device"],
    }
    return pd.DataFrame(table).astype("float64").sort_values(KEY, ignore_index=True)


@pytest.mark.parametrize("name", ["demo", "probe"])
def test_every_row_of_nsys_is_a_row_of_ours(name, tmp_path):
    recorded, _ = unpack(name, tmp_path)  # nsys may write beside it
    theirs = of_nsys(recorded)
    assert len(theirs) > 1000
    pd.testing.assert_frame_equal(of_ours(recorded), theirs)
