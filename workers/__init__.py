"""What runs a turn: the agent loop, tools, models, permissions, leases."""
