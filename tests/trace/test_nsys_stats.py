"""`nsys stats -r cuda_kern_exec_trace` defines three durations per kernel; ours are the same, row
by row.

Two choices of ours differ from nsys's on purpose, and are asserted as such:
- nsys joins a kernel to the call whose correlation id it carries, which may be a driver call inside
  a runtime call; we take the outermost call, because that is what the host spends.
- nsys lists a kernel only where it has a call; we keep the others (call = -1), their cause is
  `unknown`.
"""

from __future__ import annotations

import csv
import io
import lzma
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nsysalign.model import KIND, Trace, pid_of, tid_of
from nsysalign.record.nsys import find_nsys
from nsysalign.trace.read import read_trace

pytestmark = pytest.mark.nsys

ROOT = Path(__file__).resolve().parents[2]
RECORDED = {
    "demo": ROOT / "nsysalign" / "demo" / "demo.sqlite.xz",
    "probe": ROOT / "tests" / "data" / "probe.sqlite.xz",
}
KEY = ["kernel_start", "pid", "device", "api_start"]


@pytest.fixture(params=list(RECORDED))
def recorded(request, tmp_path) -> Path:
    """A copy of a recorded trace: nsys may write beside it."""
    source = RECORDED[request.param]
    if not source.is_file():
        pytest.skip(f"{source.name} is not here")
    path = tmp_path / "trace.sqlite"
    path.write_bytes(lzma.decompress(source.read_bytes()))
    return path


def of_nsys(path: Path) -> pd.DataFrame:
    """The report's rows; queue is NaN where nsys gives none (the kernel began before its call
    ended)."""
    command = [
        find_nsys().path,
        "stats",
        "-q",
        "-r",
        "cuda_kern_exec_trace",
        "--format",
        "csv",
        str(path),
    ]
    env = {**os.environ, "TMPDIR": str(path.parent)}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env=env,
        check=True,
    )
    lines = done.stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("API Start (ns)"))
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[head:]))))
    names = {
        "api_start": "API Start (ns)", "api": "API Dur (ns)", "queue": "Queue Dur (ns)",
        "kernel_start": "Kernel Start (ns)", "kernel": "Kernel Dur (ns)", "pid": "PID", "tid": "TID",
        "device": "DevId",
    }  # fmt: skip
    table = {ours: [float(r[theirs] or "nan") for r in rows] for ours, theirs in names.items()}
    return pd.DataFrame(table).sort_values(KEY, ignore_index=True)


def of_ours(trace: Trace, *, outermost: bool) -> pd.DataFrame:
    """The same from a Trace, with the call that issued each kernel or the one that carries its
    correlation id."""
    kernels = trace.operations[
        (trace.operations["kind"] == KIND["kernel"]) & (trace.operations["call"] >= 0)
    ]
    if outermost:
        at = kernels["call"].to_numpy()
    else:
        keys = ["process", "correlation"]
        at = pd.MultiIndex.from_frame(trace.calls[keys]).get_indexer(
            pd.MultiIndex.from_frame(kernels[keys])
        )
    call = trace.calls.iloc[at]
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    after = start - call["end_ns"].to_numpy()
    table = {
        "api_start": call["start_ns"].to_numpy(),
        "api": (call["end_ns"] - call["start_ns"]).to_numpy(),
        "queue": np.where(after >= 0, after, np.nan),
        "kernel_start": start,
        "kernel": end - start,
        "pid": pid_of(call["thread"].to_numpy()),
        "tid": tid_of(call["thread"].to_numpy()),
        "device": kernels["device"].to_numpy(),
    }
    return pd.DataFrame(table).astype("float64").sort_values(KEY, ignore_index=True)


def test_every_row_of_nsys_is_a_row_of_ours(recorded):
    theirs, trace = of_nsys(recorded), read_trace(recorded)
    assert len(theirs) > 1000
    pd.testing.assert_frame_equal(of_ours(trace, outermost=False), theirs)


def test_where_the_outermost_call_is_another_it_contains_nsyss(recorded):
    theirs, ours = of_nsys(recorded), of_ours(read_trace(recorded), outermost=True)
    keys = ["kernel_start", "pid", "device", "kernel", "tid"]
    both = theirs.merge(ours, on=keys, suffixes=("_nsys", ""))
    assert len(both) == len(theirs)
    same = both["api_start"] == both["api_start_nsys"]
    assert (both["api"][same] == both["api_nsys"][same]).all()
    assert both["queue"][same].equals(both["queue_nsys"][same])
    other = both[~same]
    assert (other["api_start"] <= other["api_start_nsys"]).all()
    assert (other["api_start"] + other["api"] >= other["api_start_nsys"] + other["api_nsys"]).all()
