"""How exports reach RocketMQ: the connection, and how a task sends."""
