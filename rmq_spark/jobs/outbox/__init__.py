"""The transactional outbox: relay a message table of a database to topics."""
