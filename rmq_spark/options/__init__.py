"""Every option: its name, default, parser, bounds and help. Nothing here opens a connection.

Read option first: the other modules are tables of its objects.
"""
