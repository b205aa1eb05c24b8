"""nsys exports and event logs as normalised tables; the only place that knows nsys's names."""
