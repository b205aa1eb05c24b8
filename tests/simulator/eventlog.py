"""Writes the event log of one world (docs/design.md, section 5)."""

from __future__ import annotations

from .style import Style
from .world import World


def log_lines(w: World, style: Style) -> list[dict]:
    """The event log of one process, in the order of the host's clock."""

    def mono(t: int) -> int:
        return t + style.monotonic + round((t - w.end) * style.drift_ppm / 1e6)

    real = (
        style.utc_epoch + style.clock_error
    )  # = realtime - trace time; a shift of the trace cancels out
    clock = {"monotonic_ns": mono(w.end), "realtime_ns": w.end + real}
    head = {
        "type": "header",
        "format": "nsysalign-events",
        "version": 1,
        "pid": w.pid,
        "torch": "2.11.0",
        "device_name": "Simulated H200",
        "clock": clock,
    }
    lines: list[tuple[int, dict]] = []
    if style.clock_lines:
        times = [c.start for c in w.calls] or [0]
        for t in (min(times) - 50_000, w.end):
            lines.append(
                (
                    t,
                    {
                        "type": "clock",
                        "monotonic_ns": mono(t),
                        "realtime_ns": t + real,
                        "trace_ns": t + style.shift,
                    },
                )
            )

    def host(call, stream: int) -> dict:
        out = {"tid": call.thread, "t0_ns": mono(call.start - 300), "t1_ns": mono(call.end + 300)}
        if style.log_stream:
            handle = 0 if stream == 7 else 0x5500_0000 + stream * 0x100
            out |= {
                "stream_handle": handle,
                "stream_id": stream + (style.stream_id_shift if stream != 7 else 0),
            }
        return out

    for r in w.records:
        if r.seq >= 0:
            line = {"type": "record", "seq": r.seq, "device": w.device, **host(r.call, r.stream)}
            if r.region:
                line["region"] = style.rename + r.region
            lines.append((r.call.start, line | {"site": "bench.py:10"}))
    for x in w.waits:
        if x.seq >= 0:
            known = {"record": x.record.seq} if x.record.seq >= 0 else {}
            lines.append(
                (x.call.start, {"type": "wait", "seq": x.seq, **known, **host(x.call, x.stream)})
            )
    for pair in w.pairs:
        asked = pair.asked if pair.asked >= 0 else w.end
        line = {
            "type": "elapsed",
            "start": _seq(pair.start),
            "end": _seq(pair.end),
            "ms": pair.ms,
            "region": style.rename + pair.name,
            "site": "bench.py:20",
        }
        if pair.ms is None:
            line["error"] = "not ready"
        if pair.asked >= 0:
            line["t1_ns"] = mono(asked + 900)
        lines.append((asked, line))
    for h in w.host_intervals:
        lines.append(
            (
                h.end,
                {
                    "type": "host",
                    "region": style.rename + h.name,
                    "t0_ns": mono(h.start),
                    "t1_ns": mono(h.end),
                    "tid": h.thread,
                    "site": "bench.py:30",
                },
            )
        )
    numbers = {name: number for number, name in enumerate(w.clock_sites, 1)}
    sites = [
        {"type": "clock_site", "number": numbers[name], **site}
        for name, site in w.clock_sites.items()
    ]
    for r in w.readings:
        line = {
            "type": "clock_reading",
            "site": numbers[r.site],
            "clock": "perf_counter",
            "t_ns": mono(r.t),
        }
        line |= {"tid": r.thread, **({"region": style.rename + r.region} if r.region else {})}
        lines.append((r.t, line))
    return [head, *sites] + [line for _, line in sorted(lines, key=lambda x: x[0])]


def _seq(record) -> int | None:
    return record.seq if record.seq >= 0 else None
