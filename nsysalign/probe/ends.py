"""Lets the profiler collect its last rows before the process ends suddenly.

nsys holds rows back in the process, all of those of a short program, and sends them on when the C
library's exit() runs its handlers.  Whoever ends by os._exit, or by a signal as the workers of
`with multiprocessing.Pool()` do, loses them.  So before such an end exit() runs, and the process
still ends as it was to:

- SIGTERM, SIGHUP and SIGINT are handled while they have their default disposition; Python does not
  show it, and a handler of the program's replaces ours.
- os._exit is a function of ours that does the same first.
- After an uncaught KeyboardInterrupt Python would send itself SIGINT: it exits with 130 instead.
- A program that closed all of its descriptors, as one that becomes a daemon, ends without exit()'s
  handlers: nsys would wait there for ever for its connection.

- Before os.execv and os.execve the recorder of our own writes what it has.

Nothing can be done from Python against a crash and SIGKILL, nor under nsys against exec: the log then says
"killed".
"""

from __future__ import annotations

import _signal
import atexit
import contextlib
import fcntl
import functools
import os
import select
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from typing import Any

from . import failed
from . import rawtime as time
from .rawtime import Files
from .recorder import INSIDE, VARIABLE, of_run

_HELD = (_signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT)
_CRASHES = (_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT)
#: How long exit() may take, and how long the main thread may take to notice a signal.
_PATIENCE_S, _NOTICE_S = 5.0, 1.0
#: A program that closes all descriptors opens its next files under low numbers: not under those of
#: the pipe that Python writes the numbers of signals to.
_HIGH = 900
#: Written there by us: no number of a signal.
_FINISH = b"\0"


