"""`--fail-on`: the exit code that a build can use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner
from recordings import unpack

from nsysalign import engine
from nsysalign.cli import cli
from nsysalign.commandline.options import closed
from nsysalign.engine import load
from nsysalign.errors import NsysAlignError

pytestmark = pytest.mark.usefixtures("remembered")


@pytest.fixture(scope="module")
def exit_code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    trace, log = unpack("demo", folder, "demo.sqlite", "demo.events.jsonl")
    analyses, analyze = [], engine.analyze_inputs

    def once(inputs, **more):
        analyses.append(analyses[0] if analyses else analyze(inputs, **more))
        return analyses[0]

    def code(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["analyze", str(trace), "--events", str(log), *options])
        if isinstance(done.exception, NsysAlignError):
            raise done.exception
        return done.exit_code, done.output

    code.folder = folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "analyze_inputs", once)
        yield code


@pytest.mark.parametrize(
    ("names", "code"), [((), 0), (("no-result",), 0), (("no-result", "host-gap"), 1)]
)
def test_exit_code(exit_code, names, code):
    assert exit_code("-q", *(a for n in names for a in ("--fail-on", n)))[0] == code


@pytest.mark.parametrize(
    ("names", "fails"),
    [
        (("host-gap",), True),
        (("error",), True),
        (("warning",), True),
        (("info",), True),
    ],
)
def test_what_fails(recorded, names, fails):
    """Without the command around it, whose exit code says the same."""
    assert closed(recorded("demo").analysis, names, quiet=True) == fails


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
