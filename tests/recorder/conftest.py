"""Programs on a GPU that is made of C (`fakecuda.c`), with the recorder's library built for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm

from nsysalign.record import cupti

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
COMPILER = shutil.which("gcc") or shutil.which("cc")


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    """A folder with a driver, a CUPTI, a torch and the package with its library: what a machine with a
    GPU has."""
    if COMPILER is None or sys.platform != "linux":
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("machine")
    (folder / "cuda").mkdir()
    fake = folder / "cuda" / "libcupti.so.13"
    compiled(HERE / "fakecuda.c", fake, "-Wl,-soname,libcupti.so.13")
    (folder / "cuda" / "libcuda.so.1").symlink_to(fake.name)
    shutil.copytree(ROOT / "tests" / "collect" / "faketorch", folder / "python")
    shutil.copy(HERE / "fakestreams.py", folder / "python" / "torch" / "cuda" / "streams.py")
    shutil.copytree(ROOT / "nsysalign", folder / "python" / "nsysalign", ignore=shutil.ignore_patterns("*.so"))  # fmt: skip
    library = folder / "python" / "nsysalign" / "recorder" / "_library.so"
    compiled(
        ROOT / "nsysalign" / "recorder" / "library.c", library, "-fvisibility=hidden", "-Wextra"
    )
    return folder


def compiled(source: Path, out: Path, *options: str) -> None:
    words = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", *options, "-ldl", "-lpthread"]
    subprocess.run([COMPILER, source, *words, "-o", out], check=True)


@dataclass
class Program:
    """Somebody's folder on that machine."""

    folder: Path
    machine: Path

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "LD_LIBRARY_PATH": str(self.machine / "cuda"),
            "PYTHONPATH": str(self.machine / "python"), "FAKE_CUDA": "1",
            "OPENBLAS_NUM_THREADS": "1", **more,  # tests/conftest.py
        }  # fmt: skip

    def python(self, *words: object, **environment: str) -> subprocess.CompletedProcess:
        """A command, or a script that imports nsysalign."""
        if {"PYTHONPATH", "LD_LIBRARY_PATH"} & set(environment):
            return self.cold(*words, **environment)
        return warm.python([*map(str, words)], self.folder, self.environment(**environment))

    def cold(self, *words: object, **environment: str) -> subprocess.CompletedProcess:
        """From the start of its interpreter on."""
        return subprocess.run(
            [sys.executable, *map(str, words)], cwd=self.folder, env=self.environment(**environment),
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def written(self, text: str) -> None:
        (self.folder / "script.py").write_text(BEGIN + text)

    def run(self, text: str, *options: str, how: str = "cupti", **environment: str):
        """`nsysalign run` of a script of this text, into the folder `out`."""
        self.written(text)
        return self.python(
            "-m", "nsysalign", "run", "--recorder", how, "--no-clocks", "-o", "out", *options, "script.py", **environment
        )  # fmt: skip

    def alone(self, text: str, **environment: str):
        """A script with the recorder, but without the tool around it; its recordings."""
        library = next((self.machine / "python" / "nsysalign" / "recorder").glob("*.so"))
        raw = self.folder / "raw"
        raw.mkdir(exist_ok=True)
        self.written(text)
        added = {cupti.INJECTION: str(library), "NSYSALIGN_DIR": str(self.folder)}
        return self.cold("script.py", **added, **environment), sorted(raw.glob("*.cupti"))


#: `timed(n)`: n pairs of events around two kernels of 30 and 50 us.
BEGIN = """
import os, signal, sys, time, torch
from torch.cuda.streams import gpu, launch, synchronize
def timed(n=20):
    for _ in range(n):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); launch(0, 30); launch(1, 50); b.record()
        synchronize(); a.elapsed_time(b)
"""


#: The tables that NVTX's header keeps of a process, handed to the recorder (`library`): `slots` are its functions.
NVTX = """
slots = {m: (c_void_p * 16)() for m in (1, 5)}
tables = {m: (c_void_p * 17)(*[addressof(s) + 8 * i for i in range(16)]) for m, s in slots.items()}
@CFUNCTYPE(c_int, c_int, POINTER(c_void_p), POINTER(c_uint))
def table(module, out, size):
    out[0], size[0] = addressof(tables[module]), 16
    return 1
exported = (c_uint64 * 2)(16, cast(table, c_void_p).value)
@CFUNCTYPE(c_void_p, c_uint)
def export(number):
    return addressof(exported) if number == 1 else None
assert library.InitializeInjectionNvtx2(export) == 1
"""


@pytest.fixture
def program(tmp_path, machine):
    return Program(tmp_path, machine)
