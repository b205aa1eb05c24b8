"""Time and memory of 10 million marks, and the size of their page: python scripts/marks/speed.py [MILLIONS]"""

import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
import nsysalign
from nsysalign import frames
from nsysalign.marks import dump, layout
from nsysalign.marks.inside import mark_tables
from nsysalign.marks.layout import name_hash
from nsysalign.report import html
from tests.marks import simulated
from tests.marks.export import export

millions = float(sys.argv[1]) if len(sys.argv) > 1 else 10
warps, per = int(millions * 1e6 / 118 / 4), 4  # warps of a launch; launches
chunks = np.zeros(warps * per * 2, dump._CHUNK)
heads = chunks["head"]
launch = np.repeat(np.arange(per), warps * 2)
warp = np.tile(np.repeat(np.arange(warps), 2), per)
heads["kind"], heads["grid"], heads["lanes"], heads["threads"] = (
    layout.HEAD | layout.VERSION,
    launch + 1,
    0xFFFFFFFF,
    128,
)
heads["x"], heads["warp"], heads["sm"] = warp // 4, warp % 4, warp // 4 % 132
start = 1_700_000_000_000_000_000
begin = start + launch * 1_000_000_000 + warp // 528 * 100_000
later = np.tile([0, 1], warps * per)
heads["previous"], heads["time"] = later, begin + later * 38_400
chunks["marks"]["time"] = begin[:, None] + np.arange(60) * 640 + later[:, None] * 38_400
chunks["marks"]["id"] = name_hash("step") << 2 | np.tile([layout.BEGIN, layout.END], 30)
chunks["marks"]["id"][1::2, -2:] = [name_hash("end") << 2, layout.EXIT]
fixed = bytearray(layout.TABLE)
fixed[: layout.LINE] = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, 0, 8_000, 400, 1024)
gpu = simulated.Gpu(sms=132)
last = (
    int(chunks["marks"]["time"].max())
    - int(begin.max())
    + int(begin.max())
    - start
    - (per - 1) * 1_000_000_000
)
for i in range(per):
    gpu.rows.append(
        (
            5_000_000_000 + i * 1_000_000_000 - 700,
            5_000_000_000 + i * 1_000_000_000 + last + 1_000,
            i + 1,
            warps // 4,
            128,
            "kernel",
        )
    )
with TemporaryDirectory() as folder:
    path = Path(folder, "many.nsam")
    about = {"pid": 77, "device": 0, "sms": 132, "names": ["step", "end"]}
    path.write_bytes(simulated.file(fixed, [], chunks, np.empty(0, dump.HEAD), about))
    del chunks, heads, launch, warp, begin, later
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    now = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
    began, cpu = time.monotonic(), time.process_time()
    read = dump.read(path)
    at = time.monotonic() - began
    tables = mark_tables([read], gpu.table(), frames.empty(frames.INTERVALS))
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    page = Path(folder, "page.html")
    html.write(nsysalign.analyze(export(gpu, Path(folder, "trace.sqlite")), marks=[path]), page)
    page_kb = page.stat().st_size // 1000
print(
    {
        "marks": read.written,
        "read_s": round(at, 2),
        "all_s": round(took, 2),
        "cpu_s": round(cpu, 2),
        "peak_mib": peak,
        "page_kb": page_kb,
        "before_mib": before >> 10,
        "resident_before_mib": now,
    }
)
print(
    tables.tables["sm_time"].head(), tables.tables["marked_kernels"]["complete"].all(), tables.notes
)
