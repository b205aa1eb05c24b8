"""Finding nsys and choosing its flags, against a script that plays nsys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsysalign.errors import NsysError
from nsysalign.record.nsys import (
    candidates,
    describe,
    export_json,
    export_sqlite,
    find_nsys,
    profile_arguments,
)


def test_an_explicit_nsys_is_the_only_one_and_path_comes_before_install_folders(
    played, monkeypatch, tmp_path
):
    monkeypatch.setenv("NSYS", "/from/environment")
    assert candidates("/explicit") == ["/explicit"] and candidates() == ["/from/environment"]
    tool = played().env["NSYS"]
    assert find_nsys(tool).path == tool
    with pytest.raises(NsysError, match="/from/environment: no such program"):
        find_nsys()
    for version in ("target-linux-x64", "target-linux-sbsa-armv8"):
        (tmp_path / ".cache/nsysalign/nsys" / version).mkdir(parents=True)
        (tmp_path / ".cache/nsysalign/nsys" / version / "nsys").write_text("")
    found = candidates(environ={"PATH": str(Path(tool).parent), "HOME": str(tmp_path)})
    assert len([c for c in found if "/.cache/" in c]) == 2 and found[0] == tool


#: What an nsys has, in its help: options of `profile` beyond those of all, and formats of `export`.
VERSIONS = {
    "2022.4.1": ("", "sqlite, hdf, text, json, info"),
    "2024.2.3": ("trace-fork-before-exec", "sqlite, hdf, text, json, info, arrow,\n  and parquetdir"),
    "2026.2.1": ("trace-fork-before-exec cuda-event-trace cuda-trace-all-apis", "sqlite, jsonlines"),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_an_nsys_of_each_version_is_asked_for_nothing_that_it_lacks(tmp_path, version):
    """It refuses options and formats that its own help does not list, as a real one does."""
    more, formats = VERSIONS[version]
    options = [
        "sample",
        "cpuctxsw",
        "cuda-graph-trace",
        "python-sampling",
    ]
    options += more.split()
    listed = "   Text with --not-a-flag in it.\n" + "".join(f"\t--{x}=\n\n" for x in options)
    path = tmp_path / "nsys"
    path.write_text(f"""#!{sys.executable}
import re, sys
what, arguments = sys.argv[1], sys.argv[2:]
if what == "--version":
    print("NVIDIA Nsight Systems version {version}")
elif arguments == ["--help"]:
    print({listed!r} if what == "profile" else "  -t, --type=  Possible values are: " + {formats!r} + ". And more.")
elif what == "profile":
    sys.exit(any(a[2:].partition("=")[0] not in {options!r} for a in arguments if a.startswith("--")))
else:
    if arguments[1] not in re.findall(r"\\w+", {formats!r}):
        sys.exit("unrecognised type")
    open(arguments[3], "w").write(arguments[1])
""")
    path.chmod(0o755)
    nsys = describe(str(path))
    wanted = {"accurate": True, "graph_trace": "node", "sample_python": True}
    asked, notes = profile_arguments(nsys, tmp_path / "trace", **wanted)
    assert subprocess.run(asked).returncode == 0
    assert len(notes) == 2 - len(set(more.split()) - {"cuda-trace-all-apis"})
    export_json(nsys, tmp_path / "trace.nsys-rep", tmp_path / "out")
    assert (tmp_path / "out").read_text() == ("json" if version < "2025" else "jsonlines")


def test_export_is_judged_by_the_file(played, tmp_path):
    """One that is whole is good whatever the status; one that lacks a page, as on a full disk, is
    not."""
    report, sqlite, shown = tmp_path / "trace.nsys-rep", tmp_path / "trace.sqlite", []
    said = 'printf "Processing 5 events: [== 43%%]\\r[=== 100%%]" >&2'
    cut = r'head -c 28 /dev/zero | tr "\0" " " | sed "s/^.\{16\}/SQLite format 3\x00/;s/$/\x00\x00\x00\x09/" >"$OUT"'
    user = played(
        export=f'{said}; [ -e cut ] && {cut} || printf "SQLite format 3\\000" >"$OUT"; exit 3'
    )
    tool = describe(user.env["NSYS"])
    assert export_sqlite(tool, report, sqlite, shown.append) == sqlite and sqlite.exists()
    assert shown[-1] == 100
    sqlite.unlink()
    (user.folder / "cut").touch()
    with pytest.raises(NsysError, match="left no whole SQLite file"):
        export_sqlite(tool, report, sqlite)
    assert not list(tmp_path.glob("*.sqlite"))
