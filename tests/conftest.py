"""Markers that depend on the machine: skipped, with the reason, where what they need is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


def _gpu() -> str | None:
    if not Path("/proc/driver/nvidia").exists() and not shutil.which("nvidia-smi"):
        return "no NVIDIA GPU"
    return None


def _nsys() -> str | None:
    from nsysalign.collect.nsys import find_nsys
    from nsysalign.errors import NsysError

    try:
        find_nsys()
    except NsysError as error:
        return f"no nsys: {error.message}"
    return None


def _browser() -> str | None:
    return None if shutil.which("chromium") or shutil.which("google-chrome") else "no Chromium"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("rerunfailures"):
        again = pytest.mark.flaky(reruns=1, only_rerun=["nsys itself broke down"])  # collect/user.py says so
        for item in items:
            if "nsys" in getattr(item, "fixturenames", ()):
                item.add_marker(again)
    for marker, missing in (("gpu", _gpu), ("nsys", _nsys), ("browser", _browser)):
        marked = [i for i in items if i.get_closest_marker(marker)]
        reason = missing() if marked else None
        for item in marked if reason else []:
            item.add_marker(pytest.mark.skip(reason=reason))
