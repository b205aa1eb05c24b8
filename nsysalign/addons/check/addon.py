"""What this add-on adds."""

from nsysalign.registry import AddOn

ADDON = AddOn(
    commands={
        "check": ("command:check", "Check whether what was timed in a run is what was launched.")
    },
)
