"""region() outside a run: it does nothing and imports nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from nsysalign.region import region


def test_decorated_functions_stay_themselves():
    @region("f")
    def f(a: int, *, b: int = 2) -> int:
        """Doc."""
        return a + b

    @region("g")
    async def g() -> int:
        return 3

    assert (f(1), f(1, b=5), f.__name__, f.__doc__) == (3, 6, "f", "Doc.")
    assert asyncio.run(g()) == 3 and repr(region("f")) == "region('f')"


def test_importing_the_package_imports_nothing_heavy():
    heavy = "{'torch', 'pandas', 'plotly', 'numpy', 'nvtx', 'sqlite_utils', 'click', 'rich'}"
    code = f"import sys, nsysalign; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Probe:
    """What the probe is told: which regions are entered and left, and what happens meanwhile."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def enter_region(self, name: str) -> None:
        self.said.append(f"+{name}")

    def exit_region(self) -> None:
        self.said.append("-")


@pytest.fixture
def probe(monkeypatch) -> Probe:
    found = Probe()
    monkeypatch.setitem(sys.modules, "_nsysalign_probe", found)
    return found


def test_of_a_generator_each_stretch_is_inside(probe):
    say = probe.said.append

    @region("r")
    def produce(count):
        """Doc."""
        for n in range(count):
            say(f"make {n}")
            say(f"got {(yield n)}")
        return "end"

    def consume():
        say(f"returned {(yield from produce(2))}")

    for n in consume():
        say(f"use {n}")
    assert produce.__name__ == "produce" and produce.__doc__ == "Doc."
    assert probe.said == [
        "+r", "make 0", "-", "use 0", "+r", "got None", "make 1", "-", "use 1", "+r", "got None", "-", "returned end",
    ]  # fmt: skip
    probe.said.clear()
    generator = produce(2)
    assert (next(generator), generator.send("x")) == (0, 1)
    generator.close()
    assert probe.said == ["+r", "make 0", "-", "+r", "got x", "make 1", "-", "+r", "-"]


def test_exceptions_reach_a_generator_and_its_caller(probe):
    @region("r")
    def careful():
        try:
            yield 1
        except KeyError as error:
            yield error.args[0]
        raise ValueError("its own")

    generator = careful()
    assert (next(generator), generator.throw(KeyError("k"))) == (1, "k")
    with pytest.raises(ValueError, match="its own"):
        next(generator)
    assert probe.said == ["+r", "-"] * 3

    @region("r")
    def closing():
        try:
            yield 1
        finally:
            probe.said.append("cleaned up")

    probe.said.clear()
    for _ in closing():
        break
    assert probe.said == ["+r", "-", "+r", "cleaned up", "-"]


def test_of_an_asynchronous_generator_each_stretch_is_inside(probe):
    say = probe.said.append

    @region("r")
    async def produce():
        try:
            for n in range(2):
                await asyncio.sleep(0)
                say(f"got {(yield n)}")
        finally:
            say("cleaned up")

    async def consume():
        async for n in produce():
            say(f"use {n}")
        generator = produce()
        await generator.__anext__()
        with pytest.raises(KeyError):
            await generator.athrow(KeyError("k"))
        generator = produce()
        await generator.__anext__()
        await generator.aclose()

    asyncio.run(consume())
    assert probe.said == [
        "+r", "-", "use 0", "+r", "got None", "-", "use 1", "+r", "got None", "cleaned up", "-",
        "+r", "-", "+r", "cleaned up", "-", "+r", "-", "+r", "cleaned up", "-",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [None, 5, b"", print])
def test_a_name_that_is_no_text_is_the_callers_error(name):
    with pytest.raises(TypeError, match=f"a str is needed, not {type(name).__name__}"):
        region(name)