class Ends:
    """One per process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._armed = False
        self._write: Any = None
        #: The thread of `_watch`, where its pipe is written to, and what it is to call then.
        self._watcher: int | None = None
        self._waking, self._finish = -1, None
        self._masks: dict[int, Any] = {}
        self._sockets: set[str] = set()  # open once nsys listened, its connection among them
        self._leaving = allocate_lock()
        self._signal, self._getsignal, self._exit = _signal.signal, _signal.getsignal, os._exit

    def arm(self, write: Any) -> None:
        """Get ready once nsys listens in this process; `write`: takes a line for the log, None if
        there is no log yet.  To be called again where the first call was not in the main thread,
        which alone may handle signals."""
        if INSIDE in os.environ:
            return
        if self._pid != os.getpid():
            if VARIABLE not in os.environ:  # a forked child, which nsys does not record
                return
            self._pid = os.getpid()
        try:
            if not self._armed:
                self._begin()
            if write is not None and self._write is None:
                write({"end": ""})
                self._write = write
        except ValueError:  # not the main thread
            return
        except Exception as error:
            failed(error)

    def _begin(self) -> None:
        for number in _HELD:
            if self._getsignal(number) == _signal.SIG_DFL:
                self._signal(number, self._on_signal)
        self._armed = True
        if VARIABLE not in os.environ:  # the recorder of our own has none
            self._sockets = _sockets()
        _signal.signal, _signal.getsignal = self._set, self._get
        original = self._exit

        def _exit(status: int) -> None:
            """Exit to the system with specified status, without normal exit processing."""
            if self._armed and isinstance(status, int):
                self._leave("_exit", status & 0xFF, lambda: original(status))
            original(status)

        for name in ("os", "posix"):
            sys.modules[name]._exit = _exit  # type: ignore[attr-defined]
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._forked
        )
        if VARIABLE in os.environ:
            for name in ("execv", "execve"):  # the others of os call these two
                self._write_before(name)
        self._watch()

    def _write_before(self, name: str) -> None:
        """Let the recorder write all it has before this function of os replaces the program."""
        original, recorder = getattr(os, name), of_run()

        @functools.wraps(original)
        def function(*args, **kwargs):
            try:
                recorder.flush()
            except Exception as error:
                failed(error)
            return original(*args, **kwargs)

        for module in ("os", "posix"):
            setattr(sys.modules[module], name, function)

    def exits(self) -> None:
        """The process exits in order.  To be called last of all that Python calls then."""
        if self._sockets and not self._sockets & _sockets():
            from ctypes import CDLL

            libc = CDLL(None)
            libc.fflush(None)
            libc.on_exit(libc._exit, None)  # called first, with the status
            return
        if not self._armed:
            return
        self._note("exit")
        # the end of a pool tells its workers to end, and sends SIGTERM to those that are at it
        _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
        raised = getattr(sys, "last_type", None)
        if isinstance(raised, type) and issubclass(raised, KeyboardInterrupt):
            from ctypes import pythonapi

            atexit._clear()  # all have run, and would run again
            pythonapi.Py_Exit(128 + _signal.SIGINT)

    # --- what the program sees of signals ---

    def _set(self, signalnum: int, handler: Any, /) -> Any:
        default = handler == _signal.SIG_DFL and not callable(handler)
        ours = default and signalnum in _HELD and self._armed
        before = self._signal(signalnum, self._on_signal if ours else handler)
        return _signal.SIG_DFL if before == self._on_signal else before

    def _get(self, signalnum: int, /) -> Any:
        handler = self._getsignal(signalnum)
        return _signal.SIG_DFL if handler == self._on_signal else handler

    def _on_signal(self, number: int, frame: Any) -> None:
        self._leave(f"signal {number}", 128 + number, lambda: self._die(number))

    def _die(self, number: int) -> None:
        from ctypes import CDLL, c_void_p

        CDLL(None).signal(number, c_void_p(0))  # SIG_DFL; Python's own works in one thread only
        os.kill(os.getpid(), number)

    # --- the end ---

    def _leave(self, how: str, status: int, last: Any) -> None:
        """Call exit() and, when its handlers have run, `last`, which ends the process.

        The C library writes its open files out last of all.  One of them is more than a pipe holds,
        so exit() waits there, and the thread at its other end, who sees the first byte, ends the
        process.  It also does if exit() hangs or crashes: handlers of other libraries run as well.
        """
        if not self._leaving.acquire(False):
            select.select([], [], [], 2 * _PATIENCE_S)  # another thread is at it
        self._note(how)
        try:
            import ctypes

            reader, writer = os.pipe()
        except (OSError, ImportError):  # no descriptors are left
            return last()

        def finish() -> None:
            select.select([reader], [], [], _PATIENCE_S)
            last()

        if not self._in_thread(finish):
            return last()
        libc = ctypes.CDLL(None)
        size = 1 << 17
        content = ctypes.create_string_buffer(size)
        libc.fdopen.restype = ctypes.c_void_p
        file = ctypes.c_void_p(libc.fdopen(writer, b"w"))
        libc.setvbuf(file, content, 0, ctypes.c_size_t(size))
        libc.fwrite(bytes(size), ctypes.c_size_t(1), ctypes.c_size_t(size - 1), file)
        for name in ("stdout", "stderr"):  # what the C library holds back would be lost without us
            libc["__fpurge"](ctypes.c_void_p.in_dll(libc, name))
        for number in _CRASHES:  # whoever crashes in exit() stands still, and `last` is in time
            libc.signal(number, libc.pause)
        libc.exit(status)

    def _in_thread(self, finish: Any) -> bool:
        """Call this in another thread; False: there is none.  Python 3.12.0 to 3.12.2 start none
        once the main thread has come to its end: the one of `_watch` takes it over."""
        try:
            start_thread(finish)
        except RuntimeError:
            if self._watcher in (None, get_ident()):
                return False
            self._finish = finish
            os.write(self._waking, _FINISH)
        return True

    def _note(self, how: str) -> None:
        if self._write is not None:
            self._write({"end": how, "ns": time.perf_counter_ns()})

    def _watch(self) -> None:
        """Start a thread that takes a signal up if the main thread does not: handlers run between
        two instructions of Python, and it may be inside a call for long.  torchrun ends its ranks by
        SIGTERM when one failed, and the others are in a collective that waits for that one
        (scripts/real/elastic.py): without us they end at once, without this thread by SIGKILL after
        30 s."""
        reader, writer = (_raised(number) for number in os.pipe())
        os.set_blocking(writer, False)
        before = _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before != -1:  # the program's own
            _signal.set_wakeup_fd(before)
            return
        on_signal, now = self._on_signal, self._getsignal

        def watch() -> None:
            with contextlib.suppress(OSError):  # the program closed it
                while number := os.read(reader, 1):
                    if number == _FINISH:
                        self._finish()
                    elif now(number[0]) == on_signal:
                        select.select([], [], [], _NOTICE_S)
                        if not self._leaving.locked():
                            on_signal(number[0], None)

        self._waking, self._watcher = writer, start_thread(watch)

    def _before_fork(self) -> None:
        """A signal for the child must not reach the thread above through the pipe that both
        have."""
        self._masks[get_ident()] = _signal.pthread_sigmask(_signal.SIG_BLOCK, _HELD)

    def _after_fork(self) -> None:
        if (mask := self._masks.pop(get_ident(), None)) is not None:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def _forked(self) -> None:
        """A child without nsys, with its parent's libraries and their handlers: as without us."""
        self._armed = False
        if VARIABLE in os.environ:  # a child that uses CUDA itself is recorded, too
            self._pid, self._write = os.getpid(), None
        if self._sockets:
            self._sockets = _sockets()  # nsys connects anew
        if self._watcher is not None:
            _signal.set_wakeup_fd(-1)
            self._watcher = None
        for number in _HELD:
            if self._getsignal(number) == self._on_signal:
                self._signal(number, _signal.SIG_DFL)
        self._after_fork()


def _raised(number: int) -> int:
    """The same descriptor under a high number, where so many are allowed."""
    try:
        raised = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:
        return number
    os.close(number)
    return raised


def _sockets() -> set[str]:
    """The sockets that this process has open."""
    links = set()
    for number in Files.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile: the one that listed them
            links.add(Files.readlink("/proc/self/fd/" + number))
    return {link for link in links if link.startswith("socket:")}


def start_thread(function: Any) -> int:
    """In a thread that takes no signal which another one blocks; its identifier."""
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        return start_new_thread(function, ())
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
