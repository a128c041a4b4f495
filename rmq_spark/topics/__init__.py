"""Topics: their types, their definitions, and the names of their keys in Redis.

Read definition first. settings has the kinds of values of its settings. types says what differs
between types. keys names the keys of a topic, and defines what the numbers in a store mean. parsing
declares options and turns their texts into values. reasons writes why a message failed.
"""
