"""The way to Redis: connections, retries, routing and errors."""
