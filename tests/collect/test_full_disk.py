"""No space left: the program does not notice, what fitted is kept, nothing is half-written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recordings import unpack

from nsysalign.files import write_lines
from nsysalign.record.convert import convert

from .conftest import FAKE_TORCH, ROOT
from .logs import read_log
from .user import PAIRS, RUNS, small_disk


def test_a_full_disk_does_not_touch_the_program(tmp_path):
    """A store into a mapped page that has no block would end the program with SIGBUS."""
    prefix = small_disk(tmp_path / "raw", "4m")
    (tmp_path / "script.py").write_text(PAIRS + "pair(50_000)\nprint('done')\n")
    keep = f"{sys.executable} script.py; echo $?; cp -r raw kept; rm -rf raw/*"
    env = {
        **os.environ, "NSYSALIGN_DIR": str(tmp_path), "NSYSALIGN_CALIBRATE": "0",
        "PYTHONPATH": f"{ROOT}/nsysalign/probe_path:{FAKE_TORCH}",
    }  # fmt: skip
    done = subprocess.run(
        [*prefix, "sh", "-c", keep], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n0\n", "")
    (log,) = convert(tmp_path / "kept", tmp_path, tmp_path)
    lines = read_log(log)
    assert sum(line["type"] == "elapsed" for line in lines) > 10_000, "what fitted is kept"
    said = [line.get("text", "") for line in lines if line["type"] == "note"]
    said += [p.read_text() for p in (tmp_path / "kept").glob("*.errors")]
    assert any("No space left" in text for text in said)


def recorded(user, pairs: int) -> tuple[str, list[str]]:
    """(standard error, names of files) of a run of pairs in regions, which are in nsys's recording,
    on a disk of 3 MB.  The program ended well, the tool did not."""
    prefix = small_disk(user.folder / RUNS, "3m")
    listing = f'"$@"; s=$?; find {RUNS} -type f -printf "%f\\n" >files; exit $s'
    program = (
        "from nsysalign.region import region\n"
        f"for _ in range({pairs}):\n    with region('r'):\n        pair(1)\nprint('done')"
    )
    process = user.run(program, prefix=(*prefix, "sh", "-c", listing, "sh"))
    out, err = process.communicate(timeout=240)
    assert process.returncode == 3 and out == "done\n" and "Traceback" not in err, err
    names = (user.folder / "files").read_text().split()
    assert not [n for n in names if "partial" in n]
    return err, names


@pytest.mark.nsys
def test_an_export_that_finds_no_room_leaves_no_half_file(real):
    err, names = recorded(real, 20_000)
    assert "No space left" in err and "next: free some space" in err
    assert "trace.nsys-rep" in names and "trace.sqlite" not in names


@pytest.mark.nsys
def test_a_recording_that_finds_no_room_is_kept_elsewhere(real):
    err, names = recorded(real, 60_000)
    (kept,) = (Path(path) for path in re.findall(r"is kept as (/\S+\.qdstrm):", err))
    try:
        assert kept.stat().st_size > 10_000 and "trace.qdstrm" not in names
    finally:
        shutil.rmtree(kept.parent)


def test_what_has_its_final_name_is_whole(tmp_path):
    def lines():
        yield "one"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_lines(tmp_path / "x.jsonl", lines())
    assert list(tmp_path.iterdir()) == []
    write_lines(tmp_path / "x.jsonl", ['"\udcff"', "two"])
    assert (tmp_path / "x.jsonl").read_text() == '"\\udcff"\ntwo\n'


def test_a_disk_that_is_full_when_the_analysis_is_stored(tmp_path):
    prefix = small_disk(tmp_path / "small", "60k")
    trace, _ = unpack("graph_loop_h100", tmp_path)
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "nsysalign", "analyze", "-q", trace, "-o", "small/out"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 3 and "analysis.db: database or disk is full" in done.stderr
    assert "Traceback" not in done.stderr
