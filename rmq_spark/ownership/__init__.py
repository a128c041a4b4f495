"""Ownership of slots: readers divide the slots of an exclusive topic through ZooKeeper.

Read member first: it takes part in the division for one reader. owners_seen shows who owns what.
"""
