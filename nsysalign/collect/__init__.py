"""In the user's process (probe) and around it (nsys): everything that happens before there is a trace."""
