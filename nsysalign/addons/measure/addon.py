"""What this add-on adds."""

from nsysalign.registry import AddOn

ADDON = AddOn(
    commands={
        "measure": (
            "command:measure",
            "Measure how long a call takes and how certain that is, and find the best batch.",
        )
    },
    owns="result:holds",
)
