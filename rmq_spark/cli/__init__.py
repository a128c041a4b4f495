"""The command ``rmq``: manages topics, shows and repairs messages, checks an installation.

Read app first: it lists all commands and the options before them. The folder commands holds the
commands. Around them, main turns errors into exit codes, and session holds the connection.
arguments, chosen_messages, message_values and sent_messages read what the user typed; output
prints tables and JSON.
"""
