"""An nsys that does not do its part: what was collected is kept, said and, where possible,
analysed.

Where a real nsys cannot be made to fail on demand a shell script plays it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from thorough import ALL, part
from waiting import command_line, wait_for, wait_until

from nsysalign.errors import NsysError
from nsysalign.record import nsys as nsys_module
from nsysalign.record.nsys import describe, export_sqlite

from .user import RUNS, analysed, elapsed

DATABASE = 'printf "SQLite format 3\\000"'


def test_an_nsys_that_cannot_be_used_is_said_before_anything_runs(played):
    user = played(version="2020.1.1")
    tool = Path(user.env["NSYS"])

    def refused() -> str:
        process = user.run("print('ran')")
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (3, "") and "next: install Nsight Systems" in err
        assert "Traceback" not in err and not (user.folder / RUNS).exists()
        return err

    assert "is too old, 2022.4 or newer is needed" in refused()
    tool.write_text(tool.read_text().replace("2020.1.1", ""))
    assert "contains no version number" in refused()
    tool.chmod(0o644)
    assert "it is not executable" in refused()
    tool.unlink()
    assert "no such program" in refused()


def test_what_nsys_lacks_permission_for_is_passed_on(played):
    """It says so among its messages and goes on; or it refuses to start and the script never
    runs."""
    said = "WARNING: CPU context switch tracing not supported: perf_event_paranoid"
    warns = f"echo '{said}'"
    user = played(profile=f'{warns}; APP "$@"; FINISH', export=f'{DATABASE} >"$OUT"')
    assert f"note: nsys: {said}" in user.the_end(user.run("pair()"))[2]
    tool = Path(user.env["NSYS"])
    refuses = "echo 'Insufficient permissions to create a session'; exit 1"
    tool.write_text(tool.read_text().replace(warns, refuses))
    status, out, err = user.the_end(user.run("print('ran')"))
    assert (status, out) == (3, "")
    assert "left no report (it did not start the script): Insufficient permissions" in err


def test_an_nsys_that_fails_before_it_begins_the_script_is_started_again(played):
    """Seen with 2024.2 where the processors were busy."""
    said = "Local Endpoint is not available."
    fails = f'if [ ! -e "$OUT.tried" ]; then touch "$OUT.tried"; echo "{said}"; case "$OUT" in *dies*) kill -ABRT $$;; esac; exit; fi'
    user = played(profile=f'{fails}; APP "$@"; s=$?; FINISH; exit $s', export=f'{DATABASE} >"$OUT"')
    text = "import sys\npair(5)\nprint('ran')\nsys.exit(4)"
    runs = {name: user.run(text, script=f"{name}.py") for name in ("ends", "dies")}
    for name, process in runs.items():
        run_dir = user.folder / RUNS / f"{name}-001"
        process.wait(timeout=120)
        _, out, err = user.the_end(process, run_dir)
        assert (out, elapsed(run_dir)) == ("ran\n", 5), err
        note = f"nsys failed before it started the script, and was started again: {said}"
        manifest = json.loads((run_dir / "run.json").read_text())
        assert note in err and note in manifest["notes"] and manifest["exit_status"] == 4


#: name -> (what this nsys does, status, what the script took, pairs in its log, what is said).  A script
#: that was begun is never run again.
FAILS = {
    "late": ("kill -STOP $$", 3, 0, 0, "left no report ("),
    "hangs": ('APP "$@"; kill -STOP $$', 6, 0, 3, "left no report ("),
    "ends": ('APP "$@"; exit 0', 6, 0, 3, "left no report (the script ended with status 6)"),
    "fails": ('APP "$@"; exit 1', 6, 0, 3, "1 event logs are kept"),
    "killed": ('APP "$@"; kill -9 $$', 6, 0, 3, "left no report (the script ended with status 6)"),
    "busy": ("""APP "$@"; exec 9<> <(:); end=$((${EPOCHREALTIME/[.,]/} + 4000000))
        while [ ${EPOCHREALTIME/[.,]/} -lt $end ]; do
            for i in {1..30000}; do :; done; read -t 0.1 -u 9  # a quarter of a core, by one process
        done; FINISH""", 6, 0, 3, ""),
    "long": ('APP "$@"; FINISH', 6, 4, 3, ""),
}  # fmt: skip
if not ALL:  # test_the_reason_of_a_failing_import_is_found_in_its_dump has one that ends so
    del FAILS["ends"]


def test_an_nsys_that_ends_hangs_or_takes_its_time(played):
    """Before the script and after it, busy for long, with a script that goes on for long."""
    cases = "".join(f"*/{name}-*) {does};;\n" for name, (does, *_) in FAILS.items())
    user = played(profile=f'case "$OUT" in {cases} esac', export=f'{DATABASE} >"$OUT"')
    runs = {}
    for name, (_, _, takes_s, *_) in FAILS.items():
        text = f"import time\npair(3)\ntime.sleep({takes_s})\nprint('ran')\nraise SystemExit(6)"
        runs[name] = user.run(text, script=f"{name}.py", impatient=3)
    for name, (_, wanted, _, pairs, said) in FAILS.items():
        run_dir = user.folder / RUNS / f"{name}-001"
        runs[name].wait(timeout=120)
        status, out, err = user.the_end(runs[name], run_dir)
        assert (status, elapsed(run_dir)) == (wanted, pairs), f"{name}: {err}"
        assert out.count("ran\n") == bool(pairs)
        assert said in err and ("left no report (" in err) == bool(said), f"{name}: {err}"


@pytest.mark.nsys
def test_a_report_whose_import_failed_is_imported_again(real):
    """nsys's own importer breaks down now and then and leaves the raw stream: here it is killed."""
    process = real.run("pair(3000)")
    killed = 0
    while process.poll() is None and not killed:
        time.sleep(0.005)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = command_line(path.parent.name).split(b"\0")
            if words[0].endswith(b"QdstrmImporter") and b"/nsysalign-" in b" ".join(words):
                os.kill(int(path.parent.name), signal.SIGKILL)
                killed += 1
    real.the_end(process)
    (run_dir,) = real.run_dirs()
    assert killed and (run_dir / "trace.nsys-rep").stat().st_size
    assert (run_dir / "trace.sqlite").is_file() and not (run_dir / "trace.qdstrm").exists()
    assert elapsed(run_dir) == 3000


