"""Makes sure that the profiler gets this process's rows, however the process ends.

A process's last rows are held in CUPTI's buffers and in queues of nsys's, and nsys collects them when the process exits
normally.  A process that dies of a signal or ends by os._exit loses them; every worker of `with multiprocessing.Pool()` ends
like that.  So before such an end CUPTI's buffers are flushed, in the library that nsys loaded, and then nsys's library is shut
down by its destructors, as in a normal exit: it waits until everything has been sent.  (A flush alone, even with a second's
wait, kept 3,778 of 10,000 rows.)

Signals that end the process are handled as long as they have their default disposition: the handler is a few instructions
(`machine`) that wake a C thread, which does this and sends the signal again, now with its default disposition, so the exit
status is what it would have been.  Neither needs the interpreter: the main thread may be stuck in a C call, with or without the
GIL.  If the thread hangs, another one ends the process.  If the program has crashed, the handler waits for the thread and
returns to the instruction that failed, which fails again, so that a core dump shows the place.

Python does not know about the handlers: signal.getsignal() says SIG_DFL, and a handler set by the program replaces ours.
Setting SIG_DFL again restores ours at once, because handlers that clean up end by doing that and sending the signal again.

os._exit, os.execv and os.execve do the same first, the latter two if there is a program to execute.  How the process ended, and
when that began, is written to the file `.end` (`layout`): other threads continue for the few milliseconds it takes, but what
they measure then is not collected.
"""

from __future__ import annotations

import _signal
import os
import stat
import struct
import sys
from typing import Any

from . import failed
from .machine import (
    Call,
    Function,
    Pointer,
    Slot,
    Status,
    ToObject,
    address,
    allocate,
    builtin_after,
    builtin_before,
    builtin_told_first,
    call,
    dlopen,
    dlsym,
    function_of,
    succeed,
)
from .slots import END_TIME

#: A crash: the handler has to wait, since the failed instruction is executed next.
_CRASHES = (_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT)
#: Other signals, from users, supervisors, schedulers and timers, that end a process which does not handle them.
_REQUESTS = (
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGALRM,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGXCPU,
)
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: also buffers whose last records are not complete
_MONOTONIC = 1
_PATIENCE_S = 5
_CRASH_AGAIN_US = 200_000
#: struct sigaction: handler, mask, flags, restorer.
_SIGACTION = struct.Struct("<Q128si4xQ")
_DEFAULT = _SIGACTION.pack(_signal.SIG_DFL, bytes(128), 0, 0)
_RESTART_ON_STACK = 0x18000000
_NO_LOAD = 4
#: Of a 64-bit ELF file in memory: a program header (type, flags, offset, address, ...), an entry of its dynamic section.
_HEADER, _ENTRY = struct.Struct("<IIQQQQQQ"), struct.Struct("<qQ")
_DYNAMIC, _FINI_ARRAY, _FINI_ARRAY_SIZE = 2, 26, 28


