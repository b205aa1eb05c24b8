"""A script finds what it would find if it were started plainly: descriptors, folder, umask,
signals, arguments."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from waiting import wait_for

from .user import elapsed, processes_named

STATE = """
import fcntl, json, os, re, sys
def look(number):
    found = os.fstat(number)
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    return [os.readlink(f"/proc/self/fd/{number}"), found.st_ino, flags, fcntl.fcntl(number, fcntl.F_GETFD)]
status = open("/proc/self/status").read()
numbers = []
for number in os.listdir("/proc/self/fd"):
    try:
        numbers.append((int(number), look(int(number))))
    except OSError:  # of the listing, and the status
        pass
state = {
    "descriptors": dict(numbers),
    "umask": re.search("Umask:(.*)", status)[1],
    "blocked": re.search("SigBlk:(.*)", status)[1],
    "ignored": int(re.search("SigIgn:(.*)", status)[1], 16) & ~(1 << 31),  # 32 is the C library's own
    "folder": os.fsencode(os.readlink("/proc/self/cwd")).hex(),
    "arguments": [os.fsencode(word).hex() for word in sys.argv[2:]],
    "environment": dict(os.environ),
}
with open(sys.argv[1], "w") as file:
    json.dump(state, file)
"""
# what nsys and the probe add to the environment
ADDED = (
    *("NSYS", "QUADD", "LD_", "NVTX_", "CUDA_INJECTION", "PYTHONPATH", "_", "SHLVL", "OLDPWD"),
    *("CUPTI_PROFILE_MODE", "TRACE_START_IMMEDIATELY", "USE_AGENT_API"),
)

pytestmark = pytest.mark.nsys
#: Installed, for `python -m` looks for modules in the working directory first, which may be
#: deleted.
NSYSALIGN = str(Path(sys.executable).with_name("nsysalign"))


def test_under_a_real_nsys_a_script_inherits_what_it_would_inherit_plainly(real):
    """Pipes, sockets, files at their offsets, also at numbers that nsys uses itself; and nothing
    else."""
    (real.folder / "state.py").write_text(STATE)
    folder = Path(os.fsdecode(os.fsencode(real.folder) + b"/\xff"))
    folder.mkdir()
    (real.folder / "text").write_text("abcdef")
    file, hidden = os.open(real.folder / "text", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    os.read(file, 2)
    one, other = socket.socketpair()
    reads, writes = os.pipe()
    jobs = os.pipe()
    at = {3: writes, 4: one.fileno(), 5: file, 6: jobs[0], 9: jobs[1], 100: writes, 8: hidden}

    def begin() -> None:  # in the child: as a shell's `3>&7` would
        moved = {to: os.dup(os.dup(os.dup(n))) for to, n in at.items()}
        spare = {to: os.dup2(n, 500 + to) for to, n in moved.items()}
        for to, n in spare.items():
            os.dup2(n, to, inheritable=to != 8)
        os.umask(0o027)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.close(0)

    arguments = [b"\xff", "é".encode(), b"", b"a b"]
    states = {}
    for how, command in {
        "plain": [sys.executable],
        "tool": [sys.executable, "-m", "nsysalign", "run", "-q", "-o", str(real.folder / "out")],
    }.items():
        to = real.folder / f"{how}.json"
        done = subprocess.run(
            [*command, str(real.folder / "state.py"), str(to), *arguments],
            cwd=folder, env={**real.env, "PYTHONHASHSEED": "0"}, preexec_fn=begin, close_fds=False,
            capture_output=True, text=True, errors="replace", timeout=120,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        states[how] = json.loads(to.read_text())
    plain, tool = states["plain"], states["tool"]
    numbers = {"3", "4", "5", "6", "9", "100"}
    assert numbers <= set(plain["descriptors"]) and "0" not in plain["descriptors"]
    assert tool["descriptors"].pop("0")[0] == "/dev/null", "a closed stdin: see launch.py"
    for state in (plain, tool):  # stdout and stderr are pipes of ours
        state["descriptors"] = {
            n: look if n in numbers else look[0]
            for n, look in state["descriptors"].items()
            if n not in ("1", "2")
        }
    assert tool["descriptors"] == plain["descriptors"]
    assert os.lseek(file, 0, os.SEEK_CUR) == 2
    for key in ("umask", "blocked", "ignored", "folder", "arguments"):
        assert tool[key] == plain[key], key
    assert plain["umask"].strip() == "0027" and bytes.fromhex(plain["folder"]).endswith(b"/\xff")
    for state in (plain, tool):
        known = state["environment"].items()
        state["environment"] = {k: v for k, v in known if not k.startswith(ADDED)}
    assert tool["environment"] == plain["environment"]
    for descriptor in (file, hidden, reads, writes, *jobs):
        os.close(descriptor)
    one.close()
    other.close()


def test_closed_and_full_streams_and_deleted_folders(real):
    """No traceback of ours, and the script runs to its end, as it does plainly."""
    script, gone = real.folder / "script.py", real.folder / "deleted"
    script.write_text(
        "import os, sys, tempfile\nprint(tempfile.gettempdir())\nopen(sys.argv[1], 'w').close()\nsys.exit(5)"
    )
    gone.mkdir()
    (real.folder / "relative").mkdir()
    ways = {
        "all": 'exec "$@" <&- >&- 2>&-',
        "full": 'exec "$@" 2>/dev/full',
        "gone": f'cd {gone} && rmdir {gone} && exec "$@"',
        "temporary": 'TMPDIR=relative exec "$@"',
    }
    runs = {
        name: subprocess.Popen(
            ["sh", "-c", shell, "sh", NSYSALIGN, "run", "-o", str(real.folder / name), str(script), str(real.folder / f"{name}.ran")],
            cwd=real.folder, env=real.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name, shell in ways.items()
    }  # fmt: skip
    for name, process in runs.items():
        out, err = process.communicate(timeout=120)
        ran = (real.folder / f"{name}.ran").exists()
        assert (process.returncode, ran) == (5, True), f"{name}: {err}"
        assert bool(out) == (name != "all"), name
        assert out.endswith("/relative\n") == (name == "temporary"), "as plainly"
        assert not any(text in err for text in ("Traceback", "Error in sitecustomize"))
        assert (real.folder / name / "trace.sqlite").is_file()


def test_what_holds_the_environment_is_its_owners_alone(real):
    """Also in a folder that is open to all, which is closed to others while nsys writes there; nsys
    makes its recording readable by all.  What it had not imported is imported later."""
    out = real.folder / "open"
    out.mkdir(mode=0o755)
    out.chmod(0o755)
    text = (
        "import os, pathlib, time\npathlib.Path('started').touch()\ntime.sleep(2)\n"
        "print(oct(os.stat(os.environ['NSYSALIGN_DIR']).st_mode & 0o777), oct(os.umask(0)))"
    )
    wide = ("sh", "-c", 'umask 022; exec "$@"', "sh")
    process = real.run(text, "-o", "open", prefix=wide, begin="")
    wait_for(real.folder / "started")
    (folder,) = {
        Path(os.fsdecode(entry.split(b"=", 1)[1]))
        for pid in processes_named(b"nsys", out)
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if entry.startswith(b"TMPDIR=")
    }
    (stream,) = folder.glob("*.qdstrm")
    os.link(stream, real.folder / "stream")
    assert folder.stat().st_mode & 0o777 == 0o700
    status, printed, err = real.the_end(process, out)
    assert (status, printed) == (4, "0o700 0o22\n") and not folder.exists(), err
    assert out.stat().st_mode & 0o777 == 0o755
    files = [p for p in out.iterdir() if p.name[:5] in ("trace", "nsys.")]
    assert {p.name for p in files} >= {"trace.nsys-rep", "trace.sqlite", "nsys.log"}
    assert {p.stat().st_mode & 0o777 for p in files} == {0o600}
    elsewhere = real.folder / "report.nsys-rep"
    (out / "trace.nsys-rep").rename(elsewhere)
    (out / "trace.sqlite").unlink()
    (real.folder / "stream").rename(out / "trace.qdstrm")
    for path in (elsewhere, out):
        command = [*wide, sys.executable, "-m", "nsysalign", "analyze", "-q", path]
        done = subprocess.run(
            command, cwd=real.folder, env=real.env, capture_output=True, text=True, timeout=60
        )
        assert "holds no CUDA activity" in done.stderr
    made = [*real.folder.glob("report.nsysalign/*.sqlite"), *out.glob("trace.sqlite")]
    assert [p.stat().st_mode & 0o777 for p in made] == [0o600] * 2


FORKS = """
import multiprocessing, os, pty, subprocess, sys, threading

