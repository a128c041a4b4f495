"""What a job needs of Spark, whatever it does.

job_session opens the session of a job and waits for its query. connectors checks what the session
has loaded. folders reaches any file system that Spark knows.
"""
