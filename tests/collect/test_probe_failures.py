"""What the probe itself cannot do: the program does not notice, it is noted where possible, and the
probe goes on or steps aside."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsysalign.engine import load
from nsysalign.record.command import probe_environment
from nsysalign.record.convert import errors

from .conftest import FAKE_TORCH, ROOT
from .user import fresh_environment

WORK = """
import torch
a, b = torch.cuda.Event(), torch.cuda.Event()
for _ in range(6):
    a.record(); b.record()
    b.wait()
    torch.cuda.Stream().wait_event(a)
    a.elapsed_time(b)
print(a.elapsed_time(b) >= 0)
"""

#: name -> (program, environment, what is noted, how many records are kept all the same)
FAULTS = {
    "no folder": ("import os\nos.rmdir(os.environ['NSYSALIGN_DIR'] + '/raw')\n" + WORK, {}, None, 0),
    "no file may grow": (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n" + WORK, {}, "File too large", 0,
    ),
    "no descriptors": (
        "import torch, traceback, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n" + WORK, {}, None, 0,
    ),
    "the clock fails": (
        "import sys, time\nown = time.perf_counter_ns\ndef broken():\n    if sys._getframe(1).f_code.co_filename.endswith('cuda/streams.py'): return own()  # the fake torch's own\n    raise OSError('no clock')\ntime.perf_counter_ns = time.time_ns = broken\n" + WORK, {}, "", 12,
    ),
    "a damaged driver library": (WORK, {"LD_LIBRARY_PATH": "damaged"}, "invalid ELF header", 12),
    "a damaged profiler library": (WORK, {"NVTX_INJECTION64_PATH": "damaged/libcuda.so.1"}, "invalid ELF header", 12),
    "a profiler library without NVTX": (WORK, {"NVTX_INJECTION64_PATH": "other/libcuda.so.1"}, "undefined symbol", 12),
    "texts cannot be written": (
        "import json\nown = json.dumps\ndef broken(*a, **k): raise ValueError('no texts')\njson.dumps = broken\n" + WORK, {}, "no texts", 0,
    ),
    "mocks that raise a bare class": (
        "import ctypes, json, os, threading, traceback\ndef broken(*a, **k): raise OSError\n"
        "json.dumps = ctypes.CDLL = threading.get_native_id = os.getpid = os.pipe = broken\n" + WORK, {}, None, 0,
    ),
    "a torch whose private calls changed": (
        "import torch\ndef changed(device, index): pass\ntorch._C._cuda_getCurrentStream = changed\n" + WORK, {},
        "missing 1 required positional argument: 'index'", 12,
    ),
    "functions of Python's own replaced": (
        "import builtins, torch\nfor n in 'abs any getattr id isinstance len min open str type'.split(): setattr(builtins, n, None)\n"
        + WORK, {}, "'NoneType' object is not callable", 0,
    ),
    "a mistake of ours in the clocks": (
        "import sys, time, torch\ntorch.cuda.init()\ndef broken(*a): raise RuntimeError('our mistake')\n"
        "sys.modules['_nsysalign_probe']._timers.sites.learn = broken\ntime.perf_counter()\n" + WORK, {}, "our mistake", 12,
    ),
    "another file system": (
        "import builtins, os\ndef broken(*a, **k): raise FileNotFoundError\nbuiltins.open = broken\n"
        "for n in 'close ftruncate listdir open posix_fallocate readlink'.split(): setattr(os, n, broken)\n" + WORK, {}, "", 12,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_of_it_reaches_the_program(probed, tmp_path, name):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "libcuda.so.1").write_bytes(b"not a library" * 100)
    (tmp_path / "other").mkdir()
    libraries = re.findall(r"/\S+\.so\S*", Path("/proc/self/maps").read_text())
    library = next(library for library in libraries if "libm" in library)
    shutil.copy(library, tmp_path / "other" / "libcuda.so.1")
    program, more, said, records = FAULTS[name]
    run = probed(program, env={key: str(tmp_path / value) for key, value in more.items()})
    assert (run.status, run.out, run.err) == (0, "True\n", "")
    assert len(run.lines("record")) == records, run.errors
    if said is not None:
        assert said in run.errors and bool(said) == bool(run.errors)
        assert run.errors.count("Traceback") <= 3, "after three it steps aside"


def test_of_what_the_probe_could_not_do_only_the_kind_is_told(probed, tmp_path):
    """The text of an exception may be the user's: a __eq__ that raises, a path, a token in a
    message."""
    broken = "import torch\ndef no(*a): raise KIND\ntorch.cuda._sleep = no\n"
    broken += "e = torch.cuda.Event(); e.record()"
    kinds = {
        "ValueError('x\\n!ghp_s3cret')": "ValueError",
        "OSError(28, 'ghp_s3cret')": "OSError: No space left on device",
    }
    for number, (kind, said) in enumerate(kinds.items()):
        run = probed(broken.replace("KIND", kind), calibrate=True)
        assert "ghp_s3cret" in run.errors and "Traceback" in run.errors
        assert errors(tmp_path / f"run{number}" / "raw") == [said]
    assert errors(tmp_path) == []


def test_its_memory_does_not_grow_with_the_log(probed):
    """20 MB of slots; it keeps 10 of them mapped."""
    run = probed("""
