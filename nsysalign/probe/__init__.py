"""The part of nsysalign that runs inside the user's process.  Standard library only.

Loaded by `probe_path/sitecustomize.py` under the module name `_nsysalign_probe`, because the user's
interpreter need not have nsysalign installed; everything here imports its siblings relatively.
Starting costs an import hook and nothing else: the real work (`runtime`) begins when torch.cuda is
imported or a region is entered.

What to read for what, in this order:

    hook          run a function when a module is imported
    wrap          torch.cuda's events, streams and graphs: call, two time stamps, one row
    foreign       the same for torch.Event, CuPy, numba; a program that profiles itself
    runtime       what one process knows: files, regions, clocks of the trace, forks
    slots, store  the layout of a row, and the mapped files that rows are written into
    sites         which line of the user's code called, or read a clock
    timers        readings of time.perf_counter and the like
    reference     every event on one clock of its GPU (calibrate: how long a record takes here)
    injection     NVTX by ctypes;  cuda_driver: the driver by ctypes
    garbage       pauses of Python's garbage collector
    offcpu        time in which a thread did not run
    forks         processes that the program forks
    recorder      the recorder of our own, if the run has it, steps aside
    ends          lets nsys collect its last rows before a sudden end
    blame         whose exception it was;  tampering: whether a timer was replaced
    interrupts    Ctrl-C during longer work of the probe
    standard      the standard library, whatever lies beside the script
    rawtime       clocks and files as they are before any user code

If anything goes wrong here it is written to a file and the probe deactivates itself: it never
raises into the user's code. Exceptions of the user's own code that arrive meanwhile, from a signal
handler or another thread, are passed on (`blame`).
"""

from __future__ import annotations

import _thread
import atexit
import os

from .blame import is_ours, pass_on
from .rawtime import Files  # loaded here: the clocks as they are before any user code

#: Folder of the raw files of this run, None if the probe does not run in this process.
raw_dir: str | None = None
#: Where the process was started: relative file names of code objects refer to it.
start_cwd: str = ""
#: Lines for the log, kept until there is one.
early: list[dict] = []

_runtime = None
_timers = None
#: Set by `nsys profile --trace-fork-before-exec=true`.
_FOLLOWS_FORKS = "QUADD_FORK_UNSAFE"


def start(run_dir: str) -> None:
    """Arm the import hook.  Called once per process, before any user code."""
    global raw_dir, start_cwd, _timers
    from .hook import install
    from .standard import Importer

    our_builtins = globals()["__builtins__"]  # of the probe's modules alone (sitecustomize)
    our_builtins["__import__"] = Importer(our_builtins["__import__"])

    raw_dir = os.path.join(run_dir, "raw")
    start_cwd = os.getcwd()
    if _FOLLOWS_FORKS in os.environ:
        _spare_forks_of_threads()
    before = {}
    if os.environ.get("NSYSALIGN_HOST_TIMERS", "1") != "0":
        import sys

        from .slots import CLOCKS
        from .tampering import keep
        from .timers import Timers

        _timers = Timers(sys.modules[__name__], start_cwd)
        _timers.install()
        keep(sys.modules["time"], "time", *CLOCKS)
        # they exchange the clocks, in C, for ones that tell another time.  A finder that comes before
        # ours (pytest's, for plugins as time_machine is one) knows files of Python only
        before = dict.fromkeys(("time_machine", "_time_machine", "freezegun"), _exchanged)
    atexit.register(_exits)
    install(before, dict.fromkeys(_WRAPPED, _imported))


def _spare_forks_of_threads() -> None:
    """nsys's library, told to record forked children, lets those of a thread that is not the main
    one die of SIGSEGV.  It asks its variable at every fork; without it such a child lives, and
    leaves no rows."""
    main = _thread.get_ident()

    def before() -> None:
        if _thread.get_ident() != main:
            os.unsetenv(_FOLLOWS_FORKS)

    def after() -> None:
        if _FOLLOWS_FORKS in os.environ:
            os.putenv(_FOLLOWS_FORKS, "1")

    def child() -> None:
        nonlocal main
        main = _thread.get_ident()
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=child)


