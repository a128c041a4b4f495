"""How it gets to Redis: connections, repetition, routing, errors."""
