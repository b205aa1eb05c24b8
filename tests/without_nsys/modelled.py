"""Event logs of a GPU that is a model: work runs in order, one reference of the probe a pair."""

from __future__ import annotations

import json
from pathlib import Path

LATENCY_NS, EACH_NS = 6_000, 2_000_000


def log_of(
    path: Path,
    *,
    work_ns: int,
    gap_ns: int,
    queued_ns: int = 0,
    pairs: int = 8,
    devices: int = 1,
    drift: float = 0.0,
    references: bool = True,
    complete: int | None = None,
) -> Path:
    """The log of a process that times `work_ns` of GPU work, launched `gap_ns` after the start
    record's call, with `queued_ns` of work queued before it on the first device.  `drift`: how much
    faster the GPU's clock runs; `complete`: so many pairs were compared before the process ended."""
    lines: list[dict] = [{"type": "header", "format": "nsysalign-events", "version": 1, "pid": 9}]
    seq = 0
    for device in range(devices):
        first_ns = 10**9 + device * 1_000

        def ms(begin_ns: int, end_ns: int) -> float:
            return (end_ns - begin_ns) * (1 + drift) / 1e6

        for pair in range(pairs):
            called_ns = first_ns + pair * EACH_NS
            reference_ns = called_ns - 300_000 + LATENCY_NS
            start_ns = called_ns + LATENCY_NS + (0 if device else queued_ns)
            launched_ns = called_ns + 4_000 + gap_ns
            end_ns = max(start_ns, launched_ns + LATENCY_NS) + work_ns
            calls = (reference_ns - LATENCY_NS, called_ns, launched_ns + 4_000)
            own = ({"calibration": True}, {"region": f"work#{pair}"}, {"region": f"work#{pair}"})
            for number, (t0_ns, said) in enumerate(zip(calls, own, strict=True)):
                at = {"seq": seq + number, "tid": 9, "device": device}
                at |= {"t0_ns": t0_ns, "t1_ns": t0_ns + 4_000}
                lines.append({"type": "record", **at, **said})
            if references:
                lines.append(
                    {"type": "reference", "id": seq, "record": seq, "device": device, "tid": 9,
                     "t0_ns": calls[0], "t1_ns": calls[0] + 4_000}
                )  # fmt: skip
                if pair:
                    apart_ms = ms(reference_ns - EACH_NS, reference_ns)
                    lines[-1] |= {"previous": seq - 3, "ms": apart_ms}
            if complete is None or pair < complete:
                compared = {"type": "elapsed", "start": seq + 1, "end": seq + 2}
                compared |= {"ms": ms(start_ns, end_ns), "t0_ns": end_ns, "t1_ns": end_ns + 1}
                if references:
                    compared |= {"reference": seq, "start_ms": ms(reference_ns, start_ns)}
                    compared["end_ms"] = ms(reference_ns, end_ns)
                lines.append(compared)
            seq += 3
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