def _exchanged(name: str) -> None:
    from .timers import UNLOGGED

    _timers.step_aside(f"{UNLOGGED}{name.strip('_')} exchanges the clocks")


def running():
    """The running probe, created on first use."""
    global _runtime
    if _runtime is None:
        from .runtime import Runtime

        _runtime = Runtime(raw_dir, start_cwd)
    return _runtime


#: Modules that are wrapped once they are imported: name -> (file, function).
_WRAPPED = {
    "torch.cuda.streams": ("wrap", "wrap_streams"),
    "torch.cuda.graphs": ("wrap", "wrap_graphs"),
    "torch": ("foreign", "wrap_torch"),
    "cupy.cuda": ("foreign", "wrap_cupy"),
    "numba.cuda.cudadrv.driver": ("foreign", "wrap_numba"),
    "torch.autograd.profiler": ("foreign", "wrap_profiler"),
    "triton.profiler.profile": ("foreign", "wrap_proton"),
}


def _imported(module) -> None:
    from importlib import import_module

    file, function = _WRAPPED[module.__name__]
    getattr(import_module(f"{__name__}.{file}"), function)(module, running())


def leave() -> None:
    """Everything as it was before `start`, but for what cannot be: functions registered for forks, which
    do nothing any more.  For a process that was entered by `nsysalign.recording`."""
    import sys

    from .hook import remove

    remove()
    if "wrap" in (name.rpartition(".")[2] for name in sys.modules if name.startswith(__name__)):
        from .wrap import put_back

        put_back()
    atexit.unregister(_exits)
    if _runtime is not None:
        _runtime.leave()


def _exits() -> None:
    """Registered first, so it is the last of all that Python calls at its exit."""
    try:
        if _timers is not None:
            _timers.exits()
        if _runtime is not None:
            _runtime.ending.exits()
    except Exception as error:
        failed(error)


def enter_region(name: str) -> None:
    """Called by `nsysalign.region`; raises nothing of ours."""
    _region(name)


def exit_region() -> None:
    """Called by `nsysalign.region`; raises nothing of ours."""
    _region(None)


def _region(entered: str | None) -> None:
    runtime, depth = None, 0
    try:
        runtime = running()
        depth = len(runtime.me().stack)
        if entered is not None:
            runtime.enter_region(entered)
        if _timers is not None and runtime.me().stack:
            _timers.region(entered is not None, *runtime.me().stack[-1][:2])
        if entered is None:
            runtime.leave_regions(depth - 1)
    except BaseException as error:
        if runtime is not None and entered is None:
            runtime.leave_regions(depth - 1)
        elif runtime is not None and not is_ours(error):  # to `with` it was never entered
            runtime.leave_regions(depth)
        failed(error)


def failed(error: BaseException) -> None:
    """Note a failure of the probe itself; after a few the probe deactivates itself for good.  To be
    called where the exception is caught: an exception that is not the probe's own is raised again.
    """
    global _failures
    pass_on(error)
    _failures += 1
    if _runtime is not None and _failures >= 3:
        _runtime.aside = True
    if _failures > 10 or raw_dir is None:
        return
    # a kind that says nothing of the user's (`record.convert.errors`), then the rest for a report
    kind, text = type(error).__name__, str(error)
    if isinstance(error, OSError) and isinstance(error.errno, int):
        kind += f": {os.strerror(error.errno)}"
    try:
        try:
            import traceback  # not at the top: every Python process of the run pays for that

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        except TypeError as second:  # the program replaced functions that it calls
            pass_on(second)
        text = "\n    ".join([f"!{kind}", *text.splitlines()]) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        number = Files.open(f"{raw_dir}/{os.getpid()}.errors", flags, 0o600)
        try:
            Files.write(number, text.encode("utf-8", "replace"))
        finally:
            Files.close(number)
    except Exception as second:
        pass_on(second)
        if _runtime is not None and not _runtime.ready and _runtime.last_words is not None:
            words = f"!{kind}\n".encode("utf-8", "replace")[:200]
            _runtime.last_words[: len(words)] = words
        # on a full disk pages that are mapped can still be written; at shutdown nothing is imported
        try:
            _runtime.note(text=f"the probe had a problem: {type(error).__name__}")
        except Exception as third:
            pass_on(third)


_failures = 0
