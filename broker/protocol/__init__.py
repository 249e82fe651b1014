"""What a stored record looks like, and the typed objects it becomes."""
