"""What this add-on adds."""

from nsysalign.registry import AddOn

ADDON = AddOn(
    commands={
        "confirm": (
            "command:confirm",
            "Run a script again with one change, to confirm or refute a cause.",
        )
    },
    tables="verdicts:TABLES",
    beside=("confirm.json",),
    step="verdicts:step",
    statuses="verdicts:statuses",
)
