"""Finding nsys and choosing its flags, against a shell script that plays nsys."""

from __future__ import annotations

import subprocess
import sys

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

HELP = """
usage: nsys profile [<args>] [application] [<application args>]

\t-c, --capture-range=

\t   When '-c nvtx' is used ... with --not-a-flag option.
\t   --also-not-a-flag is mentioned at the beginning of a line? No: indented like text.

\t--cpuctxsw=

\t--cuda-graph-trace=<granularity>[:<launch origin>]

\t(Experimental) --ib-switch-metrics-device=<IB switch GUID>[,<IB switch GUID>...]

\t--nvtx-domain-[include|exclude]=

\t-s, --sample=
\t-t, --trace=
\t--trace-fork-before-exec=
"""


@pytest.fixture
def fake(tmp_path):
    """`fake(version, export)`: an executable that answers like nsys."""

    def make(
        version: str = "2024.2.3.38-242334140272v0", export: str = "exit 1", name: str = "nsys"
    ) -> str:
        path = tmp_path / name
        (tmp_path / "help.txt").write_text(HELP)
        path.write_text(f"""#!/bin/sh
case "$1" in
  --version) echo "NVIDIA Nsight Systems version {version}";;
  profile) cat {tmp_path}/help.txt;;
  export) {export};;
esac
""")
        path.chmod(0o755)
        return str(path)

    return make


def test_an_explicit_nsys_is_the_only_one_and_path_comes_before_install_folders(
    fake, monkeypatch, tmp_path
):
    monkeypatch.setenv("NSYS", "/from/environment")
    assert candidates("/explicit") == ["/explicit"] and candidates() == ["/from/environment"]
    assert find_nsys(fake()).path == fake()
    with pytest.raises(NsysError, match="/from/environment: no such program"):
        find_nsys()
    for version in ("target-linux-x64", "target-linux-sbsa-armv8"):
        (tmp_path / ".cache/nsysalign/nsys" / version).mkdir(parents=True)
        (tmp_path / ".cache/nsysalign/nsys" / version / "nsys").write_text("")
    found = candidates(environ={"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert len([c for c in found if "/.cache/" in c]) == 2
    assert found[0] == str(tmp_path / "nsys")


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
    options = ["sample", "cpuctxsw", "cuda-graph-trace", "python-sampling", "python-sampling-frequency"]  # fmt: skip
    options += more.split()
    listed = "".join(f"\t--{option}=\n\n" for option in options)
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
    asked, notes = profile_arguments(
        nsys, tmp_path / "trace", accurate=True, graph_trace="node", python_hz=100
    )
    assert subprocess.run(asked).returncode == 0
    assert len(notes) == 2 - len(set(more.split()) - {"cuda-trace-all-apis"})
    export_json(nsys, tmp_path / "trace.nsys-rep", tmp_path / "out")
    assert (tmp_path / "out").read_text() == ("json" if version < "2025" else "jsonlines")


def test_export_is_judged_by_the_file(fake, tmp_path):
    report, sqlite = tmp_path / "trace.nsys-rep", tmp_path / "trace.sqlite"
    # the 5th argument is the output: export --type sqlite -o OUT REPORT
    said = 'printf "Processing 5 events: [== 43%%]\\r[=== 100%%]" >&2'
    write = said + '; printf "SQLite format 3\\000" > "$5"; exit 3'
    seen = []
    tool = describe(fake(export=write))
    assert export_sqlite(tool, report, sqlite, seen.append) == sqlite and sqlite.exists()
    assert seen[-1] == 100
    sqlite.unlink()
    with pytest.raises(NsysError, match=r"left no whole SQLite file .exit status 0.: disk full"):
        export_sqlite(describe(fake(export="echo disk full >&2; exit 0")), report, sqlite)
    cut = r'head -c 28 /dev/zero | tr "\0" " " | sed "s/^.\{16\}/SQLite format 3\x00/;s/$/\x00\x00\x00\x09/" > "$5"'
    with pytest.raises(NsysError, match="left no whole SQLite file"):  # as on a full disk
        export_sqlite(describe(fake(export=cut)), report, sqlite)
    assert not list(tmp_path.glob("*.sqlite"))
