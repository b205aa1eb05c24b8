"""Timers that the program put something else in the place of."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.addons.check.doubt import FOUND, Doubt
from nsysalign.addons.check.scene import Scene
from nsysalign.probe.tampering import REPLACED

#: Stands for a label: which intervals it concerns is not known.
_ALL = "(timers)"


def timers(scene: Scene) -> Iterator[Doubt]:
    """What the probe found replaced when a process ended."""
    for note in dict.fromkeys(scene.log.notes if scene.log is not None else ()):
        if note.startswith(REPLACED):
            name = note.removeprefix(REPLACED)
            yield Doubt(
                "replaced-timer",
                FOUND,
                _ALL,
                "",
                f"The program replaced {name}: what it prints need not be what the original returned. "
                "The times shown here are the original's.",
                (),
                0,
                evidence={"replaced": name},
            )