class Farewell:
    """One per process.  Does nothing until nsys's CUPTI library is loaded into the process."""

    def __init__(self) -> None:
        self._handlers: dict[int, int] = {}  # signal -> address of our handler
        self._flush = 0  # address of cuptiActivityFlushAll
        self._last: list[int] = []  # addresses of the destructors of nsys's library
        # functions that are called at a sudden end or after signal.signal -> where their addresses lie
        self._slots: dict[str, int] = {}
        self._end = 0  # where the way it ended is written
        self._began = 0  # where the time at which the end began is noted
        self._calm = 0  # address of a 1 that becomes 0 once a signal has come that ends the process
        self._never = 0  # a semaphore that is never posted
        self._hold_all = 0  # address of a function that takes the signals
        self._now = self._default = 0  # space for a disposition, and the default one
        self._forked = False

    def arm(self, store: Any) -> None:
        """Get ready, once, if the profiler is loaded by now."""
        if self._flush or self._forked:
            return
        try:
            self._flush, self._last = _nsys()
            if self._flush:
                self._prepare(store)
        except Exception as error:
            failed(error)

    def _prepare(self, store: Any) -> None:
        self._end, self._began = store.ending(), allocate(bytes(16))
        functions = {name: address(name) for name in ("memcpy", "sigaction", "clock_gettime")}
        functions["flush"] = self._flush
        functions |= {f"last {number}": function for number, function in enumerate(self._last)}
        self._slots = {name: allocate(_eight(place)) for name, place in functions.items()}
        _replace(builtin_after(os._exit, [*self._end_here(), self._words(b"_exit")]), "os", "posix")
        for name in ("execv", "execve"):
            leave = Function(function_of([*self._end_here(), self._words(name.encode())]))
            _replace(
                builtin_told_first(getattr(os, name), Slot(_before_exec(leave))), "os", "posix"
            )
        self._calm, self._never = allocate(_eight(1)), allocate(bytes(64))
        succeed("sem_init", self._never, 0, 0)
        self._now, self._default = allocate(bytes(_SIGACTION.size)), allocate(_DEFAULT)
        self._handlers = self._start_threads()
        holds = self._hold_calls()
        self._hold_all = function_of(holds)
        _replace(builtin_before(_signal.signal, holds), "_signal")
        # a thread that sends itself the signal does not continue
        wait = [Call(address("sem_wait"), (self._never,), until_zero=True, if_zero=self._calm)]
        _replace(builtin_before(os.kill, wait), "os", "posix")
        _replace(builtin_before(_signal.raise_signal, wait), "_signal", "signal")
        os.register_at_fork(
            before=self._let_go, after_in_parent=self._hold, after_in_child=self._after_fork
        )
        self._hold()

    def _hand_over(self) -> list[Call]:
        """Hand all rows to nsys, and everything that nsys holds in this process to its collector.  After this nsys collects
        nothing more here."""
        flush = Call(self._slots["flush"], (_FORCED,), indirect=True)
        last = [
            Call(self._slots[f"last {number}"], indirect=True) for number in range(len(self._last))
        ]
        return [flush, *last]

    def _end_here(self) -> list[Call]:
        """The same, noting the time."""
        now = Call(
            self._slots["clock_gettime"],
            (_MONOTONIC, self._began),
            indirect=True,
            if_zero=self._began,
        )
        noted = Call(self._slots["memcpy"], (self._end + END_TIME, self._began, 16), indirect=True)
        return [now, noted, *self._hand_over()]

    def _words(self, text: bytes, if_zero: int = 0) -> Call:
        """The way the process ended, written to the mapped file."""
        arguments = (self._end, allocate(text), len(text) + 1)
        return Call(self._slots["memcpy"], arguments, indirect=True, if_zero=if_zero)

    def _start_threads(self) -> dict[int, int]:
        """Start the threads that wait for a signal; signal -> the address of its handler, which wakes them."""
        signalled, late, done = (allocate(bytes(64)) for _ in range(3))
        for semaphore in (signalled, late, done):
            succeed("sem_init", semaphore, 0, 0)
        awaits = {
            number: allocate(_eight(1)) for number in (*_REQUESTS, *_CRASHES)
        }  # 0 once it has come
        words, die = [], []
        for number, at in awaits.items():
            # the thread whose request is answered first decides
            words.insert(0, self._words(b"signal %d" % number, if_zero=at))
            die.append(Call(address("sigaction"), (number, self._default, 0), if_zero=at))
            if number in _CRASHES:  # a signal sent by another process is not delivered again
                die.append(Call(address("sem_post"), (done,), if_zero=at))
                die.append(Call(address("usleep"), (_CRASH_AGAIN_US,), if_zero=at))
            die.append(Call(address("kill"), (os.getpid(), number), if_zero=at))
        wake = Call(address("sem_post"), (late,))
        start_thread([_wait_for(signalled), wake, *self._end_here(), *words, *die])
        start_thread([_wait_for(late), Call(address("sleep"), (_PATIENCE_S,)), *die])
        zero, handlers = allocate(bytes(8)), {}
        for number, at in awaits.items():
            calls = [
                Call(address("memcpy"), (at, zero, 8)),
                Call(address("sem_post"), (signalled,)),
            ]
            if number in _CRASHES:
                calls.append(_wait_for(done))
            else:
                calls.insert(0, Call(address("memcpy"), (self._calm, zero, 8)))
            handlers[int(number)] = function_of(calls)
        return handlers

    def _hold(self) -> None:
        """Install our handlers for signals that have their default disposition."""
        Function(self._hold_all)()

    def _hold_calls(self) -> list[Call]:
        """The same from C, right after a change."""
        calls = []
        for number, handler in self._handlers.items():
            now = allocate(bytes(_SIGACTION.size))
            calls.append(Call(self._slots["sigaction"], (number, 0, now), indirect=True))
            ours = (number, allocate(_held(handler)), 0)
            calls.append(Call(self._slots["sigaction"], ours, indirect=True, if_zero=now))
        return calls

    def _let_go(self) -> None:
        """Before a fork: the child starts with the dispositions that it would have without us."""
        change, read = Status(address("sigaction")), ToObject(address("PyBytes_FromStringAndSize"))
        now, default, nothing, size = (Pointer(n) for n in (self._now, self._default, 0, 8))
        for number, handler in self._handlers.items():
            change(Pointer(number), nothing, now)
            if read(now, size) == _eight(handler):
                change(Pointer(number), default, nothing)

    def _after_fork(self) -> None:
        """In the child CUPTI cannot be called, and the file is the parent's: a sudden end does nothing more there."""
        self._let_go()  # for a fork without notice
        self._handlers, self._flush, self._end, self._forked = {}, 0, 0, True
        for slot in self._slots.values():
            call("memcpy", slot, _eight(address("getpid")), 8)

    def exits(self) -> None:
        """The process exits normally: first the interpreter, then its destructors.  But after an uncaught KeyboardInterrupt
        Python finally sends itself SIGINT, with its default disposition."""
        if not self._end:
            return
        raised = getattr(sys, "last_type", None)
        if isinstance(raised, type) and issubclass(raised, KeyboardInterrupt):
            # by then nothing of Python, or mapped by it, is left
            succeed("Py_AtExit", function_of(self._hand_over()))
        call("memcpy", self._end, b"exit\0", 5)


