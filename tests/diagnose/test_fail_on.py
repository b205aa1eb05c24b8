"""`--fail-on`: the exit code that a build can use."""

from __future__ import annotations

import lzma
from dataclasses import replace
from importlib.resources import files

import pytest
from click.testing import CliRunner

from nsysalign.cli import cli
from nsysalign.commandline.options import closed
from nsysalign.engine import load
from nsysalign.errors import NsysAlignError

DEMO = files("nsysalign.demo")


@pytest.fixture(scope="module")
def exit_code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    for name in ("demo.sqlite", "demo.events.jsonl"):
        (folder / name).write_bytes(lzma.decompress(DEMO.joinpath(name + ".xz").read_bytes()))

    def code(*options: str) -> tuple[int, str]:
        trace, log = folder / "demo.sqlite", folder / "demo.events.jsonl"
        done = CliRunner().invoke(cli, ["analyze", str(trace), "--events", str(log), *options])
        if isinstance(done.exception, NsysAlignError):
            raise done.exception
        return done.exit_code, done.output

    code.folder = folder
    return code


@pytest.mark.parametrize(
    "names, code",
    [
        ((), 0),
        (("host-gap",), 1),
        (("recorded-again",), 0),
        (("recorded-again", "host-gap"), 1),
        (("error",), 1),
        (("warning",), 1),
        (("info",), 1),
    ],
)
def test_exit_code(exit_code, names, code):
    assert exit_code("-q", *(a for n in names for a in ("--fail-on", n)))[0] == code


def test_it_says_why_and_refuses_what_it_does_not_know(exit_code):
    assert "failed on host-gap: h2d_t1" in exit_code("--fail-on", "host-gap")[1]
    code, text = exit_code("--fail-on", "host-gab")
    assert code == 2 and "there is no rule host-gab" in text and "host-gap" in text


def test_a_severity_means_that_and_worse(exit_code):
    exit_code("-q")
    analysis = load(exit_code.folder / "demo.nsysalign")
    only = replace(analysis, findings=analysis.findings.query("severity == 'warning'"))
    assert closed(only, ("info",), quiet=True) and closed(only, ("warning",), quiet=True)
    assert not closed(only, ("error",), quiet=True)
