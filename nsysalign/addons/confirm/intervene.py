"""One change just before the start records of one label, for a re-run that puts a cause to the
test.  The probe loads this file as one of its own: the standard library only.

Armed by the variable NSYSALIGN_CONFIRM (JSON, written by `nsysalign confirm`):

    {"code": "/.../intervene.py", "intervention": "delay", "label": "t1", "region": "",
     "starts": [[["/abs/bench.py", 14], ["train.py", 88]]], "delay_ns": 1000000}

`region`: records inside the region of this name; "" for records outside all regions.  `starts`:
file and line, then, if they matter, those of the callers; a file that is not absolute matches by its
end.

The change is made on the record's own stream, and never while anything is being captured.  Nothing
here raises into the user's code: a failure is noted once, and the record proceeds without the
change.  Records preceded by the change carry the flag INTERVENED.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: torch.cuda._sleep counts cycles of the SM clock; more kHz than any GPU to date makes, for a device
#: that does not report its highest rate.
_HIGHEST_KHZ = 3_000_000


class Intervention:
    """One per process."""

    def __init__(self, spec: dict, rt: Any, no_region: int) -> None:
        self._rt, self._spec, self._no_region = rt, spec, no_region
        self._said: set[str] = set()

    def before_record(self, stream: Any, device: int, context: int, me: Any) -> bool:
        """Intervene if this is a start record of the label; whether it was.  What it raises is a
        note (`failed`), and the record goes on."""
        rt, spec = self._rt, self._spec
        decided = rt.decisions.get(context)
        if decided is None:
            places = rt.sites.places.get(context, ())
            decided = rt.decisions[context] = any(
                len(places) >= len(wanted) and all(map(_same, wanted, places))
                for wanted in spec["starts"]
            )
        # during a capture, even on another stream, CUDA does not allow any of this
        if not decided or rt.captures or rt.driver.is_capturing(stream.cuda_stream):
            return False
        if me.region != (rt.region_number(spec["region"]) if spec["region"] else self._no_region):
            return False
        torch, change = sys.modules["torch"], "torch.cuda.synchronize()"
        if spec["intervention"] == "synchronize":
            torch.cuda.synchronize(device)
        else:
            # at the highest rate, so that the delay is never too short
            khz = getattr(torch.cuda.get_device_properties(device), "clock_rate", 0) or _HIGHEST_KHZ
            cycles = max(1, spec["delay_ns"] * int(khz) // 1_000_000)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(cycles)
            change = f"a delay kernel of {spec['delay_ns'] / 1e3:,.0f} us ({cycles:,} cycles) on the same stream"
        self._note(
            f"changed by nsysalign confirm: {change} before every start record of {spec['label']}"
        )
        return True

    def failed(self, error: Exception) -> None:
        """Say that a change could not be made."""
        kind = self._spec["intervention"]
        self._note(f"nsysalign confirm could not make its change ({kind}): {error}")

    def _note(self, text: str) -> None:
        """Add a note to the event log, each text once."""
        if text not in self._said and len(self._said) <= 8:
            self._said.add(text)
            self._rt.note(text=text)


def _same(wanted: tuple[str, int], place: tuple[str, int]) -> bool:
    file, line = wanted
    if line != place[1] or os.path.basename(file) != os.path.basename(place[0]):
        return False
    if os.path.isabs(file):
        return os.path.realpath(place[0]) == os.path.realpath(file)
    return place[0] == file or place[0].endswith("/" + file)
