"""A path is found however it is written and whatever stands before it; names of kernels are not taken
for paths."""

from __future__ import annotations

import json
import lzma
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner
from tiny_export import (
    LOG,
    OFFSET,
    PID,
    PROCESS,
    US,
    P,
    call,
    tiny,
    work,
    write_export,
    write_lines,
)

from nsysalign import paths
from nsysalign.cli import cli
from nsysalign.paths import presentable, short_path, without_paths

from .conftest import TESTS, leaks

USER, FOLDER, TOKEN = "alicepl", "hiddendir", "s3cr3ttoken"
SECRETS = {"user": USER, "folder": FOLDER, "token": TOKEN}
HOME = f"/home/{USER}"
DEEP = f"{HOME}/{FOLDER}/run7"
#: How a path is written, and what is left of it.
WRAPPINGS = {
    DEEP: "run7",
    HOME: "~",
    f"in {HOME} now": "in ~ now",
    f"ckpt:{DEEP}": "ckpt:run7",
    f"ckpt:{HOME}": "ckpt:~",
    f"jdbc:sqlite:{DEEP}": "jdbc:sqlite:run7",
    f"模型{DEEP}": "模型run7",
    f"模型/data/{USER}/x": "模型x",
    f"a:{DEEP}": "run7",
    f"/opt/{FOLDER}/a:{DEEP}": "a:run7",
    f"PATH=/usr/{FOLDER}/bin:{HOME}/bin": "PATH=bin:bin",
    f"file%3A%2F%2F%2Fhome%2F{USER}%2Frun7": "run7",
    f"%2Fhome%2F{USER}%2F{FOLDER}%2Frun7": "run7",
    f"%252Fhome%252F{USER}%252Frun7": "run7",
    rf"\/home\/{USER}\/{FOLDER}\/run7": "run7",
    rf"\u002fhome\u002f{USER}\u002frun7": "run7",
    rf"\x2fhome\x2f{USER}\x2frun7": "run7",
    f"&#47;home&#x2f;{USER}&#47;run7": "run7",
    f"$HOME/{FOLDER}/run7": "run7",
    f"${{HOME}}/{FOLDER}/run7": "run7",
    rf"%USERPROFILE%\{FOLDER}\run7": "run7",
    f"~/{FOLDER}/run7": "run7",
    f"~{USER}/{FOLDER}/run7": "run7",
    rf"\\server\{USER}\{FOLDER}\run7": "run7",
    rf"C:\Users\{USER}\{FOLDER}\run7": "run7",
    rf"C:\Users\{USER}": "~",
    rf"C:\\Users\\{USER}\\run7": "run7",
    f"C:/Users/{USER}/run7": "run7",
    f"file:///home/{USER}/run7": "run7",
    f"hdfs://namenode:8020/user/{USER}/run7": "hdfs:run7",
    f"hdfs://namenode/user/{USER}": "hdfs:~",
    f"https://{USER}:{TOKEN}@host/x?token={TOKEN}": "https://host/x",
    f"https://host/x?token={TOKEN}#{TOKEN}": "https://host/x",
    f"https://host/~{USER}/x": "https:x",
    f"{USER}@login7:{DEEP}": "run7",
    f"rsync://{USER}@login7{DEEP}": "rsync:run7",
    f"cmd --out={DEEP} -I{HOME}/include": "cmd --out=run7 -Iinclude",
    f"[{DEEP}] ({DEEP}) <{DEEP}> {{{DEEP}}}": "[run7] (run7) <run7> {run7}",
    f"[step]{DEEP}": "[step]run7",
    f"step3{DEEP}": "step3run7",
    f"'{HOME}/my {FOLDER}/run7'": "'run7'",
    f"{USER}: {DEEP}": "USER: run7",
    f'{{"path":"{DEEP}","n":1}}': '{"path":"run7","n":1}',
    f"//srv/{USER}/run7": "run7",
    f"s3://bucket/{USER}/run7": "s3:run7",
}
assert len(WRAPPINGS) >= 40

