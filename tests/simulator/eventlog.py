"""Writes the event log of one world (docs/design.md, section 5)."""

from __future__ import annotations

from .style import Style
from .world import World


def log_lines(w: World, style: Style) -> list[dict]:
    """The event log of one process, in the order of the host's clock."""

    def mono(t: int) -> int:
        return t + style.monotonic

    def text(name: str) -> str:
        return style.rename + name if name else ""

    real = style.utc_epoch + style.clock_error  # = realtime - trace time, whatever the shift
    clock = {"monotonic_ns": mono(w.end), "realtime_ns": w.end + real}
    head = {
        "type": "header", "format": "nsysalign-events", "version": 1, "pid": w.pid, "torch": "2.11.0",
        "device_name": "Simulated H200", "clock": clock,
    }  # fmt: skip
    lines: list[tuple[int, dict]] = []

    def add(t: int, kind: str, **keys: object) -> None:
        lines.append((t, {"type": kind, **keys}))

    if style.clock_lines:
        for t in (min([c.start for c in w.calls] or [0]) - 50_000, w.end):
            both = {"monotonic_ns": mono(t), "realtime_ns": t + real}
            add(t, "clock", **both, trace_ns=t + style.shift)

    def host(call, stream: int) -> dict:
        shift, handle = (
            (0, 0) if stream == 7 else (style.stream_id_shift, 0x5500_0000 + stream * 0x100)
        )
        times = {"t0_ns": mono(call.start - 300), "t1_ns": mono(call.end + 300)}
        return {"tid": call.thread, "stream_handle": handle, "stream_id": stream + shift, **times}

    for r in w.records:
        if r.seq >= 0:
            known = {"region": text(r.region)} if r.region else {}
            known |= {"device": w.device, "site": "bench.py:10", **host(r.call, r.stream)}
            add(r.call.start, "record", seq=r.seq, **known)
    for x in w.waits:
        if x.seq >= 0:
            known = {"record": x.record.seq} if x.record.seq >= 0 else {}
            add(x.call.start, "wait", seq=x.seq, **known, **host(x.call, x.stream))
    for pair in w.pairs:
        asked = pair.asked if pair.asked >= 0 else w.end
        start, end = (r.seq if r.seq >= 0 else None for r in (pair.start, pair.end))
        more = {"error": "not ready"} if pair.ms is None else {}
        more |= {"t1_ns": mono(asked + 900)} if pair.asked >= 0 else {}
        more |= {"region": text(pair.name), "site": "bench.py:20"}
        add(asked, "elapsed", start=start, end=end, ms=pair.ms, **more)
    for h in w.host_intervals:
        times = {"t0_ns": mono(h.start), "t1_ns": mono(h.end)}
        add(h.end, "host", region=text(h.name), **times, tid=h.thread, site="bench.py:30")
    numbers = {name: number for number, name in enumerate(w.clock_sites, 1)}
    sites = [
        {"type": "clock_site", "number": numbers[name], **site}
        for name, site in w.clock_sites.items()
    ]
    for r in w.readings:
        more = {"region": text(r.region)} if r.region else {}
        more |= {"site": numbers[r.site], "clock": "perf_counter", "tid": r.thread}
        add(r.t, "clock_reading", t_ns=mono(r.t), **more)
    return [head, *sites] + [line for _, line in sorted(lines, key=lambda x: x[0])]
