"""References of the probe, with a GPU that is played: what is measured, when, and what is left
alone."""

from __future__ import annotations

import itertools
import struct
import sys
import types

import pytest

from nsysalign.probe import reference, slots
from nsysalign.probe.runtime import Runtime

MS = 1_000_000


class World:
    """A clock of the host, a GPU whose events are stamped when they are recorded, and the Runtime
    as far as it is used."""

    own_record = Runtime.own_record

    def __init__(self, monkeypatch):
        self.now, self.complete, self.nvtx = 1_000 * MS, True, None
        self.captures, self.states, self.written, self.failures = 0, {}, [], []
        self.count = itertools.count(100)
        self.driver = types.SimpleNamespace(
            new_stream=lambda: 77, stream_id=lambda *_: 13, is_complete=lambda event: self.complete
        )
        world = self

        class Event:
            def __init__(self, enable_timing=False):
                self.stamp, self.cuda_event = None, id(self)

            def record(self, stream=None):
                self.stamp = world.now

            def elapsed_time(self, end):
                if self.stamp is None or end.stamp is None:
                    raise RuntimeError("Both events must be completed")
                return struct.unpack("<f", struct.pack("<f", (end.stamp - self.stamp) / MS))[0]

        self.Event = Event
        stream = types.SimpleNamespace(cuda_stream=77, device_index=0)
        cuda = types.SimpleNamespace(
            is_initialized=lambda: True, current_device=lambda: 0, ExternalStream=lambda handle, device: stream,
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(reference.time, "perf_counter_ns", self._clock)
        monkeypatch.setattr(reference, "failed", self.failures.append)
        self.references = reference.References(Event, self)

    def _clock(self):
        self.now += 1_000
        return self.now

    def latest(self, event):
        return (getattr(event, "seq", -1), 0, 0, 0)

    def write(self, kind, flags, seq, **values):
        self.written.append((kind, values))

    def pair(self, seq):
        start, end = self.Event(True), self.Event(True)
        start.record()
        self.now += 50_000
        end.record()
        start.seq, end.seq = seq, seq + 1
        return start, end

    def compare(self, pair, *, alone=True):
        self.references.compared(*pair, (pair[0].seq, pair[1].seq), next(self.count), 0, alone)

    def kinds(self):
        return [kind for kind, _ in self.written]


@pytest.fixture
def world(monkeypatch):
    world = World(monkeypatch)
    world.references.renew(0, wait=True)
    return world


def ms_of(bits):
    return struct.unpack("<f", struct.pack("<i", bits))[0]


def test_a_pair_is_measured_against_a_reference(world):
    world.compare(world.pair(1))
    assert world.kinds() == [slots.RECORD, slots.REFERENCE, slots.DISTANCE]
    told = world.written[-1][1]
    assert ms_of(told["t1"]) - ms_of(told["t0"]) == pytest.approx(0.05, abs=1e-6)
    assert told["b"] == 100, "the reference is named by the seq of its own record"


def test_references_are_renewed_and_linked_while_nothing_is_timed(world):
    world.now += 150 * MS
    world.compare(world.pair(1), alone=False)
    assert world.kinds().count(slots.REFERENCE) == 1, "something may be timed"
    for _ in range(2):
        world.compare(world.pair(3))
    first, second = [v for k, v in world.written if k == slots.REFERENCE]  # not sooner than 100 ms
    assert first["b"] == -1 and second["b"] == first["a"]
    assert second["x"] == pytest.approx(150, abs=1), "milliseconds from the one before"
    pairs = []  # far from every reference: linked to each other
    for n in range(6):
        world.now += 150 * MS
        pairs.append(world.pair(2 * n))
    for pair in pairs:
        world.compare(pair, alone=False)
    links = [(v["a"], v["b"]) for k, v in world.written if k == slots.BETWEEN]
    assert links == [(2 * n - 1, 2 * n) for n in range(1, 6)]


def test_a_reference_that_does_not_complete_is_not_waited_for(world):
    world.complete, world.references._devices = False, {}
    world.written.clear()
    world.references.renew(0, wait=True)
    began = world.now
    world.compare(world.pair(1))
    assert slots.REFERENCE not in world.kinds() and world.now - began < 2 * reference._PATIENCE_NS
    world.complete = True
    world.compare(world.pair(3))
    assert slots.DISTANCE in world.kinds()


def test_an_event_recorded_again_meanwhile_costs_its_pair_and_no_more(world):
    start, end = world.pair(1)
    end.stamp = None
    world.compare((start, end))
    world.compare(world.pair(3))
    assert world.kinds().count(slots.DISTANCE) == 1 and world.references is not None
    for _ in range(reference._FAILURES - 1):
        world.compare((start, end))
    assert world.references is None and len(world.failures) == 1, "then the probe does without"


def test_other_threads_that_time_something_are_not_disturbed(world):
    me, other = (
        types.SimpleNamespace(last=last, compared=compared, noticed=-1, noticed_ns=0)
        for last, compared in ((5, 5), (8, 7))
    )
    world.states = {1: me, 2: other}
    for _ in range(2):
        assert not reference.nobody_is_timing(world, me), "its record was not compared yet"
    world.now += 2_000 * MS
    assert reference.nobody_is_timing(world, me), "and never will be"
    other.last = 9
    assert not reference.nobody_is_timing(world, me)
    other.compared = 9
    assert reference.nobody_is_timing(world, me)


def test_a_forked_child_frees_no_event_of_its_parent():
    """torch calls CUDA to free one, which ends a child of a process that uses CUDA: DataLoader's
    workers did, on an H100."""
    import gc
    import weakref

    from nsysalign.probe.reference import References, _Device

    class Event:
        record = elapsed_time = None

    references = References(Event, None)
    own = references._devices[0] = _Device(None, 0)
    own.event, own.pending, own.last = Event(), (Event(), 1, 2, 3), (Event(), 4)
    left = [weakref.ref(event) for event in (own.event, own.pending[0], own.last[0])]
    references.after_fork()
    del own
    gc.collect()
    assert not references._devices
    assert all(event() is not None for event in left)
