"""Every option: its name, default, parser, bounds and help. Nothing here connects to anything."""
