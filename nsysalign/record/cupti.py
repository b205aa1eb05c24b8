"""The recorder of our own (`recorder/library.c`): whether it works here, how a run is started with it, and
what it left."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nsysalign.files import replacing
from nsysalign.probe.recorder import OPTIONS, TURNS

_PACKAGE = Path(__file__).resolve().parents[1]
_HEAD = struct.Struct("<III4x")
INJECTION = "CUDA_INJECTION64_PATH"
_COPY_BYTES = 1 << 24
#: Where libcupti lies beside torch and in CUDA's toolkit, newest first.
_IN_WHEELS = ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")
_IN_TOOLKIT = ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


def library() -> Path | None:
    """The recorder's library, None where it was not built: no compiler when nsysalign was installed,
    or another system than Linux."""
    return next(iter(sorted((_PACKAGE / "recorder").glob("_library*.so"))), None)


def libraries_of_cupti(environ: Mapping[str, str]) -> list[Path]:
    """Every libcupti that can be found without loading anything: of wheels in this Python's path, and of
    CUDA's toolkits."""
    folders = [Path(entry) / name for entry in sys.path if entry for name in _IN_WHEELS]
    roots = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    roots += sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    folders += [root / name for root in roots for name in _IN_TOOLKIT]
    libraries = [path for folder in folders for path in sorted(folder.glob("libcupti.so*"))]
    return list({path.resolve(): path for path in libraries}.values())


def why_not(environ: Mapping[str, str]) -> str | None:
    """Why it cannot record here, as far as that can be known before; None if it can."""
    if sys.platform != "linux":
        return "it works on Linux only"
    if library() is None:
        return (
            "its library was not built when nsysalign was installed (no C compiler): "
            "install one, such as gcc, then in the clone: pip install --force-reinstall --no-deps ."
        )
    if environ.get(INJECTION) and environ[INJECTION] != str(library()):
        return f"another tool is injected into CUDA programs here (unset {INJECTION})"
    if environ.get("NVTX_INJECTION64_PATH"):
        return "another tool listens to NVTX here (unset NVTX_INJECTION64_PATH)"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    return None


def environment(
    environ: Mapping[str, str],
    graph_trace: str | None = None,
    accurate: bool = False,
    untraced: bool = False,
) -> dict[str, str]:
    """What is added to a program's environment: the driver loads the library when a process first uses
    a GPU, NVTX when the first range opens, the probe to make it step aside."""
    our_library = str(library())
    options = ["nodes"] * (graph_trace == "node") + ["accurate"] * accurate + [TURNS] * untraced
    if extra_options := environ.get(OPTIONS):
        options.append(extra_options)
    return {
        INJECTION: our_library,
        "NVTX_INJECTION64_PATH": our_library,
        "NSYSALIGN_RECORDER": our_library,
        OPTIONS: " ".join(options),
        "NSYSALIGN_CUPTI": os.pathsep.join(map(str, libraries_of_cupti(environ))),
    }


def gathered(raw: Path, out: Path) -> tuple[Path | None, list[str]]:
    """The recordings of a run's processes as one file, `out`, and what the recorder said.  None where
    no process recorded anything of CUDA's."""
    files = [path for path in sorted(raw.glob("*.cupti")) if not path.is_symlink()]
    messages: dict[str, None] = {}
    holds = False
    for path in files:
        with open(path, "rb") as file:
            for kind, begin, size in _chunks(path):
                holds |= kind == "B"
                if kind == "M":
                    file.seek(begin)
                    messages[file.read(size).decode("utf-8", "replace")] = None
    if not holds:
        return None, list(messages)
    with replacing(out) as partial, open(partial, "wb") as target:
        for path in files:
            _copy(path, target)
    return out, list(messages)


def _chunks(path: Path) -> Iterator[tuple[str, int, int]]:
    """Kind, place and size of each whole chunk."""
    end = path.stat().st_size
    with open(path, "rb") as file:
        at = 0
        while at + _HEAD.size <= end:
            file.seek(at)
            kind, _, size = _HEAD.unpack(file.read(_HEAD.size))
            if at + _HEAD.size + size > end:
                return
            yield chr(kind), at + _HEAD.size, size
            at += _HEAD.size + (size + 7 & ~7)


def _copy(path: Path, target: object) -> None:
    """Its whole chunks, and a message where the last one was cut short: the process was killed."""
    last = max((begin + (size + 7 & ~7) for _, begin, size in _chunks(path)), default=0)
    left = last
    with open(path, "rb") as file:
        while left > 0 and (piece := file.read(min(left, _COPY_BYTES))):
            target.write(piece)
            left -= len(piece)
    if last < path.stat().st_size and last:
        text = b"its end was cut off when the process was killed: the last records are lost"
        target.write(_HEAD.pack(ord("M"), 0, len(text)) + text + bytes(-len(text) % 8))
