"""What the program timed itself on the host's clocks: readings, which of them it subtracts, and their windows."""
