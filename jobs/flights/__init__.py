"""The demo: a year of real flights through the three types of topic, and a verdict."""
