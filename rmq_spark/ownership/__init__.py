"""Ownership of slots: readers divide the slots of an exclusive topic through ZooKeeper.

Read member first: it takes part in the division for one reader, and decides who gets what.
zookeeper parses the options, and nodes reads and writes the nodes.
"""
