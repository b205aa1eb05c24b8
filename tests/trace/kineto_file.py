"""Traces of torch.profiler for tests: a small one in the shapes of three versions, and any export of nsys
written again as such a trace, so that the truth of the simulator's programs is known of both."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

PID, US, BASE_NS = 77, 1000, 1_751_410_836_000_000_000
WAYS = {1: "HtoD", 2: "DtoH", 8: "DtoD"}
MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device"}
GPU = {"id": 0, "name": "NVIDIA H200", "numSms": 132}


def event(
    category: str,
    name: str,
    start_ns: int,
    end_ns: int,
    tid: object = PID,
    pid: object = PID,
    **args,
):
    """One of `traceEvents`, its times in whole nanoseconds."""
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start_ns, "dur": end_ns - start_ns, "args": args}  # fmt: skip


def small() -> list[dict]:
    """
    thread 77   [ProfilerStep#3                                          ]
                  [forward              ]  [train.py(7): step  ] [aten::item]
                    [launch]                 [copy]                 [sync]
    stream 7               [kernel]                [copy]
    us          0 1 2      5 6     9 10     20 21 23     25 30     40 41  50 60
    """
    at = 1_000_000_000_123
    rows = [
        ("user_annotation", "ProfilerStep#3", 0, 60, {"External id": 1}),
        ("user_annotation", "forward", 1, 10, {"External id": 2}),
        ("cpu_op", "aten::linear", 2, 9, {"External id": 3}),
        ("cpu_op", "aten::addmm", 3, 8, {"External id": 4}),
        ("cuda_runtime", "cudaLaunchKernel", 2, 5, {"correlation": 11, "External id": 4}),
        ("python_function", "train.py(7): step", 20, 30, {}),
        ("python_function", "torch/nn/modules/module.py(1): forward", 20, 30, {}),
        ("cuda_runtime", "cudaMemcpyAsync", 21, 23, {"correlation": 12}),
        ("cpu_op", "aten::item", 40, 50, {"External id": 5}),
        ("cuda_runtime", "cudaStreamSynchronize", 41, 49, {"correlation": 13, "External id": 5}),
    ]
    events = [event(c, n, at + a * US, at + b * US, **args) for c, n, a, b, args in rows]
    where = {"device": 0, "context": 1, "stream": 7}
    shape = {
        "grid": [132, 2, 1],
        "block": [128, 1, 1],
        "registers per thread": 40,
        "shared memory": 64,
    }
    kernel = event(
        "kernel", "gemm", at + 6 * US, at + 9 * US, 7, 0, correlation=11, **where, **shape
    )
    copied = {**where, "correlation": 12, "bytes": 4096}
    copy = event(
        "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 25 * US, at + 30 * US, 7, 0, **copied
    )
    flow = {"ph": "s", "id": 11, "pid": PID, "tid": PID, "ts": at, "cat": "ac2g", "name": "ac2g"}
    return [*events, flow, kernel, copy]


def written(events: list[dict], path: Path, shape: str = "new", **about: object) -> Path:
    """The events as torch of 2024 (`new`: relative times with three decimals), of early 2024 (`long`: the
    same since 1970, in more digits than a float has) or of 2021 (`old`: whole microseconds, other
    categories, everything in one list) writes them."""
    old = {
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
        "gpu_memset": "Memset",
        "cuda_runtime": "Runtime",
    }
    old |= dict.fromkeys(("cpu_op", "user_annotation"), "Operator")
    texts = []
    for one in events:
        ts, dur = one["ts"], one.get("dur")
        if shape == "old":
            one = one | {"cat": old.get(one["cat"], one["cat"]), "ts": (ts + BASE_NS) // US}
            one |= {} if dur is None else {"dur": (ts + dur + BASE_NS) // US - one["ts"]}
            texts.append(json.dumps(one))
            continue
        ts += BASE_NS if shape == "long" else 0
        one = one | {"ts": "<ts>"} | ({} if dur is None else {"dur": "<dur>"})
        text = json.dumps(one).replace('"<ts>"', f"{ts // US}.{ts % US:03}")
        texts.append(text.replace('"<dur>"', f"{(dur or 0) // US}.{(dur or 0) % US:03}"))
    head = {"schemaVersion": 1, "deviceProperties": [GPU], **about}
    if shape == "new":
        head = {"baseTimeNanoseconds": BASE_NS, "cuda_runtime_version": 12080} | head
    listed = '"traceEvents": [\n  ' + ",\n  ".join(texts) + "\n  ]"
    path.write_text(f"{json.dumps(head)[:-1]},\n  {listed},\n" + '  "traceName": "t.json"\n}\n')
    return path


def of_export(export: Path, path: Path, **about: object) -> Path:
    """An export of nsys as a trace of torch.profiler."""
    events = []
    with closing(sqlite3.connect(export)) as db:
        db.row_factory = sqlite3.Row

        def rows(table: str) -> list[sqlite3.Row]:
            return db.execute(f"select * from {table}").fetchall()

        names = {row["id"]: row["value"] for row in rows("StringIds")}
        for row in rows("CUPTI_ACTIVITY_KIND_RUNTIME"):
            tid, pid = row["globalTid"] & 0xFFFFFF, row["globalTid"] >> 24 & 0xFFFFFF
            name = names[row["nameId"]].partition("_v")[0]
            args = {"correlation": row["correlationId"]}
            events.append(event("cuda_runtime", name, row["start"], row["end"], tid, pid, **args))
        for row in rows("NVTX_EVENTS"):
            if row["eventType"] == 59:
                tid, pid = row["globalTid"] & 0xFFFFFF, row["globalTid"] >> 24 & 0xFFFFFF
                text = row["text"] or names[row["textId"]]
                events.append(event("user_annotation", text, row["start"], row["end"], tid, pid))
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            for row in rows(f"CUPTI_ACTIVITY_KIND_{table}"):
                args = {
                    "device": row["deviceId"],
                    "context": row["contextId"],
                    "stream": row["streamId"],
                }
                args |= {"correlation": row["correlationId"]}
                category, name = "gpu_memset", "Memset (Device)"
                if table == "KERNEL":
                    category, name = "kernel", names[row["demangledName"]]
                    args |= {
                        "grid": [row[f"grid{c}"] for c in "XYZ"],
                        "block": [row[f"block{c}"] for c in "XYZ"],
                    }
                else:
                    args["bytes"] = row["bytes"]
                if table == "MEMCPY":
                    kinds = [MEMORY[row[c]] for c in ("srcKind", "dstKind")]
                    category = "gpu_memcpy"
                    name = f"Memcpy {WAYS[row['copyKind']]} ({kinds[0]} -> {kinds[1]})"
                place = (row["start"], row["end"], row["streamId"], row["deviceId"])
                events.append(event(category, name, *place, **args))
    return written(events, path, **about)