def _replace(builtin: Any, *modules: str) -> None:
    for name in modules:
        if name in sys.modules:
            setattr(sys.modules[name], builtin.__name__, builtin)


def _before_exec(leave: Function) -> Any:
    """What to do when a program is to be executed: `leave` if it can be.  os.execvp tries one folder after the other, and the
    program continues if none has it."""

    def before(path: Any = None, *_: Any, **named: Any) -> None:
        path = named.get("path", path)
        try:
            can_be = stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
        except (OSError, TypeError, ValueError):  # the caller will get the error
            return
        if can_be:
            leave()

    return before


def _wait_for(semaphore: int) -> Call:
    return Call(address("sem_wait"), (semaphore,), until_zero=True)


def start_thread(calls: list[Call]) -> None:
    """Start a non-Python thread that makes these calls and blocks all signals but those of a crash.  Raises OSError."""
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - set(_CRASHES))
    try:
        thread = allocate(bytes(8))
        succeed("pthread_create", thread, 0, function_of(calls), 0)
        succeed("pthread_detach", int.from_bytes(_read(thread, 8), "little"))
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _nsys() -> tuple[int, list[int]]:
    """The address of cuptiActivityFlushAll in the library next to nsys's injection library, 0 if it is not loaded, and the
    destructors of nsys's own, in the order of their calls.

    torch may have loaded a CUPTI of its own, which is unused and must not be touched.
    """
    injection = os.environ.get("CUDA_INJECTION64_PATH") or os.environ.get("NVTX_INJECTION64_PATH")
    if not injection:
        return 0, []
    injection = os.path.realpath(injection)
    folder = os.path.dirname(injection) + os.sep
    begins: dict[str, int] = {}  # file -> its first byte in memory
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, _, _, _, _, *file = line.rstrip("\n").split(maxsplit=5)
            if file and file[0].startswith(folder):
                begins.setdefault(file[0], int(place.partition("-")[0], 16))
    for file in sorted(begins):
        if os.path.basename(file).startswith("libcupti.so"):
            flush = dlsym(dlopen(file, _NO_LOAD), "cuptiActivityFlushAll")
            return flush, _destructors(begins[injection]) if injection in begins else []
    return 0, []


def _destructors(begin: int) -> list[int]:
    """What a library at this address runs when the process exits normally; most have one destructor, which runs whatever the
    library registered for that moment, and does nothing when called again."""
    (headers,), (count,) = (
        struct.unpack("<Q", _read(begin + 32, 8)),
        struct.unpack("<H", _read(begin + 56, 2)),
    )
    tags: dict[int, int] = {}
    for header in _HEADER.iter_unpack(_read(begin + headers, count * _HEADER.size)):
        if header[0] == _DYNAMIC:
            entries = _ENTRY.iter_unpack(
                _read(begin + header[3], header[5] // _ENTRY.size * _ENTRY.size)
            )
            tags = dict(
                reversed(list(entries))
            )  # the first of a kind counts; only 0 occurs more than once
    if _FINI_ARRAY not in tags:
        return []
    functions = _read(begin + tags[_FINI_ARRAY], tags[_FINI_ARRAY_SIZE])
    return [function for (function,) in struct.iter_unpack("<Q", functions)][::-1]


def _held(handler: int) -> bytes:
    return _SIGACTION.pack(handler, bytes(128), _RESTART_ON_STACK, 0)


def _eight(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _read(place: int, size: int) -> bytes:
    return ToObject(address("PyBytes_FromStringAndSize"))(Pointer(place), Pointer(size))
