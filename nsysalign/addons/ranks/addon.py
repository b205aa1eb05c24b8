"""What this add-on adds."""

from nsysalign.registry import AddOn

ADDON = AddOn(options={"analyze": "options:options"}, several="options:several")
