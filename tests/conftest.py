"""Markers that depend on the machine: skipped, with the reason, where what they need is missing."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from recordings import Recorded, analysed
from remembered import remembering

# no time limit for an example, which a busy machine would exceed, and the same examples each time
settings.register_profile("calm", deadline=None, derandomize=True, database=None)
settings.load_profile("calm")


HERE = Path(__file__).parent

# numpy starts a thread per core for linear algebra, which hardly anything here does: a tenth of its import
# in each of the hundreds of commands that tests start
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _gpu() -> str | None:
    if not Path("/proc/driver/nvidia").exists() and not shutil.which("nvidia-smi"):
        return "no NVIDIA GPU"
    return None


def _nsys() -> str | None:
    from nsysalign.errors import NsysError
    from nsysalign.record.nsys import find_nsys

    try:
        find_nsys()
    except NsysError as error:
        return f"no nsys: {error.message}"
    return None


def _browser() -> str | None:
    return None if shutil.which("chromium") or shutil.which("google-chrome") else "no Chromium"


def _nvcc() -> str | None:
    return None if shutil.which("nvcc") else "no nvcc"


def _torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "no torch"


#: What a package or a Python newer than ours says of calls that still work.
_TO_COME = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")


def pytest_configure(config: pytest.Config) -> None:
    """Warnings that are raised in tests are errors, as in nsysalign (pyproject.toml); of what will
    change in a package or a Python to come only where CI runs, not where a user does.  Under nohup
    or as a background job a Ctrl-C or hang-up is ignored, and so by all that tests start: not
    here."""
    ours = {path.stem for path in HERE.rglob("*.py")} | {path.name for path in HERE.iterdir()}
    ours = {name for name in ours if name.isidentifier() and not name.startswith("__")}
    config.addinivalue_line("filterwarnings", rf"error:::({'|'.join(sorted(ours))})(\.|$)")
    if "CI" not in os.environ:
        for kind in _TO_COME:
            config.addinivalue_line("filterwarnings", f"default::{kind}")
    for number, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share."""
    room = tmp_path_factory.getbasetemp()
    return room.parent if "PYTEST_XDIST_WORKER" in os.environ else room


@pytest.fixture(scope="session")
def recorded(of_all_workers: Path) -> Callable[..., Recorded]:
    """`recorded(name)`: a recording and its analysis, which all workers share."""
    return partial(analysed, room=of_all_workers / "recorded")


@pytest.fixture
def remembered(of_all_workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands analyse the same files once, for all workers (`tests/remembered.py`)."""
    from nsysalign import engine

    remembering_one = remembering(engine.analyze_inputs, of_all_workers / "remembered")
    monkeypatch.setattr(engine, "analyze_inputs", remembering_one)


@pytest.fixture
def puzzle(request: pytest.FixtureRequest, recorded: Callable[..., Recorded]):
    """(name, run directory, analysis with the segments of all intervals) of a puzzle."""
    found = recorded(request.param)
    return request.param, found.folder, found.analysis


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: looked through for garbage again and again,
    it took a sixth of the time of the tests."""
    from nsysalign.memory import look_for_garbage_less_often

    gc.collect()
    gc.freeze()
    look_for_garbage_less_often()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("rerunfailures"):
        again = pytest.mark.flaky(
            reruns=2, reruns_delay=5, only_rerun=["nsys itself broke down"]
        )  # collect/user.py says so
        for item in items:
            if "nsys" in getattr(item, "fixturenames", ()):
                item.add_marker(again)
    # the longest first: begun last, all other workers would wait for it
    items.sort(key=lambda item: item.get_closest_marker("torch") is None)
    needs = {"gpu": _gpu, "nsys": _nsys, "browser": _browser, "torch": _torch, "nvcc": _nvcc}
    for marker, missing in needs.items():
        marked = [i for i in items if i.get_closest_marker(marker)]
        reason = missing() if marked else None
        for item in marked if reason else []:
            item.add_marker(pytest.mark.skip(reason=reason))
