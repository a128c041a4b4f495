"""The requests that go to Redis, and the values its answers become."""