import collections, glob, os, torch
torch.cuda.streams.done = collections.deque(maxlen=1)
def mapped():
    return sum(line.count(".rec") for line in open("/proc/self/maps"))
a, b = torch.cuda.Event(), torch.cuda.Event()
for n in range(60_000):
    a.record(); b.record(); a.elapsed_time(b)
print(mapped())
for path in glob.glob(os.environ["NSYSALIGN_DIR"] + "/raw/*.rec"):
    os.unlink(path)
""")
    assert 3 <= int(run.out) <= 17 and run.errors == "", run.err


TIMED = """
import collections, os, resource, torch
torch.cuda.streams.done = collections.deque(maxlen=1)  # the fake's own notes take memory
a, b, c = (torch.cuda.Event() for _ in range(3))
def timed(n):
    a.record()
    for _ in range(n):
        c.record()
        c.wait()
    b.record()
for _ in range(2):  # known places, known pair
    timed(1)
    a.elapsed_time(b)
os.access("BEGIN", 0)
timed(500)
os.access("END", 0)
a.elapsed_time(b)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
timed(4000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


def test_no_system_call_inside_a_timed_region(tmp_path):
    """Neither a write nor any other: a record is a store into mapped pages.  Nor does such a store
    fault.  The clocks of CPU time are read no oftener than every 2 ms."""
    traced = ["strace", "-o", "/dev/null", "true"]
    if not shutil.which("strace") or subprocess.run(traced).returncode:
        pytest.skip("no strace here")
    (tmp_path / "raw").mkdir()
    (tmp_path / "script.py").write_text(TIMED)
    env = probe_environment(fresh_environment(FAKE_TORCH, ROOT), tmp_path, calibrate=False)
    command = ["strace", "-f", "-qq", "-o", "calls", sys.executable, "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, check=True, timeout=60, stdout=subprocess.PIPE
    )
    lines = (tmp_path / "calls").read_text().splitlines()
    begin, end = (
        next(i for i, line in enumerate(lines) if f'"{mark}"' in line) for mark in ("BEGIN", "END")
    )
    calls = [line.partition(" ")[2].strip() for line in lines[begin + 1 : end]]
    cpu_times = [c for c in calls if c.startswith("clock_gettime(CLOCK_") and "CPUTIME_ID" in c]
    assert len(cpu_times) <= 20  # of 502 records
    seldom = ("brk(", "munmap(")
    assert (
        begin < end and [c for c in calls if c not in cpu_times and not c.startswith(seldom)] == []
    )
    (slots,) = (p.read_bytes() for p in (tmp_path / "raw").glob("*.rec"))
    assert sum(slots[i] == slots[i + 63] == 1 for i in range(0, len(slots), 64)) == 4510
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (5, 14):
        assert int(done.stdout) < 30, "8,000 slots lie in 125 pages"


@pytest.mark.parametrize("name", ["json", "ctypes", "mmap", "threading", "struct", "select"])
def test_a_file_of_the_program_with_the_name_of_one_of_the_standard_librarys(
    probed, tmp_path, name
):
    """The probe imported it, and lost every pair in silence."""
    text = f"import os\nif os.environ.get('NSYSALIGN_DIR'): origin = {name!r}\n"
    (tmp_path / f"{name}.py").write_text(text)
    program = f"import sys\nwas = {name!r} in sys.modules\nimport torch\nassert was == ({name!r} in sys.modules)\n"
    run = probed(program.replace("import torch\n", "import torch\nimport torch.cuda\n") + WORK)
    assert (run.out, run.errors) == ("True\n", ""), run.err
    assert len(run.lines("record")) == 12


def test_what_such_a_file_is_to_the_program(probed, tmp_path):
    """Its own, before and after the probe looked for another."""
    (tmp_path / "json.py").write_text("mine = 1\n")
    for program in (f"import json\n{WORK}", f"{WORK}import json\n"):
        run = probed(program + "print(json.mine)\n")
        assert run.out == "True\n1\n" and run.errors == "", run.err
        assert len(run.lines("record")) == 12


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change user or root folder")
@pytest.mark.parametrize("call", ["os.setuid(65534)", "os.chroot('/proc/self/cwd')"])
def test_a_process_that_gave_up_its_rights_before_the_first_event(probed, call):
    """Its pairs were lost without a note: no file could be opened, that of errors neither."""
    begin, _, rest = WORK.partition("a, b =")
    run = probed(f"import os{begin}import torch.cuda\n{call}\na, b ={rest}")
    assert (run.out, run.logs) == ("True\n", {}), run.err
    assert re.match("!(PermissionError|FileNotFoundError): ", run.errors)


def test_the_answer_says_that_the_probe_had_a_problem(whole):
    """It was said beside the script's output only, once."""
    text = "import json\ndef broken(*a, **k): raise ValueError('no texts')\npair()\njson.dumps = broken\nimport os\nif not os.fork():\n    pair()\n"
    process = whole.run(text)
    _, _, err = whole.the_end(process)
    (run_dir,) = whole.run_dirs()
    said = "the probe had a problem: ValueError"
    assert said in err and said in load(run_dir).notes, err
    assert whole.analyze(run_dir).returncode == 0 and said in load(run_dir).notes
