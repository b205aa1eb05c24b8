"""`with nsysalign.recording() as run:` records a stretch of a running program: a cell of a notebook, a test, a
request of a service.

    >>> import nsysalign
    >>> with nsysalign.recording() as run:            # doctest: +SKIP
    ...     step()
    >>> run.show()                                    # doctest: +SKIP

Events and regions come from the probe, which is started here and taken out again; what the GPU did from the
recorder of our own (`recorder/library.c`).  Where that cannot record, the event log alone answers.
"""

from __future__ import annotations

import html
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from nsysalign import rundir
from nsysalign.errors import NsysAlignError, UsageError
from nsysalign.probe.recorder import INSIDE, VARIABLE, Recorder
from nsysalign.record import cupti
from nsysalign.record.session import MARK, written

_PROBE = "_nsysalign_probe"
_START = Path(__file__).with_name("probe_path") / "sitecustomize.py"


class Recorded:
    """What a stretch of the program left.  `path`: its run directory, removed at the process's end unless it
    was named or saved; `notes`: what could not be recorded."""

    def __init__(self, path: Path, temporary: bool) -> None:
        self.path = path
        self.notes: list[str] = []
        self.recording = True
        self._temporary = temporary
        self._analysis: Any = None

    @property
    def analysis(self) -> Any:
        """An `Analysis`, or an `UnprofiledRun` where only events could be recorded.  Raises UsageError
        inside the block, TraceError if nothing was recorded."""
        if self.recording:
            raise UsageError("it is still recording", "look at it after the with block")
        if self._analysis is None:
            from nsysalign.show.notebook import analyze
            from nsysalign.unprofiled_run import analyze_run

            run = rundir.RunDirectory(self.path)
            self._analysis = analyze_run(run) if run.unprofiled else analyze(self.path)
        return self._analysis

    def show(self) -> None:
        """Print the answer as `nsysalign run` does."""
        from rich.console import Console

        self._render(Console(force_jupyter=False))  # text, not a block of HTML per line

    def _render(self, console: Any) -> None:
        from nsysalign.show import screen, unprofiled_run
        from nsysalign.unprofiled_run import UnprofiledRun

        found = self.analysis
        for note in self.notes:
            console.print(f"note: {note}", markup=False, highlight=False)
        if isinstance(found, UnprofiledRun):
            unprofiled_run.render(
                found, console, "nsysalign doctor (says what the breakdown needs)"
            )
        else:
            from nsysalign.answer import answer

            screen.render(answer(found), console, "")

    def _repr_html_(self) -> str:
        """The answer's table, or, where only events could be recorded, its screen as text."""
        if self.recording:
            return f"<pre>{html.escape(repr(self))}</pre>"
        try:
            table = getattr(self.analysis, "_repr_html_", None)
            text = "\n".join(f"note: {note}" for note in self.notes) if table else self._screen()
        except NsysAlignError as error:
            table, text = None, str(error)
        return (f"<pre>{html.escape(text)}</pre>" if text else "") + (table() if table else "")

    def _screen(self) -> str:
        from rich.console import Console

        written = io.StringIO()
        self._render(Console(file=written, width=100, force_jupyter=False))
        return written.getvalue()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Copy the run directory to `path`, a new folder: `nsysalign analyze PATH`, `nsysalign.load(PATH)`.
        Raises NsysError if it exists."""
        if self.recording:
            raise UsageError("it is still recording", "save it after the with block")
        target = rundir.make_run_dir("recording", Path(path))
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    def __repr__(self) -> str:
        return f"<Recorded: {'still recording' if self.recording else self.path.name}>"

    def __del__(self) -> None:
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def recording(
    path: str | os.PathLike[str] | None = None, *, untraced: bool = False
) -> Iterator[Recorded]:
    """Record events and the GPU's activity in this process while the block runs; of CUDA graphs the kernels,
    one by one.

    `path`: the run directory, new or empty, else a temporary one.  `untraced`: in turns, so that
    repetitions run at plain speed as well (`nsysalign run --untraced`).  Raises UsageError where
    something records already, and NsysError if the folder cannot be made.
    """
    _refuse()
    folder = (
        rundir.make_run_dir("recording", Path(path))
        if path
        else Path(tempfile.mkdtemp(prefix="nsysalign-"))
    )
    run = Recorded(folder, temporary=path is None)
    (folder / rundir.RAW).mkdir(mode=0o700)
    why = cupti.why_not(os.environ)
    recorder = Recorder(str(cupti.library())) if why is None else None
    before = dict(os.environ)
    os.environ |= {"NSYSALIGN_DIR": str(folder), "NSYSALIGN_HOST_TIMERS": "0", INSIDE: "1"}
    if recorder is not None:
        # as a whole, a graph that was made before ends the program when it is replayed (a segmentation
        # fault in libcupti 13.0), and one that is made inside when it is replayed afterwards (an illegal
        # memory access); node by node both work
        given = cupti.environment(before, "node", untraced=untraced)
        os.environ |= {k: v for k, v in given.items() if k != cupti.INJECTION}
        _synchronise()
        if not recorder.start(str(folder / rundir.RAW), given["NSYSALIGN_CUPTI"]):
            why, recorder = recorder.problem(), None
    if recorder is None:
        os.environ.pop("NVTX_INJECTION64_PATH", None)
        os.environ.pop(VARIABLE, None)
        run.notes.append(f"only events are recorded: CUPTI cannot record here: {why}")
    probe = _entered()
    try:
        yield run
    finally:
        _synchronise()
        probe.leave()
        for name in [n for n in sys.modules if n == _PROBE or n.startswith(f"{_PROBE}.")]:
            del sys.modules[name]
        if recorder is not None:
            recorder.stop(finalize=True)
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        run.recording = False
        run.notes += written(folder, MARK, recorder is not None)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext nsysalign` in a notebook: a cell that begins with %%nsysalign is recorded, and its answer
    shown below it."""
    shell.register_magic_function(lambda line, cell: _cell(shell, cell), "cell", "nsysalign")


def _cell(shell: Any, cell: str) -> Recorded | None:
    """Run a cell as IPython would, recorded.  None where it failed: its own traceback is shown."""
    with recording() as run:
        result = shell.run_cell(cell)
    return run if result.success else None


def _refuse() -> None:
    if os.environ.get(INSIDE):
        raise UsageError(
            "a recording is open in this process already", "leave it before the next one begins"
        )
    if os.environ.get("NSYSALIGN_DIR") or os.environ.get("NSYS_PROFILING_SESSION_ID"):
        raise UsageError(
            "this process is being recorded already, by nsysalign run or nsys",
            "run it plainly (python SCRIPT.py), or name parts of it: with nsysalign.region(NAME)",
        )


def _entered() -> ModuleType:
    """The probe, started in this process as `nsysalign run` starts it."""
    start = ModuleType("_nsysalign_start")
    start.__file__ = str(_START)
    SourceFileLoader(start.__name__, str(_START)).exec_module(start)
    start._start()
    if _PROBE not in sys.modules:
        raise NsysAlignError("the probe did not start", "this is a bug in nsysalign")
    return sys.modules[_PROBE]


def _synchronise() -> None:
    """So that work issued outside is not taken for the block's, and the block's own is complete."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
