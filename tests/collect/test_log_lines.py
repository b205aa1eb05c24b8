"""What the probe's logs hold and what is read of them are one list of line types and fields, in
`trace.eventlog`."""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from pathlib import Path

from nsysalign.trace.eventlog import PLAIN_KEYS, TEXT_KEYS

from .user import PAIRS

DATA = Path(__file__).parents[1] / "data"
#: Every way to make a line, as far as it needs neither nsys nor a GPU.
EVERYTHING = f"""{PAIRS}
import time, nsysalign
torch.cuda.init()
pair(60)
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with nsysalign.region("step"):
    t = time.time(); a.record(); b.record(); a.wait(); t = time.time() - t
a.elapsed_time(b)
with nsysalign.region("host"):
    pass
try:
    a.elapsed_time(torch.cuda.Event(enable_timing=True))
except ValueError:
    pass
"""
#: Of lists and objects, which redaction treats by themselves; `type` itself.
STRUCTURED = {"type", "callers", "stores", "subtracts"}
#: Written for whoever reads the log, and not used by the analysis.
NOT_READ = {
    "header": {"clock"},  # the times in it are read as a line of type `clock`
    "wait": {"region", "site"},
    "reference": {"region", "site"},
    "note": {"device", "t0_ns", "t1_ns", "calibration_ns"},
    "source": {"site", "text"},  # redaction leaves them out
}


def test_what_is_written_is_what_is_read(probed):
    """In the recordings, and in a log that is made now."""
    run, fields = probed(EVERYTHING, calibrate=True), defaultdict(set)
    assert run.status == 0, run.err
    lines = [line for log in run.logs.values() for line in log]
    for path in DATA.glob("*.jsonl.xz"):
        lines += map(json.loads, lzma.decompress(path.read_bytes()).splitlines())
    for line in lines:
        fields[line["type"]] |= line.keys()
    read = {kind: PLAIN_KEYS[kind] | TEXT_KEYS[kind] for kind in PLAIN_KEYS}
    assert fields.keys() <= read.keys() | NOT_READ.keys()
    unknown = {
        kind: left
        for kind, keys in fields.items()
        if (left := keys - read.get(kind, set()) - STRUCTURED - NOT_READ.get(kind, set()))
    }
    assert unknown == {}, "written, and neither read nor listed here"
