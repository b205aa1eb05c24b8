"""Interventions of a confirming re-run, in a real process: before the right records, on their
stream, never in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysalign.addons.confirm import command

CODE = str(Path(command.__file__).with_name("intervene.py"))
PROGRAM = """
import torch
def pair(stream=None):
    a, b = torch.cuda.Event(), torch.cuda.Event()
    a.record(stream)
    b.record(stream)
    a.elapsed_time(b)
    return a, b
pair()
first = len(torch.cuda.done)
pair()
print(torch.cuda.done[first:])
"""


def spec(kind="delay", starts=((("script.py", 5),),), region="", label="t1", **more):
    value = {"code": CODE, "intervention": kind, "label": label, "region": region, "starts": starts}
    return {"NSYSALIGN_CONFIRM": json.dumps(value | more)}


def done(run) -> list:
    assert (run.status, run.err, run.errors) == (0, "", "")
    return eval(run.out)


def notes(run) -> list[str]:
    return [line["text"] for line in run.lines("note") if "text" in line]


def test_the_delay_stands_right_before_the_start_record_and_nowhere_else(probed):
    run = probed(PROGRAM, env=spec(delay_ns=1_000_000))
    # the fake GPU's clock is 1 GHz: 1,000 us are a million cycles
    assert done(run) == [("sleep", 1_000_000, 0), ("record", 0), ("record", 0)]
    assert [r.get("intervened") for r in run.lines("record")] == [True, None, True, None]
    (said,) = notes(run)
    assert said == (
        "changed by nsysalign confirm: a delay kernel of 1,000 us (1,000,000 cycles) on the same stream before every start "
        "record of t1"
    )


def test_a_region_named_by_the_label_and_the_end_record_in_it(probed):
    text = """
import torch, nsysalign
def work(name):
    with nsysalign.region(name):
        torch.cuda.Event().record()
        torch.cuda.Event().record()
work("a")
work("b")
torch.cuda.Event().record()
print([d[0] for d in torch.cuda.done])
"""
    here, outside = (("script.py", 5),), (("script.py", 9),)
    env = spec("synchronize", (here,), region="b", label="b")
    assert done(probed(text, env=env)) == ["record"] * 2 + ["synchronize"] + ["record"] * 3
    # a label made from call sites means records outside of every region
    env = spec("synchronize", (here, outside))
    assert done(probed(text, env=env)) == ["record"] * 4 + ["synchronize", "record"]


@pytest.mark.parametrize("kind", ["delay", "synchronize"])
def test_what_fails_is_noted_and_the_record_goes_on(probed, kind):
    fails = (
        "def no(*args, **kwargs): raise RuntimeError('out of memory')\n"
        "torch.cuda._sleep = torch.cuda.synchronize = torch.empty = no\npair()\nfirst"
    )
    run = probed(PROGRAM.replace("pair()\nfirst", fails), env=spec(kind, delay_ns=1000))
    assert done(run) == [("record", 0), ("record", 0)]
    assert notes(run) == [
        f"nsysalign confirm could not make its change ({kind}): out of memory",
        "the program replaced torch.cuda.synchronize",
    ]
    assert len(run.lines("elapsed")) == 2
    assert not any("intervened" in r for r in run.lines("record"))
