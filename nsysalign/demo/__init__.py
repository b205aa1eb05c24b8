"""A recorded H200 trace, and what it shows."""
