"""Labels that capture a CUDA graph which the program never launches: nothing of it runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.addons.check.scene import FOUND, Doubt, Scene
from nsysalign.model import CALL


def never_launched(scene: Scene) -> Iterator[Doubt]:
    """Labels in whose repetitions a capture ends, in a process that launches no graph from then
    on."""
    calls = scene.trace.calls
    ends = [number for number, name in scene.trace.names.items() if "StreamEndCapture" in name]
    begun, thread = (calls[c].to_numpy() for c in ("start_ns", "thread"))
    captures = calls["name_id"].isin(ends).to_numpy()
    launches = (calls["kind"] == CALL["graph_launch"]).to_numpy()
    for label, rows in scene.labels():
        opened, closed, own = (scene.column(c)[rows] for c in ("open_ns", "close_ns", "thread"))
        process = scene.column("process")[rows[0]]
        later = launches & (calls["process"] == process).to_numpy() & (begun > opened[0])
        inside = [
            bool((captures & (thread == t) & (begun > a) & (begun < b)).any())
            for a, b, t in zip(opened.tolist(), closed.tolist(), own.tolist(), strict=True)
        ]
        if any(inside) and not later.any():
            shown = rows[np.array(inside)]
            yield scene.doubt(
                "never-launched", FOUND, label, int(shown[0]), shown, len(rows),
                "captures a CUDA graph that the program never launches: what is captured does not run, so it is not in "
                "this time.",
            )  # fmt: skip
