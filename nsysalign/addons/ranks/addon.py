"""What this add-on adds."""

from nsysalign.registry import AddOn

ADDON = AddOn(options={"analyze": "command:options"}, several="command:several")
