"""Ownership of slots: queries divide the slots of an exclusive topic through ZooKeeper.

Read member first: it takes part in the division for one query.
"""