def test_the_reason_of_a_failing_import_is_found_in_its_dump(played):
    """As nsys 2024.2.3 printed it for a run that started thousands of processes."""
    dump = r"""Import Failed
    Items { Type: OriginalLine
        Value: \"25\" }
    Items {
        Type: ErrorText
        Value: \"Multiple different definitions of the same VmTidToPidInfo\"
    }
Generated:
    x.qdstrm"""
    user = played(profile=f'APP "$@"; echo "{dump}"; exit 0')
    status, _out, err = user.the_end(user.run("pair(6)"))
    reason = "Multiple different definitions of the same VmTidToPidInfo; 1 event"
    assert status == 3 and f"ended with status 0): {reason}" in err
    assert "Generated" not in err and "OriginalLine" not in err


def test_an_export_that_fails_leaves_report_and_logs(played):
    user = played(
        profile='APP "$@"; FINISH',
        export="""case "$OUT" in *fails*) exit 1;; *crashes*) kill -9 $$;; *garbage*) printf half >"$OUT";;
            *) touch "$OUT";; esac""",
    )
    names = part(("crashes", "garbage", "empty"), ("fails", "crashes", "garbage", "empty"))
    runs = {name: user.run("pair(6)", script=f"{name}.py") for name in names}
    for name, process in runs.items():
        run_dir = user.folder / RUNS / f"{name}-001"
        process.wait(timeout=120)
        status, _, err = user.the_end(process, run_dir)
        assert status == 3 and "nsys export left no whole SQLite file" in err
        assert "next: check the free space" in err
        assert (run_dir / "trace.nsys-rep").is_file() and not (run_dir / "trace.sqlite").exists()
        assert elapsed(run_dir) == 6


def test_an_export_that_hangs_is_stopped(played, tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_module, "STALL_S", 1)
    waits = f'sleep 98765 & echo $! >"{tmp_path}/child"; wait'
    user = played(export=f'{DATABASE} >"$OUT"; echo "Processing 5 events: [= 7%]" >&2; {waits}')
    tool = describe(user.env["NSYS"])
    with pytest.raises(NsysError, match=r"made no progress for 1 s and was stopped") as error:
        export_sqlite(tool, tmp_path / "trace.nsys-rep", tmp_path / "trace.sqlite")
    assert "nsysalign analyze" in error.value.next_step
    assert not list(tmp_path.glob("trace*"))
    child = (tmp_path / "child").read_text().strip()
    wait_until(lambda: not command_line(child), "its child never ended")


def test_signals_during_the_export_are_held(played):
    slow = f'cd "$(dirname "$OUT")"; touch exporting; while [ ! -e go ]; do sleep 0.05; done; {DATABASE} >"$OUT"'
    user = played(profile='APP "$@"; FINISH', export=slow)
    process = user.run("pair(6)")
    wait_for(user.folder / RUNS / "script-001" / "exporting")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.killpg(process.pid, number)
    held = 0
    while held < 3:
        held += "finishing the run directory, please wait" in (line := process.stderr.readline())
        assert line, "the signals were not held"
    (user.folder / RUNS / "script-001" / "go").touch()
    user.the_end(process)
    assert all((user.run_dirs()[0] / name).is_file() for name in ("trace.sqlite", "run.json"))


@pytest.mark.nsys
def test_when_we_are_killed_during_the_export_analyze_starts_it_anew(whole):
    """Half an export and half a log lie about, neither under its final name."""
    tool = Path(whole.env["NSYS"])
    first, export = tool.read_text().splitlines()[1:]
    half = 'printf half >"$5"; echo $$ >pid; mv pid exporting; exec sleep 1000'
    first = f'cd "{whole.folder}"\n{first}'
    tool.write_text(f"#!/bin/bash\n{first}\nif [ ! -e exporting ]; then {half}; fi\n{export}\n")
    process = whole.run("import os\npair(4)\nos.fork()\npair(3)")
    wait_for(whole.folder / "exporting")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    exporter = int((whole.folder / "exporting").read_text())
    os.kill(exporter, signal.SIGKILL)  # a real one ends by itself
    (run_dir,) = whole.run_dirs()
    assert [p.name for p in run_dir.glob("*.sqlite")] == ["trace.partial.sqlite"]
    one, two = sorted(run_dir.glob("events-*.jsonl"))
    (run_dir / "raw").mkdir(exist_ok=True)
    done = whole.analyze(run_dir)
    assert done.returncode == 0, done.stderr
    assert (elapsed(run_dir), analysed(run_dir)) == (10, 10) and one.exists() and two.exists()
    assert not [p.name for p in run_dir.rglob("*") if "partial" in p.name]
