"""Analyses made by hand, as fixtures."""

from __future__ import annotations

import browsing
import pytest
from handmade import FINDING, UNALIGNED, bad, build

from nsysalign.model import Analysis


@pytest.fixture
def analysis() -> Analysis:
    return build(findings=[FINDING], unaligned=UNALIGNED)


@pytest.fixture
def hostile_analysis() -> Analysis:
    """Every foreign name carries markup, a script's end, an escape sequence and plotly's own
    tags."""
    keys = ("title", "advice", "faster", "rule", "site")
    own = {"label": bad("t1"), "evidence": {bad("key"): bad("value")}}
    finding = FINDING | {key: bad(key) for key in keys} | own
    lost = {key: bad(key) for key in UNALIGNED[0]}
    return build(findings=[finding], unaligned=[lost], name=bad)


@pytest.fixture
def builder():
    return build


@pytest.fixture
def finding() -> dict:
    return dict(FINDING)


@pytest.fixture(scope="session")
def driver():
    """One browser for all pages."""
    driver = browsing.start()
    yield driver
    driver.quit()
