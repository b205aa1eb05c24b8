"""The state of the probe in one process: what is written where, which regions are open.
The hot path is in `wrap`; everything here that costs more than a dictionary look-up runs once, or
outside timed pairs.  All objects that closures hold are changed in place, so that a forked child
can start afresh.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from typing import Any

from . import early, failed
from . import rawtime as time
from .blame import pass_on
from .cuda_driver import Driver
from .ends import Ends
from .forks import Forks
from .garbage import Garbage
from .interrupts import Held
from .offcpu import OffCpu
from .rawtime import Untraced
from .recorder import in_turns, of_run
from .sites import Sites
from .slots import CALIBRATION, CHUNK_BITS, CHUNK_SLOTS, NONE, RECORD, SLOT, SLOT_SIZE
from .store import Store, page_of_last_words
from .tampering import replaced

LATEST = "_nsysalign_record"  # on an event: (seq, device) of its latest record
NO_RECORD = (-1, -1)

_SYNC_EVERY_NS = 5_000_000_000
_BURST = 50
#: Libraries for GPUs beside torch: with one of them, kernels of cuBLAS need not be torch's.
_LIBRARIES = ("cupy", "numba", "jax")
#: Mapping a chunk takes a fraction of a millisecond: it must not happen inside a timed pair.
_CHUNKS_AHEAD = 3


class ThreadState:
    """The state of one thread.  `region` and `repetition` are those of the innermost open
    region."""

    def __init__(self) -> None:
        self.tid = threading.get_native_id()
        self.stack: list[tuple[int, int, int | None]] = []
        self.region = NONE
        self.repetition = 0
        # seq of its latest record, and of the latest that it compared; what `reference` noticed
        # about them, and when
        self.last = self.compared = self.noticed = -1
        self.noticed_ns = 0
        self.looked_ns = 0  # when its CPU time was asked for (`offcpu`)


class Runtime:
    """One per process, created when torch.cuda is imported or the first region is entered."""

    def __init__(self, raw_dir: str, start_cwd: str) -> None:
        self.aside = False  # True: the probe has deactivated itself, wrappers only pass through
        self.left = False  # True: it never comes back (`nsysalign.recording`)
        self.ready = False  # True: the store exists
        self._beginning = False
        self.raw_dir = raw_dir
        self.store: Any = None
        self.chunks: dict[int, Any] = {}
        self.count = itertools.count(0)
        self.first_seq = 0
        self.last_record, self.last_record_ns = -1, 0  # its seq, and when it was created
        self.captures = 0
        self.states: dict[int, ThreadState] = {}  # by thread id
        self.references: Any = None  # reference.References, None if turned off
        self.calibrate: Any = None  # calibrate.Calibration.offer, None without torch
        self.foreign: dict[int, tuple[int, int]] = {}  # handle -> what LATEST holds
        self.driver = Driver()
        self.ending = Ends()
        self.garbage = Garbage(self._line)
        self.off_cpu = OffCpu(self._line)
        self.forks = Forks(self._line)
        self.sites = Sites(start_cwd, lambda number, value: self._line({"ctx": number, **value}))
        #: Context of a frame that records an event.
        self.context_of = self.sites.context
        self.turns: Any = None  # turns.Turns, None where the recorder stays
        if in_turns():
            from .turns import Turns

            self.turns = Turns(self, of_run())
            self.context_of = self.turns.marking(self.sites.context)
        self.tls = threading.local()
        self.calibrated: set[int] = set()  # devices that need no calibration (any more)
        self.nvtx: Any = None
        self._nvtx_tried = False
        self.decisions: dict[int, bool] = {}  # context -> whether confirm intervenes there
        # entries here are in the log already: an exception of the user's may come at any time
        self._strings: dict[str, int] = {}
        self._counters: dict[str, Any] = {}
        self._string_numbers = itertools.count(1)
        self._lock = threading.RLock()
        self.next_sync = 0
        os.register_at_fork(after_in_child=self._after_fork)
        #: Where a failure is written that reaches no file; of who may change user or root.
        self.last_words: Any = None
        try:
            if os.geteuid() == 0:
                self.last_words = page_of_last_words(raw_dir)
        except Exception as error:  # the first record says what is wrong with the folder
            pass_on(error)

    def begin(self, device: int) -> None:
        """Create the files and write the header.  Called before the first event is recorded."""
        with self._lock:
            if self.ready:
                return
            # we already hold the lock: a record made in between, by a signal handler or a finaliser
            if self._beginning:
                raise RuntimeError("a record made while the probe was starting is not in the log")
            self._beginning = True
            try:
                with Held(), Untraced():
                    self._begin(device)
            finally:
                self._beginning = False

    def _begin(self, device: int) -> None:
        self.store = Store(self.raw_dir, self.first_seq, self.chunks)
        for ahead in range(_CHUNKS_AHEAD + 1):
            self.store.grow((self.first_seq >> CHUNK_BITS) + ahead)
        self.connect()
        torch, name = sys.modules.get("torch"), None
        if torch is not None and device >= 0 and not self.captures:
            try:
                name = str(torch.cuda.get_device_properties(device).name)
            except Exception as error:
                pass_on(error)
        header = {
            "pid": os.getpid(),
            "device_name": name,
            "torch": str(getattr(torch, "__version__", "")),
            "libraries": " ".join(name for name in _LIBRARIES if name in sys.modules),
            "python": ".".join(map(str, sys.version_info[:3])),
            "clock": _clock(),
            "nvtx": "injection" if self.nvtx else "none",
        }
        self._line({"header": header, "first_seq": self.first_seq})
        for text, number in self._strings.items():
            self._line({"str": number, "text": text})
        for line in early:
            self._line(line)
        self.sync()
        self.garbage.watch()
        atexit.register(self._at_exit)
        self.ready = True

    def connect(self) -> None:
        """Connect to the profiler's NVTX library, once."""
        if self._nvtx_tried or "NVTX_INJECTION64_PATH" not in os.environ:
            return
        self._nvtx_tried = True
        try:
            from .injection import Injection

            self.nvtx = Injection()
            self.ending.arm(None)
        except Exception as error:
            failed(error)

    def _line(self, value: dict) -> None:
        if self.store is not None:
            self.store.line(value)

    def note(self, **value: Any) -> None:
        self._line({"note": value})

    # --- slots ---

    # fmt: off
    def write(
        self, kind: int, flags: int, seq: int, *, device: int = -1, context: int = 0, t0: int = 0,
        t1: int = 0, a: int = -1, b: int = -1, x: float = 0.0,
    ) -> None:
        """Write one slot, the slow way: everything but torch.cuda's records.  Calibration is in no
        region."""
        me = self.me()
        region, repetition = (NONE, 0) if flags & CALIBRATION else (me.region, me.repetition)
        buffer = self.chunks.get(seq >> CHUNK_BITS) or self.store.grow(seq >> CHUNK_BITS)
        SLOT.pack_into(
            buffer, (seq & (CHUNK_SLOTS - 1)) * SLOT_SIZE, kind, flags, device, context, region,
            repetition, t0, t1, a, b, x, me.tid, kind,
        )
    # fmt: on

    def own_record(
        self, record: Any, event: Any, stream: Any, stream_id: int
    ) -> tuple[int, int, int]:
        """Make and log a record of our own by torch's `record`: its seq, and the times around it."""
        seq, handle = next(self.count), stream.cuda_stream
        t0 = time.perf_counter_ns()
        record(event, stream)
        t1 = time.perf_counter_ns()
        place = {"device": stream.device_index, "a": handle, "b": stream_id}
        self.write(RECORD, CALIBRATION, seq, t0=t0, t1=t1, **place)
        return seq, t0, t1

    def me(self) -> ThreadState:
        try:
            return self.tls.state
        except AttributeError as error:
            pass_on(error)
            state = self.tls.state = ThreadState()
            self.states[state.tid] = state
            return state

    def latest(self, event: Any) -> tuple[int, int]:
        """The latest record of an event, bypassing any __getattr__ of the user's."""
        try:
            return object.__getattribute__(event, LATEST)
        except AttributeError as error:
            pass_on(error)
            return self.foreign.get(handle_of(event), NO_RECORD) if self.foreign else NO_RECORD

    def failed_pair(self, seq: int, error: BaseException) -> None:
        """Why a comparison failed.  Only the first line: torch appends pages of advice."""
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        self._line({"err": seq, "text": text})

    # --- regions ---

    def enter_region(self, name: str) -> None:
        me = self.me()
        if self.turns is not None and not me.stack:
            self.turns.mark(name)
        number = self._strings.get(name)
        if number is None:
            with self._lock:
                self.connect()
                number = next(self._string_numbers)
                self._counters.setdefault(name, itertools.count())
                self._line({"str": number, "text": name})
                number = self._strings.setdefault(name, number)
        repetition = next(self._counters[name])
        range_id = self.nvtx.start(name, repetition) if self.nvtx else None
        me.stack.append((number, repetition, range_id))
        me.region, me.repetition = number, repetition

    def leave_regions(self, depth: int) -> None:
        """Leave this thread's regions until no more than `depth` are open."""
        me = self.me()
        while len(me.stack) > max(depth, 0):
            _, _, range_id = me.stack.pop()
            me.region, me.repetition = me.stack[-1][:2] if me.stack else (NONE, 0)
            if range_id is not None:
                self.nvtx.end(range_id)

    def region_number(self, name: str) -> int:
        """The number of a region that was entered before, -1 if there is none."""
        return self._strings.get(name, -1)

    # --- clocks ---

    def sync(self) -> None:
        """A clock reading, and a burst of marks that ties perf_counter to the trace's clock."""
        now = time.perf_counter_ns
        self.next_sync = now() + _SYNC_EVERY_NS
        self._line({"clock": _clock()})
        if self.nvtx is None:
            return
        self.ending.arm(self._line)
        text, marks = self.nvtx.text("nsysalign:sync"), []
        for _ in range(_BURST):
            before = now()
            self.nvtx.mark(text, before)
            marks.append([before, now()])
        self._line({"sync": marks})

    def housekeeping(self, seq: int) -> None:
        """Outside timed pairs: map chunks ahead, read the clocks."""
        chunk = seq >> CHUNK_BITS
        if chunk + _CHUNKS_AHEAD not in self.chunks:
            for ahead in range(1, _CHUNKS_AHEAD + 1):
                self.store.grow(chunk + ahead)
        self.garbage.write()
        self.off_cpu.write()
        self.forks.write()
        if time.perf_counter_ns() >= self.next_sync:
            self.sync()

    def _at_exit(self) -> None:
        try:
            self.garbage.leave()
            if self.turns is not None:
                self.turns.ends()
            with Untraced():
                self.garbage.write()
                self.off_cpu.write()
                self.forks.write()
                self.sync()
            for text in replaced():
                self.note(text=text)
        except Exception as error:
            failed(error)

    def leave(self) -> None:
        """Write what is written at the end, let go of the files, and do nothing from now on."""
        if self.ready:
            self._at_exit()
            atexit.unregister(self._at_exit)
        self.aside = self.left = True
        self.forks.leave()
        # the hook for forks keeps this object, and each mapping has a descriptor of its own
        self.last_words = None
        if self.store is not None:
            self.store.close()

    def _after_fork(self) -> None:
        """A forked child is a separate process: new files, and numbers that no record of the parent
        has."""
        if self.left:
            return
        try:
            self._lock = threading.RLock()
            self.store, self.ready, self._beginning = None, False, False
            self.first_seq = ((next(self.count) >> CHUNK_BITS) + 1) << CHUNK_BITS
            self.count = itertools.count(self.first_seq)
            self.last_record, self.last_record_ns = -1, 0
            if self.references is not None:
                self.references.after_fork()
            self.sites.clear()
            self.garbage.leave()
            self.garbage.clear()
            self.off_cpu.clear()
            self.forks.clear()
            if self.turns is not None:
                self.turns.clear()
            tables = (self.chunks, self.states, self.foreign, self.calibrated)
            for table in (*tables, self.decisions):
                table.clear()  # type: ignore[attr-defined]
            me = getattr(self.tls, "state", None)
            if me is not None:
                me.tid = threading.get_native_id()
                me.last = me.compared = me.noticed = -1
                self.states[me.tid] = me
                me.stack = [(number, repetition, None) for number, repetition, _ in me.stack]
        except Exception as error:
            failed(error)


def handle_of(event: Any) -> int:
    """The handle of any library's CUDA event, 0 if there is none (yet)."""
    return _number(event, ("event_id", "cuda_event", "ptr", "handle"), 0)


def describe(stream: Any) -> tuple[int, int]:
    """Handle and device of any stream-like object, -1 if unknown."""
    handle = _number(stream, ("cuda_stream", "native_handle", "ptr", "handle"), -1)
    return handle, _number(stream, ("device_index", "device_id"), -1)


def _number(owner: Any, names: tuple[str, ...], default: int) -> int:
    """The first of these attributes that is a number: Python's, a pointer of ctypes (older numba)
    or an object of cuda.bindings, which is none but converts to one."""
    for name in names:
        value = getattr(owner, name, None)
        value = getattr(value, "value", value)
        if hasattr(value, "__int__"):
            return int(value)
    return default


def _clock() -> dict[str, int]:
    """Both clocks at one instant: the one of three tries with the closest readings around it."""
    tries = []
    for _ in range(3):
        before, real, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        tries.append((after - before, (before + after) // 2, real))
    _, monotonic_ns, realtime_ns = min(tries)
    return {"monotonic_ns": monotonic_ns, "realtime_ns": realtime_ns}
