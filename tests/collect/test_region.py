"""region() outside a run, and what it tells the probe."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nsysalign.region import region


def test_importing_the_package_imports_nothing_heavy():
    heavy = "{'torch', 'pandas', 'plotly', 'numpy', 'nvtx', 'sqlite_utils', 'click', 'rich'}"
    code = f"import sys, nsysalign; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_of_a_function_and_a_coroutine_all_is_inside(monkeypatch):
    said: list[str] = []
    probe = SimpleNamespace(enter_region=said.append, exit_region=lambda: said.append("left"))
    monkeypatch.setitem(sys.modules, "_nsysalign_probe", probe)

    @region("f")
    def f(a: int, *, b: int = 2) -> int:
        """Doc."""
        said.append("inside")
        return a + b

    @region("g")
    async def g() -> int:
        await asyncio.sleep(0)
        raise KeyError("mine")

    assert (f(1), f(1, b=5), f.__name__, f.__doc__) == (3, 6, "f", "Doc.")
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(g())
    assert said == ["f", "inside", "left"] * 2 + ["g", "left"]


def test_a_generator_is_refused():
    def produce():
        yield 1

    async def later():
        yield 1

    for function in (produce, later):
        with pytest.raises(TypeError, match="is a generator; write `with"):
            region("r")(function)


@pytest.mark.parametrize("name", [None, 5, b"", print])
def test_a_name_that_is_no_text_is_the_callers_error(name):
    with pytest.raises(TypeError, match=f"a str is needed, not {type(name).__name__}"):
        region(name)
