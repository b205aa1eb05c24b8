"""Which readings are subtracted from which: every way of writing it, run under the probe, read off
the source."""

from __future__ import annotations

import re

from nsysalign.place.host_timers import timed
from nsysalign.trace.eventlog import read_event_logs

HEAD = """
import contextlib, time, torch
from time import perf_counter, time as now
torch.cuda.init()
def use(*a):
    pass
"""

#: `# name:B A C`: reading B of this way ends the intervals that begin at A and at C.
WAYS = """
def two():
    t0 = perf_counter()          # two:A
    t1 = perf_counter()          # two:B A
    return (t1 - t0) * 1e3

def direct():
    times = []
    for _ in range(2):
        t = perf_counter()               # direct:A
        times.append(perf_counter() - t) # direct:B A

def chain():
    a = time.perf_counter_ns()   # chain:A
    b = time.perf_counter_ns()   # chain:B A
    c = time.perf_counter_ns()   # chain:C B A
    use(b - a, c - b, c - a)

def nested():
    o = perf_counter()           # nested:A
    i = perf_counter()           # nested:B
    i = perf_counter() - i       # nested:C B
    o = perf_counter() - o       # nested:D A

def apart():
    a = perf_counter()           # apart:A
    b = perf_counter()           # apart:B A
    x = b - a
    a = perf_counter()           # apart:C
    b = perf_counter()           # apart:D C
    return x, b - a

def rolling():
    last = now()                 # rolling:A
    for _ in range(3):
        t = now()                # rolling:B A B
        dt = t - last
        last = t

def polling():
    t0 = now()                   # polling:A
    while now() - t0 < 0.001:    # polling:B
        pass
    use(now() - t0)        # polling:C A

def meter():
    end = now()                          # meter:A
    for _ in range(2):
        data = now() - end               # meter:B A D
        batch = now() - end              # meter:C A D
        end = now()                      # meter:D

def helper():
    def tick():
        torch.cuda.synchronize()
        return now()
    t0 = tick()                  # helper:A
    t1 = tick()                  # helper:B A
    use(t1 - t0)

class Timer:
    def __enter__(self):
        self.t0 = perf_counter()             # class:A
        return self
    def __exit__(self, *e):
        self.dt = perf_counter() - self.t0   # class:B A

def objects():
    with Timer():
        with Timer():
            pass
    with Timer():
        pass

@contextlib.contextmanager
def manager():
    t0 = perf_counter()          # manager:A
    yield
    use(perf_counter() - t0)   # manager:B A

def generators():
    with manager():
        pass

T0 = None
def tic():
    global T0
    T0 = perf_counter()          # tic:A
def toc():
    return perf_counter() - T0   # tic:B A
def matlab():
    tic()
    toc()

def kept():
    ts = []
    for _ in range(3):
        ts.append(perf_counter())    # kept:A
def table():
    t = {}
    t["secret"] = perf_counter()        # table:A
    t["other"] = perf_counter()
    use(perf_counter() - t["secret"])   # table:B A
def ms():
    start = int(round(time.time() * 1000))      # ms:A
    use(int(round(time.time() * 1000)) - start)   # ms:B A
def written_out():
    a = now()                    # written_out:A
    b = now()                    # written_out:B A
    c = now()                    # written_out:C B A
    for name, start, end in (("net", a, b), ("masks", b, c), ("all", a, c)):
        use(end - start)
def items():
    a = now()                    # items:A
    b = now()                    # items:B A
    c = now()
    return {k: t1 - t0 for k, (t0, t1) in {"net": (a, b)}.items()}
def added():
    total = 0.0
    for _ in range(2):
        total -= now()           # added:A
        total += now()           # added:B A
def unpacked():
    n, t = 3, now()              # unpacked:A
    use((now() - t) / n)         # unpacked:B A
def filled():
    t = {"start": now()}         # filled:A
    t["end"] = now()             # filled:B A
    use(t["end"] - t["start"])
def appended():
    for n in range(3):
        s = [now()]              # appended:A
        s.append(now())          # appended:B A
        if n:
            s.append(now())      # appended:C B
        for t0, t1 in zip(s, s[1:]):
            use(t1 - t0)
def noted():
    s = {}
    def mark(name):
        s[name] = now()
    for n in range(3):
        mark("a")                # noted:A
        mark("b")                # noted:B A

for f in (two, direct, chain, nested, apart, rolling, polling, meter, helper, objects, generators, matlab, kept, table, ms,
          written_out, items, added, unpacked, filled, appended, noted):
    f()
"""


def told(probed, text: str, tmp_path) -> list[tuple[int, int]]:
    """(line of the start, line of the end) of all pairs of a script."""
    run = probed(text)
    assert run.status == 0 and run.errors == "", run.err + run.errors
    (log,) = tmp_path.glob("run*/events-*.jsonl")
    ends = timed(read_event_logs([log]))[["site", "end_site"]]
    return [
        tuple(int(place.rpartition(":")[2] or 0) for place in both)
        for both in ends.itertuples(index=False)
    ]


def test_every_way_of_writing_it(probed, tmp_path):
    text = HEAD + WAYS
    expected, mark = set(), {}
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.search(r"# (\w+):(\w)(.*)", line):
            mark[number] = f"{found[1]}:{found[2]}"
            expected |= {(f"{found[1]}:{start}", mark[number]) for start in found[3].split()}
    pairs = told(probed, text, tmp_path)
    (log,) = tmp_path.glob("run*/events-*.jsonl")
    assert "secret" not in log.read_text()
    got = [(mark.get(a, a), mark.get(b, b)) for a, b in pairs]
    assert set(got) == expected
    count = {pair: got.count(pair) for pair in expected}
    assert count["class:A", "class:B"] == 3 and count["rolling:B", "rolling:B"] == 2
    assert count["meter:D", "meter:C"] == 1 and count["direct:A", "direct:B"] == 2
    assert count["appended:B", "appended:C"] == 2 and count["noted:A", "noted:B"] == 3


def test_without_the_source_nothing_is_guessed(probed, tmp_path):
    code = "a = perf_counter()\nb = perf_counter()\nfor _ in range(3):\n    perf_counter()\n"
    pairs = told(probed, HEAD + f"exec(compile({code!r}, '<cell>', 'exec'))\n", tmp_path)
    assert pairs == []


def test_coroutines_say_so(probed, tmp_path):
    body = """
import asyncio
async def one(n):
    t0 = now()
    await asyncio.sleep(n / 100)
    use(now() - t0)
async def main():
    await asyncio.gather(one(2), one(1))
    await one(0)
asyncio.run(main())
"""
    assert told(probed, HEAD + body, tmp_path) == [], "whose reading is it?"
