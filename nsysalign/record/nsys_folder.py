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

_PREFIX = "nsysalign-"
_KEPT = "kept.qdstrm"  # what found no room in the run directory


@contextlib.contextmanager
def nsys_folder(run_dir: Path) -> Iterator[Path]:
    """A folder for nsys's temporary files, among them everything that it records, until the block
    ends: nsys makes them readable by others.  `run` in it leads to the run directory, under a name
    that nsys accepts whatever it is really called. A recording that nsys did not make a report of
    is moved there (`trace.qdstrm`).  It is locked as long as we live (`remove_left_folders`)."""
    import fcntl  # only where things are recorded

    remove_left_folders()
    try:
        place = os.path.abspath(tempfile.gettempdir())
        if place != place.encode(errors="ignore").decode():  # nsys takes UTF-8 only
            place = "/tmp"
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise NsysError(
            f"nsys needs a folder for temporary files, and none can be made: {error.strerror}",
            "TMPDIR=/a/folder nsysalign run ...",
        ) from error
    try:
        (folder / "run").symlink_to(run_dir, target_is_directory=True)
        yield folder
        _keep_recording(folder, run_dir)
    finally:
        if not any(folder.glob(_KEPT)):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_folders() -> None:
    """Remove such folders of ours whose nsysalign was killed and whose run has ended."""
    try:
        import fcntl
    except ImportError:  # where nothing is recorded nothing is left, and analysing works
        return

    for place in {os.path.abspath(tempfile.gettempdir()), "/tmp"}:
        for link in Path(place).glob(f"{_PREFIX}*/run"):
            folder, run_dir = link.parent, Path(os.path.realpath(link))
            with contextlib.suppress(OSError):
                owner = folder.lstat().st_uid
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    kept = any(folder.glob(_KEPT))
                    if (
                        owner == os.getuid()
                        and link.is_symlink()
                        and not kept
                        and not of_run(run_dir)
                    ):
                        _keep_recording(folder, run_dir)
                        shutil.rmtree(folder)
                finally:
                    os.close(lock)


def _keep_recording(folder: Path, run_dir: Path) -> None:
    streams = sorted(folder.glob("*.qdstrm"), key=lambda path: path.stat().st_mtime)
    if streams and run_dir.is_dir() and not any(run_dir.glob("trace.*")):
        _keep(streams[-1], run_dir / "trace.qdstrm")


def _keep(stream: Path, place: Path) -> None:
    """Move a recording to its place, or say where it stays if there is no room for it."""
    partial = place.with_name(place.name + ".partial")
    try:
        shutil.move(stream, partial)
        partial.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        kept = stream.replace(stream.with_name(_KEPT))
        say(
            f"nsys's own recording does not fit into {place.parent} ({error.strerror}) and is kept as {kept}: to go on "
            f"with it, move it to {place} first"
        )
