"""Jobs that move messages between topics and the formats that Spark reads and writes.

Read program first: it runs a job from its command line. The scripts in jobs/ start the jobs.
"""
