"""The transactional outbox: a message table of a database into topics."""
