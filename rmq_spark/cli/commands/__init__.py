"""The commands of ``rmq``, which ``rmq_spark.cli.app`` puts together.

Read topic_commands first: its commands are the simplest. Then send_commands, read_commands and
due_command (messages), repair_commands (dead messages and expired leases), top_command and doctor
(a look at the whole), program_commands and job_command (programs that the command starts).
"""
