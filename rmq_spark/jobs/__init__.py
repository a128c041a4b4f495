"""Jobs that move messages between topics and the formats that Spark reads and writes.

Read commands first: it names the jobs, and runs one from its command line. The scripts in jobs/
start the jobs.
"""
