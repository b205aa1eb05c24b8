"""Rules that turn budgets into findings."""
