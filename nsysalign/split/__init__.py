"""What each nanosecond of a window was spent on (docs/design.md, section 4)."""
