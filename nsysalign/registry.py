"""Add-ons: what a folder under `nsysalign/addons` adds, according to its `addon.py`.

The core names no add-on and works without them.  Functions and objects of an add-on are named by
texts "module:name", the module relative to the add-on's folder; they are imported when used.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nsysalign import frames
    from nsysalign.rundir import Inputs

FOLDER = Path(__file__).with_name("addons")


class Section(NamedTuple):
    """A section of the page.  Template and script lie in the add-on's folder `templates`."""

    template: str
    script: str
    key: str  # of its data in the page's data; in the script `SECTIONS.push([id, key, draw])`
    data: str  # (analysis) -> plain objects; none: the section is not shown


class AddOn(NamedTuple):
    """What an add-on adds; the core looks up everything else by itself."""

    commands: Mapping[str, tuple[str, str]] = {}  # command -> (its function, a line of help)
    options: Mapping[str, str] = {}  # run, analyze -> a decorator that adds options to it
    reruns: Mapping[str, str] = {}  # option of `run` -> a `Rerun`, after the profiled run
    several: str = ""  # (traces, options of `analyze`) -> whether it has answered in its place
    files: tuple[str, ...] = ()  # that `analyze` takes for it, by option
    beside: tuple[str, ...] = ()  # its results in a run directory: patterns of their names
    tables: str = ""  # of an analysis: a tuple of `frames.Spec`
    long: tuple[str, ...] = ()  # of these tables: too long for analysis.json
    #: (evidence, inputs) -> the evidence with these tables, before rules see it.  Not called where
    #: none of its files is given, and none of its results lies in the run directory.
    step: str = ""
    rules: str = ""  # a tuple of `explain.rules.Rule`
    statuses: str = ""  # (analysis) -> a `finding.Status` for each finding
    sections: tuple[Section, ...] = ()
    owns: str = ""  # (path) -> whether this is a result of its own, which no other command reads


class Rerun(NamedTuple):
    """What `run` does again, with "marks" for example: how, in words; the environment of the
    profiled run; and (command, result, options) -> notes."""

    how: str
    environment: Mapping[str, str]
    again: Any


@cache
def addons() -> dict[str, AddOn]:
    """The add-ons that are there, by name."""
    names = sorted(path.parent.name for path in FOLDER.glob("*/addon.py"))
    return {n: importlib.import_module(f"nsysalign.addons.{n}.addon").ADDON for n in names}


def imported(name: str, text: str) -> Any:
    """The object that an add-on names by "module:name"; a module for a text without a colon."""
    module, _, attribute = text.partition(":")
    loaded = importlib.import_module(f"nsysalign.addons.{name}.{module}")
    return getattr(loaded, attribute) if attribute else loaded


def each(field: str) -> Iterator[Any]:
    """What every add-on declares in this field, imported."""
    for name, addon in addons().items():
        if text := getattr(addon, field):
            yield imported(name, text)


def steps(inputs: Inputs) -> Iterator[Any]:
    """The steps of add-ons that have something to say: about their own files, where there are any,
    or about every analysis."""
    for name, addon in addons().items():
        about_all = not (addon.files or addon.beside)
        asked = any(inputs.of_addons.get(option) for option in addon.files)
        made = inputs.home and any(any(inputs.home.glob(pattern)) for pattern in addon.beside)
        if addon.step and (about_all or asked or made):
            yield imported(name, addon.step)


@cache
def sections() -> list[tuple[Section, Any]]:
    """Sections of the page, each with the function of the analysis that gives its data."""
    return [
        (section, imported(name, section.data))
        for name, addon in addons().items()
        for section in addon.sections
    ]


@cache
def tables() -> dict[str, frames.Spec]:
    """Tables of add-ons by name."""
    return {spec.name: spec for specs in each("tables") for spec in specs}


def specs() -> tuple[frames.Spec, ...]:
    """Every table of an analysis."""
    from nsysalign import frames

    return (*frames.ANALYSIS_SPECS, *tables().values())


def template(name: str) -> Path:
    """A page's template or script, in an add-on's folder.  Raises FileNotFoundError."""
    for path in FOLDER.glob(f"*/templates/{name}"):
        return path
    raise FileNotFoundError(name)
