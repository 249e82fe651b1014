"""What people import: `import api_shim as agents`."""
