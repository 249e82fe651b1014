"""What the vendors' models share: the wire format of chat completions, and clients that end with their loop."""
