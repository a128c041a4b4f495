"""The command ``rmq``: manages topics, shows and repairs messages, checks an installation.

Read app first: it lists all commands and the options before them. __main__ turns errors into
exit codes, session holds the connection, arguments reads what the user typed, output prints.
"""
