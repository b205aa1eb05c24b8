"""What `nsysalign analyze` wrote the last time, and whether it would write the same again.  Next to the results lies
`.nsysalign-cache.json`: a digest of everything that determines them (the whole trace, the event logs, the options, this
program's own files), digests of the results themselves, and what was printed.  It is used only if all of them are unchanged;
any doubt means analysing again.  It may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nsysalign import __version__
from nsysalign.files import replacing
from nsysalign.untrusted import contents, open_regular

NAME = ".nsysalign-cache.json"
_FORMAT = 1
_BLOCK = 1 << 20
#: What else determines how text is written to a terminal.
_ENVIRONMENT = (
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
    "TTY_COMPATIBLE",
    "JUPYTER_COLUMNS",
)


class Cache:
    """The cache of one output directory, for files by the role they play (`rundir.Inputs.roles`).

    `fresh()` says whether the existing results belong to these inputs; `keep(printed)` remembers that they do.
    """

    def __init__(
        self,
        inputs: Mapping[str, Sequence[Path]],
        output: Path,
        results: Sequence[str],
        options: Any,
    ) -> None:
        self._inputs = [(role, path) for role, paths in inputs.items() for path in paths]
        self._output, self._results, self._options = output, tuple(results), options
        self._before = [_identity(p) for _, p in self._inputs]
        self._pool: ThreadPoolExecutor | None = None
        self._digest: Future[str] | None = None
        self._known: dict[str, Any] | None = None
        self.note = ""  # why the existing results cannot be used, for debugging

    def fresh(self) -> bool:
        """Whether all results belong to these inputs.  If not, digesting the inputs starts in parallel with the analysis."""
        known = self._read()
        if known is None:
            self._begin()
            return False
        self._digest = _done(self._key())
        if known["key"] != self._digest.result():
            self.note = "the trace, an event log, an option or nsysalign itself has changed"
        elif known["results"] != self._result_digests():
            self.note = "a result is not what was written"
        else:
            self._known = known
            return True
        return False

    def printed(self) -> str | None:
        """What was printed to a terminal like this one, after `fresh()`."""
        return (self._known or {}).get("printed", {}).get(self._terminal())

    def keep(self, printed: str | None = None) -> None:
        """The results have been written: remember what they belong to.  Nothing is kept if an input changed meanwhile."""
        if self._digest is None:
            self._begin()
        assert self._digest is not None
        key = self._digest.result()
        if self._pool is not None:
            self._pool.shutdown()
        if [_identity(p) for _, p in self._inputs] != self._before:
            return
        texts = {} if self._known is None else dict(self._known["printed"])
        if (
            printed is not None and not self._output.is_absolute()
        ):  # it names the page; no absolute path is stored
            texts[self._terminal()] = printed
        data = {"format": _FORMAT, "key": key, "results": self._result_digests(), "printed": texts}
        try:
            with replacing(self._output / NAME) as temporary:
                temporary.write_text(json.dumps(data), "ascii")
        except OSError as error:  # without the cache the next analysis takes as long as this one
            self.note = f"not kept: {error}"

    def _read(self) -> dict[str, Any] | None:
        try:
            known = json.loads(contents(self._output / NAME).decode())
            good = (
                known["format"] == _FORMAT
                and isinstance(known["key"], str)
                and isinstance(known["results"], dict)
                and all(isinstance(t, str) for t in [*known["printed"], *known["printed"].values()])
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.note = f"{NAME} is damaged ({error})"
            return None
        return known if good else None

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._digest = self._pool.submit(self._key)

    def _key(self) -> str:
        parts = [__version__, _own_files(), self._options]
        parts += [[role, p.name, _digest(p)] for role, p in self._inputs]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _terminal(self) -> str:
        """What determines how the same table looks: width, colours, encoding, and the name of the page."""
        looks = [
            sys.stdout.isatty(),
            *shutil.get_terminal_size(),
            getattr(sys.stdout, "encoding", ""),
        ]
        key = json.dumps(
            [str(self._output), *looks, *(os.environ.get(name) for name in _ENVIRONMENT)]
        )
        return hashlib.sha256(key.encode()).hexdigest()

    def _result_digests(self) -> dict[str, str | None]:
        return {name: _digest(self._output / name) for name in self._results}


def _done(value: str) -> Future[str]:
    future: Future[str] = Future()
    future.set_result(value)
    return future


def _digest(path: Path) -> str | None:
    """Digest of a whole file: size and time would be quicker, but not reliable."""
    state = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while block := file.read(_BLOCK):
                state.update(block)
    except OSError:
        return None
    return state.hexdigest()


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        s = path.stat()
    except OSError:
        return None
    return (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)


def _own_files() -> str:
    """This program as it is installed: its files, sizes and times."""
    root = Path(__file__).parents[1]
    files = sorted(p for p in root.rglob("*") if p.suffix in (".py", ".js", ".css", ".html"))
    listed = [(str(p.relative_to(root)), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
