"""region() outside a run: it does nothing and imports nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys

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


def test_exceptions_pass():
    try:
        with region("x"):
            raise KeyError("mine")
    except KeyError as error:
        assert error.args == ("mine",)


def test_importing_the_package_imports_nothing_heavy():
    heavy = "{'torch', 'pandas', 'plotly', 'numpy', 'nvtx', 'sqlite_utils', 'click', 'rich'}"
    code = f"import sys, nsysalign; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
