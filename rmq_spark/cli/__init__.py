"""The command ``rmq``: manages topics, shows and repairs messages, checks an installation.

Read app first: it lists all commands and the options before them.
"""
