"""How much is tried: a part each time; all of it with `NSYSALIGN_CI=all`, and in hypothesis's profile `hunt`."""

from __future__ import annotations

import os
from typing import TypeVar

ALL = os.environ.get("NSYSALIGN_CI") == "all" or os.environ.get("HYPOTHESIS_PROFILE") == "hunt"
Amount = TypeVar("Amount")


def part(usual: Amount, everything: Amount) -> Amount:
    """What is tried this time."""
    return everything if ALL else usual
