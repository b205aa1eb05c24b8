"""Where nsys writes while it records: a folder that is its owner's alone and goes with the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nsysalign.errors import NsysError
from nsysalign.record.processes import of_run, say
from nsysalign.rundir import STREAM

_PREFIX = "nsysalign-"


@contextlib.contextmanager
def nsys_folder(run_dir: Path) -> Iterator[Path]:
    """A folder for nsys's temporary files, among them everything that it records, until the block
    ends: nsys makes them readable by others.  `run` in it leads to the run directory, under a name
    that nsys accepts whatever it is really called.  It is locked as long as we live."""
    import fcntl  # only where things are recorded

    remove_left_folders()
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=os.path.abspath(tempfile.gettempdir())))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise NsysError(
            f"nsys needs a folder for temporary files, and none can be made: {error.strerror}",
            "TMPDIR=/a/folder nsysalign run ...",
        ) from error
    kept = False
    try:
        (folder / "run").symlink_to(run_dir, target_is_directory=True)
        yield folder
        kept = not _rescued(folder, run_dir)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_folders() -> None:
    """Remove such folders of ours whose nsysalign was killed and whose run has ended."""
    try:
        import fcntl
    except ImportError:  # where nothing is recorded nothing is left, and analysing works
        return
    for link in Path(os.path.abspath(tempfile.gettempdir())).glob(f"{_PREFIX}*/run"):
        folder, run_dir = link.parent, Path(os.path.realpath(link))
        with contextlib.suppress(OSError):
            if not link.is_symlink() or folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not of_run(run_dir) and _rescued(folder, run_dir):
                    shutil.rmtree(folder)
            finally:
                os.close(lock)


def _rescued(folder: Path, run_dir: Path) -> bool:
    """Move a recording that nsys made no report of to the run directory; False, and it is said where
    it stays, if there is no room for it."""
    streams = sorted(folder.glob("*.qdstrm"), key=lambda path: path.stat().st_mtime)
    if not streams or not run_dir.is_dir() or any(run_dir.glob("trace.*")):
        return True
    partial = run_dir / f"{STREAM}.partial"
    try:
        shutil.copyfile(streams[-1], partial)
        partial.replace(run_dir / STREAM)
        return True
    except OSError as error:
        partial.unlink(missing_ok=True)
        say(
            f"nsys's own recording does not fit into {run_dir} ({error.strerror}) and is kept as "
            f"{streams[-1]}: free some space, then: nsysalign analyze {run_dir}"
        )
        return False
