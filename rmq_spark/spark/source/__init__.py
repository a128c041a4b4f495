"""The source: ``spark.readStream.format("rmq")``.

Read reader first: it holds the methods that Spark calls. run plans and commits the batches of one
run, and topic does this in one topic. task makes the claims in a task.

Of a plan, planning has the quotas of slots, the claims and the tasks; batch_sizer has
targetBatchDuration; backlog has AvailableNow; client.ownership has ZooKeeper. waits lets an idle
query rest. leases keeps claims alive. checkpoint reads from Spark's files where a query stands.
columns builds what Spark gets.
"""
