"""What each nanosecond of a window was spent on (design section 4)."""
