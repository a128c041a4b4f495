"""Who owns which slot: queries share the slots of a topic out among themselves by ZooKeeper."""
