"""The arithmetic of speculation: what it costs, when it pays, what fits. Plain numbers, no model library."""
