"""What is said to Redis, and what it answers."""
