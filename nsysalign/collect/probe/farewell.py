"""Whatever ends this process, the profiler keeps its rows.

nsys holds a process's last CUDA rows in CUPTI's buffers, and gets them when the process exits in order.  One that dies of
a signal, or ends by os._exit, loses them all: every worker of `with multiprocessing.Pool()`.  So before such an end the
buffers are flushed, in the CUPTI library that nsys loaded.

SIGTERM and SIGINT, only as long as they have their default disposition: their handler is a few instructions (`machine`)
that wake a thread of C, which flushes and sends the signal again, now with its default disposition: the exit status is
what it would have been.  Neither needs the interpreter: the main thread may hang in a call of C, with the GIL or without.
If the flush hangs, another such thread ends the process.  Python does not know of the handler: signal.getsignal() says
SIG_DFL, and whoever sets a handler replaces ours.  Who sets SIG_DFL again gets ours again, at once: handlers that clean
up end by that and by sending the signal once more.

os._exit, os.execv and os.execve flush first.  What came last is written to the file `.end` (`layout`).
"""

from __future__ import annotations

import _signal
import os
import struct
import sys
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
    builtin_before,
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
_DEFAULT = _SIGACTION.pack(_signal.SIG_DFL, bytes(128), 0, 0)
_RESTART_ON_STACK = 0x18000000
_NO_LOAD = 4


class Farewell:
    """One per process.  Nothing is done before nsys's CUPTI library is in the process."""

    def __init__(self) -> None:
        self._handlers: dict[int, int] = {}  # signal -> address of our handler
        self._flush = 0  # address of cuptiActivityFlushAll
        # functions that are called at a sudden end or after signal.signal -> where their addresses lie
        self._slots: dict[str, int] = {}
        self._end = 0  # where the last words are written
        self._calm = 0  # where a 1 lies, and a 0 once a signal has come
        self._never = 0  # a semaphore that nobody posts
        self._forked = False
        self._every_ns = int(float(os.environ.get("NSYSALIGN_FLUSH_MS", "0")) * 1e6)
        self._next_ns = 0

    def arm(self, store: Any) -> None:
        """Get ready, once, if the profiler is there by now."""
        if self._flush or self._forked:
            return
        try:
            self._flush = _nsys_flush()
            if self._flush:
                self._prepare(store)
        except Exception as error:
            failed(error)

    def _prepare(self, store: Any) -> None:
        self._end = store.ending()
        functions = {name: address(name) for name in ("memcpy", "sigaction")} | {"flush": self._flush}
        self._slots = {name: allocate(_eight(place)) for name, place in functions.items()}
        for name in _SUDDEN:
            calls = [self._flush_call(), self._words(name.encode())]
            _replace(builtin_after(getattr(os, name), calls), "os", "posix")
        self._calm, self._never = allocate(_eight(1)), allocate(bytes(64))
        succeed("sem_init", self._never, 0, 0)
        self._handlers = {number: self._handler(number) for number in _SIGNALS}
        _replace(builtin_before(_signal.signal, self._hold_calls()), "_signal")
        # who sends it to himself does not go on
        wait = [Call(address("sem_wait"), (self._never,), until_zero=True, if_zero=self._calm)]
        _replace(builtin_before(os.kill, wait), "os", "posix")
        _replace(builtin_before(_signal.raise_signal, wait), "_signal", "signal")
        os.register_at_fork(before=self._let_go, after_in_parent=self._hold, after_in_child=self._after_fork)
        self._hold()

    def _flush_call(self) -> Call:
        return Call(self._slots["flush"], (_FORCED,), indirect=True)

    def _words(self, text: bytes) -> Call:
        """What came last, written to the mapped file."""
        return Call(self._slots["memcpy"], (self._end, allocate(text), len(text) + 1), indirect=True)

    def _handler(self, number: int) -> int:
        """Start the threads that wait for this signal; the address of its handler, which wakes them."""
        signalled, late = allocate(bytes(64)), allocate(bytes(64))
        for semaphore in (signalled, late):
            succeed("sem_init", semaphore, 0, 0)
        die = [
            Call(address("sigaction"), (number, allocate(_DEFAULT), 0)),
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
        dying = Call(address("memcpy"), (self._calm, allocate(bytes(8)), 8))
        return function_of([dying, Call(address("sem_post"), (signalled,))])

    def _hold(self) -> None:
        """Take the signals that have their default disposition."""
        for number, handler in self._handlers.items():
            if _disposition(number) == _signal.SIG_DFL:
                succeed("sigaction", number, _held(handler), 0)

    def _hold_calls(self) -> list[Call]:
        """The same in C, at once after a change."""
        calls = []
        for number, handler in self._handlers.items():
            now = allocate(bytes(_SIGACTION.size))
            calls.append(Call(self._slots["sigaction"], (number, 0, now), indirect=True))
            ours = (number, allocate(_held(handler)), 0)
            calls.append(Call(self._slots["sigaction"], ours, indirect=True, if_zero=now))
        return calls

    def _let_go(self) -> None:
        """Before a fork: the child is born with the dispositions that it would have without us."""
        for number, handler in self._handlers.items():
            if _disposition(number) == handler:
                succeed("sigaction", number, _DEFAULT, 0)

    def _after_fork(self) -> None:
        """In the child CUPTI cannot be called, and the file is the parent's: a sudden end does nothing more there."""
        self._let_go()  # for a fork that nobody announced
        self._handlers, self._flush, self._end, self._forked = {}, 0, 0, True
        for slot in self._slots.values():
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


def _replace(builtin: Any, *modules: str) -> None:
    for name in modules:
        if name in sys.modules:
            setattr(sys.modules[name], builtin.__name__, builtin)


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


def _held(handler: int) -> bytes:
    return _SIGACTION.pack(handler, bytes(128), _RESTART_ON_STACK, 0)


def _eight(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _read(place: int, size: int) -> bytes:
    return ToObject(address("PyBytes_FromStringAndSize"))(Pointer(place), Pointer(size))
