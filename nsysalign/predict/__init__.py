"""What intervals would take without nsys."""
