"""What a topic is."""
