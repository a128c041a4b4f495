"""Topics: their types, their definitions, and the names of their keys in Redis.

Read definition first. topic_type is the base class of the types; range_merge, fixed_time and
priority are the types, and topic_types lists them. message_value describes the values that messages
carry. scores defines what the numbers in a store mean.
parsers and durations turn the texts of options into values.
"""
