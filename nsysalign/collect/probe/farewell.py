"""Whatever ends this process, the profiler keeps its rows.

nsys holds a process's last CUDA rows in CUPTI's buffers, and gets them when the process exits in order.  One that dies of
a signal, or ends by os._exit, loses them all: every worker of `with multiprocessing.Pool()`.  So before such an end the
buffers are flushed, in the CUPTI library that nsys loaded.

SIGTERM and SIGINT, only as long as they have their default disposition: their handler is a few instructions (`machine`)
that wake a thread of C, which flushes and sends the signal again, now with its default disposition: the exit status is
what it would have been.  Neither needs the interpreter: the main thread may hang in a call of C, with the GIL or without.
If the flush hangs, another such thread ends the process.  Python does not know of the handler: signal.getsignal() says
SIG_DFL, and whoever sets a handler replaces ours.

os._exit, os.execv and os.execve flush first.  What came last is written to the file `.end` (`layout`).
"""

from __future__ import annotations

import _signal
import os
import posix
import struct
from typing import Any

from . import failed
from . import rawtime as time
from .machine import (
    Call,
    Function,
    Pointer,
    ToObject,
    address,
    allocate,
    builtin_after,
    call,
    dlopen,
    dlsym,
    function_of,
    succeed,
)

_SIGNALS = (_signal.SIGTERM, _signal.SIGINT)
_SUDDEN = ("_exit", "execv", "execve")
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: also buffers whose last records are not complete
_PATIENCE_S = 5
#: struct sigaction: handler, mask, flags, restorer.
_SIGACTION = struct.Struct("<Q128si4xQ")
_RESTART_ON_STACK = 0x18000000
_NO_LOAD = 4


class Farewell:
    """One per process.  Nothing is done before nsys's CUPTI library is in the process."""

    def __init__(self) -> None:
        self._handlers: dict[int, int] = {}  # signal -> address of our handler
        self._flush = 0  # address of cuptiActivityFlushAll
        self._slots: tuple[
            int, ...
        ] = ()  # where the addresses of the flush and of memcpy lie, for a sudden end
        self._end = 0  # where the last words are written
        self._forked = False
        self._every_ns = int(float(os.environ.get("NSYSALIGN_FLUSH_MS", "0")) * 1e6)
        self._next_ns = 0

    def arm(self, store: Any) -> None:
        """Get ready, once, if the profiler is there by now; take back signals that have their default disposition again."""
        try:
            if not self._flush and not self._forked:
                self._flush = _nsys_flush()
                if self._flush:
                    self._prepare(store)
            if self._flush:
                self._hold()
        except Exception as error:
            failed(error)

    def _prepare(self, store: Any) -> None:
        self._end = store.ending()
        self._slots = tuple(allocate(_eight(place)) for place in (self._flush, address("memcpy")))
        for name in _SUDDEN:
            builtin = builtin_after(getattr(os, name), [self._flush_call(), self._words(name.encode())])
            for module in (os, posix):
                setattr(module, name, builtin)
        os.register_at_fork(before=self._let_go, after_in_parent=self._hold, after_in_child=self._after_fork)

    def _flush_call(self) -> Call:
        return Call(self._slots[0], (_FORCED,), indirect=True)

    def _words(self, text: bytes) -> Call:
        """What came last, written to the mapped file."""
        return Call(self._slots[1], (self._end, allocate(text), len(text) + 1), indirect=True)

    def _handler(self, number: int) -> int:
        """Start the threads that wait for this signal; the address of its handler, which wakes them."""
        signalled, late = allocate(bytes(64)), allocate(bytes(64))
        for semaphore in (signalled, late):
            succeed("sem_init", semaphore, 0, 0)
        default = allocate(_SIGACTION.pack(_signal.SIG_DFL, bytes(128), 0, 0))
        die = [
            Call(address("sigaction"), (number, default, 0)),
            Call(address("kill"), (os.getpid(), number)),
        ]
        start_thread(
            [
                Call(address("sem_wait"), (signalled,), until_zero=True),
                Call(address("sem_post"), (late,)),
                self._flush_call(),
                self._words(b"signal %d" % number),
                *die,
            ]
        )
        start_thread(
            [
                Call(address("sem_wait"), (late,), until_zero=True),
                Call(address("sleep"), (_PATIENCE_S,)),
                *die,
            ]
        )
        return function_of([Call(address("sem_post"), (signalled,))])

    def _hold(self) -> None:
        """Take the signals that have their default disposition."""
        for number in _SIGNALS:
            if _disposition(number) != _signal.SIG_DFL:
                continue
            if number not in self._handlers:
                self._handlers[number] = self._handler(number)
            _set_disposition(number, self._handlers[number], _RESTART_ON_STACK)

    def _let_go(self) -> None:
        """Before a fork: the child is born with the dispositions that it would have without us."""
        for number, handler in self._handlers.items():
            if _disposition(number) == handler:
                _set_disposition(number, _signal.SIG_DFL, 0)

    def _after_fork(self) -> None:
        """In the child CUPTI cannot be called, and the file is the parent's: a sudden end does nothing more there."""
        self._handlers, self._flush, self._end, self._forked = {}, 0, 0, True
        for slot in self._slots:
            call("memcpy", slot, _eight(address("getpid")), 8)

    def exits(self) -> None:
        """The process ends in order."""
        if self._end:
            call("memcpy", self._end, b"exit\0", 5)

    def now_and_then(self) -> None:
        """Hand over the buffers that are complete, if that is asked for: outside of intervals only."""
        if self._every_ns and self._flush and time.perf_counter_ns() >= self._next_ns:
            Function(self._flush)(Pointer(0))
            self._next_ns = time.perf_counter_ns() + self._every_ns


def start_thread(calls: list[Call]) -> None:
    """A thread that makes these calls, takes no signals and is not Python's.  Raises OSError."""
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        thread = allocate(bytes(8))
        succeed("pthread_create", thread, 0, function_of(calls), 0)
        succeed("pthread_detach", int.from_bytes(_read(thread, 8), "little"))
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _nsys_flush() -> int:
    """The address of cuptiActivityFlushAll in the library beside nsys's injection library; 0 if it is not loaded.

    torch may have loaded a CUPTI of its own, which nobody uses and which is not to be touched.
    """
    injection = os.environ.get("CUDA_INJECTION64_PATH") or os.environ.get("NVTX_INJECTION64_PATH")
    if not injection:
        return 0
    folder = os.path.dirname(os.path.realpath(injection)) + os.sep
    with open("/proc/self/maps") as maps:
        files = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/libcupti.so" in line}
    for file in sorted(files):
        if file.startswith(folder):
            return dlsym(dlopen(file, _NO_LOAD), "cuptiActivityFlushAll")
    return 0


def _disposition(number: int) -> int:
    """What the process does at a signal, as the kernel sees it: an address, or SIG_DFL, SIG_IGN."""
    place = call("malloc", _SIGACTION.size)
    try:
        succeed("sigaction", number, 0, place)
        return _SIGACTION.unpack(_read(place, _SIGACTION.size))[0]
    finally:
        call("free", place)


def _set_disposition(number: int, handler: int, flags: int) -> None:
    succeed("sigaction", number, _SIGACTION.pack(handler, bytes(128), flags, 0), 0)


def _eight(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _read(place: int, size: int) -> bytes:
    return ToObject(address("PyBytes_FromStringAndSize"))(Pointer(place), Pointer(size))
