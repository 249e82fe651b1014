"""The ground floor: everything Redis."""
