"""What each nanosecond of a window was (design section 4)."""