#: Texts that look like paths, and are none.
NO_PATHS = [
    "and/or", "a/b", "x / y / z", "(n + 1)/2/3", "f(a)/g/h", "operator/(T, T)", "T::operator/", "tokens/s/GPU", "/layer0",
    "blocks/3/attn/qkv", "project/sub/bench.py", "./a/b", "../a/b/c", "src/user/local/x.cu", "https://host/a/b", "layer%2Fattn%2Fq",
    "A::~A()", "50%", "100% / 2", "a::b::c<(int)4, (bool)1>", "$_0::operator()() const", "home::users<alice::x>", "1/2/3", "N/A",
    "中文/名字", "user", "host step", "c:\\x", "ns::{lambda(int)#1}::operator()(int) const", "{unnamed type#2}",
    "void f<at::native::(anonymous namespace)::g(float, float)::{lambda(int)#1}>(int)", "x@y", "step@3: work",
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh():
    for cached in (short_path, presentable, paths._own_names, paths._words_of_this_machine):
        cached.cache_clear()


@pytest.mark.parametrize("written", WRAPPINGS)
def test_of_a_path_only_its_last_part_stays(written):
    assert without_paths(written) == WRAPPINGS[written]
    assert without_paths(WRAPPINGS[written]) == WRAPPINGS[written]
    assert USER not in short_path(written) and TOKEN not in short_path(written)


@pytest.mark.parametrize("text", NO_PATHS)
def test_what_only_looks_like_a_path_stays(text):
    assert without_paths(text) == text


@pytest.mark.parametrize("unit", ["\\", "/", "a", "a@", "(/a", "://", "%25", "$a"])
def test_a_text_of_megabytes_is_read_in_its_length_not_its_square(unit):
    """With the square each of these would take hours."""
    text = unit * 200_000
    assert len(without_paths(text + "/")) <= len(text) + 1


def test_the_user_and_the_machine_have_other_names(monkeypatch):
    monkeypatch.setenv("USER", USER)
    monkeypatch.setattr(paths.socket, "gethostname", lambda: "login7.cluster.example")
    text = f"{USER} on login7 (login7.cluster.example), {USER}::kernel, {USER}_kernel, x{USER}"
    assert without_paths(text) == f"USER on HOST (HOST), {USER}::kernel, {USER}_kernel, x{USER}"


def test_common_words_are_no_names(monkeypatch):
    monkeypatch.setenv("USER", "user")
    monkeypatch.setattr(paths.socket, "gethostname", lambda: "localhost")
    assert without_paths("user step, root of localhost") == "user step, root of localhost"


def test_names_of_kernels_in_all_recordings_stay(tmp_path):
    """Also what a division, a destructor or a lambda is called there."""
    names = set[str]()
    for packed in sorted((TESTS / "data").rglob("*.sqlite.xz")):
        trace = tmp_path / "trace.sqlite"
        trace.write_bytes(lzma.decompress(packed.read_bytes()))
        with closing(sqlite3.connect(trace)) as db:
            columns = {row[1] for row in db.execute(f"pragma table_info({P}KERNEL)")}
            for column in columns & {"demangledName", "shortName", "mangledName"}:
                query = f"select distinct value from StringIds join {P}KERNEL on id = {column}"
                names |= {value for (value,) in db.execute(query)}
    assert len(names) > 100
    assert [name for name in names if without_paths(name) != name] == []


def _run(folder):
    """A run whose kernels, ranges, regions, notes and call sites are called like all of this."""
    tables, log = tiny(), [LOG[0]]
    strings = {row["id"]: row["value"] for row in tables["StringIds"]}
    calls, kernels, ranges = [], [], []
    for n, written in enumerate(WRAPPINGS):
        at = 300 + 100 * n
        strings[1000 + n], strings[2000 + n] = f"kernel {written}", f"range {written}"
        calls += [call(5000 + 3 * n, 1, at, at + 5), call(5001 + 3 * n, 2, at + 10, at + 20)]
        calls.append(call(5002 + 3 * n, 1, at + 70, at + 75))
        kernels.append(
            work(5001 + 3 * n, at + 30, at + 60, demangledName=1000 + n, shortName=1000 + n)
        )
        ranges.append({"start": (at + 8) * US, "end": (at + 65) * US, "eventType": 59, "globalTid": PROCESS | PID,
                       "textId": 2000 + n})  # fmt: skip
        for seq, begin in ((2 * n, at), (2 * n + 1, at + 70)):
            times = {"t0_ns": OFFSET + begin * US - 500, "t1_ns": OFFSET + (begin + 5) * US + 500}
            log.append({"type": "record", "seq": seq, "tid": PID, "device": 0, "stream_handle": 0, "stream_id": 7,
                        "region": f"region {written}#0", "site": f"{written}/x.py:3", "callers": [f"{written}/y.py:4"], **times})  # fmt: skip
        log.append(
            {
                "type": "elapsed",
                "start": 2 * n,
                "end": 2 * n + 1,
                "ms": 0.07,
                "t1_ns": OFFSET + (at + 90) * US,
            }
        )
        log.append({"type": "note", "text": f"note {written}"})
    tables[P + "RUNTIME"], tables[P + "KERNEL"], tables["NVTX_EVENTS"] = (
        calls,
        kernels,
        [*tables["NVTX_EVENTS"][2:], *ranges],
    )
    for name in ("MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION", "CUDA_EVENT"):
        del tables[P + name]
    tables["DIAGNOSTIC_EVENT"] = [
        {"severity": 2, "text": f"Not all events might have been collected: {w}"} for w in WRAPPINGS
    ]
    tables["StringIds"] = [{"id": number, "value": text} for number, text in strings.items()]
    folder.mkdir()
    write_export(folder / "trace.sqlite", tables)
    write_lines(folder / "events-7.jsonl", log)
    return folder


@pytest.mark.parametrize("logged", [True, False], ids=["regions", "ranges"])
def test_nothing_that_is_shared_has_them(logged, tmp_path, monkeypatch):
    run = _run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    if not logged:
        (run / "events-7.jsonl").unlink()
    out = tmp_path / "out"
    said = CliRunner().invoke(cli, ["analyze", str(run), "-o", str(out), "-v"])
    assert said.exit_code == 0, said.output
    for form in ("json", "perfetto"):
        command = ["export", str(out), "-f", form, "-o", str(out / f"{form}.json")]
        assert CliRunner().invoke(cli, command).exit_code == 0
    (out / "screen.txt").write_text(said.output)
    names = {row["name"] for row in json.loads((out / "json.json").read_text())["intervals"]}
    assert sum(" " in name for name in names) == len(WRAPPINGS)
    copy = CliRunner().invoke(cli, ["redact", str(run), str(tmp_path / "shared")])
    assert copy.exit_code == 0, copy.output
    assert leaks(out, SECRETS) == [] and leaks(tmp_path / "shared", SECRETS) == []