def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def forks():
    pid = os.fork()
    if pid == 0:
        inner = os.fork()
        os._exit(4 if inner == 0 else 3 if status(inner) == 4 else 9)
    ended = [status(pid)]
    ended.append(subprocess.run([sys.executable, "-c", "raise SystemExit(7)"], preexec_fn=int).returncode)
    pid, _ = pty.fork()
    if pid == 0:
        os._exit(8)
    print(ended + [status(pid)], flush=True)

def double(x):
    return 2 * x

if __name__ == "__main__":
    for how in (0, 3):
        pid = os.fork()
        if pid == 0:
            pair()
            sys.exit(how)
        print(status(pid), flush=True)
    thread = threading.Thread(target=forks)
    thread.start()
    thread.join()
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        print(pool.map(double, range(3), chunksize=1))
"""


def test_forked_children_live_and_are_recorded(real):
    """nsys 2024.2 lets those die of SIGSEGV that call exit() where NVTX was not used before the fork
    (see launch.py), and with --trace-fork-before-exec those of a thread; a pool that replaces its
    workers then never ends."""
    status, out, err = real.the_end(real.run(FORKS))
    assert (status, out) == (4, "0\n3\n[3, 7, 8]\n[0, 2, 4]\n"), err
    (run_dir,) = real.run_dirs()
    with closing(sqlite3.connect(f"file:{run_dir / 'trace.sqlite'}?mode=ro", uri=True)) as db:
        text = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"
        sql = f"SELECT count(*) FROM NVTX_EVENTS WHERE {text} = 'nsysalign:sync' GROUP BY globalTid >> 24"
        assert len(db.execute(sql).fetchall()) == 2, "both children that timed something"


DAEMON = """
import os, signal, time
def close_all():
    for number in range(3, 1000):
        try:
            os.close(number)
        except OSError:
            pass
pair()
if os.fork() == 0:
    os.closerange(3, 1000)
    pair()
    raise SystemExit
print(os.wait()[1], flush=True)
close_all()
signal.signal(signal.SIGUSR1, print)
time.sleep(0.2)
with open("mine", "w") as first, open("mine", "w") as second:
    os.kill(os.getpid(), signal.SIGUSR1)
print(os.path.getsize("mine"))
pair(2)
raise SystemExit(4)
"""


def test_a_program_that_closes_all_descriptors_ends(real):
    """nsys waits for ever for a connection that the program has closed; and what Python writes a
    signal's number to is not a file of the program's."""
    status, out, err = real.the_end(real.run(DAEMON, "--timeout", "30"))
    # nsys's library crashes (11) in such a child: always without us, now and then with us
    assert status == 4 and out.startswith(("0\n10 ", "11\n10 ")) and out.endswith("\n0\n"), err
    assert elapsed(real.run_dirs()[0]) >= 3 + out.startswith("0")
