"""The source: ``spark.readStream.format("rmq")``.

Read reader first: it holds the methods that Spark calls. run plans and commits the batches of one
run, and topic does this in one topic. task makes the claims in a task.

A plan draws on planning (quotas of slots, claims, tasks), sizing (targetBatchDuration), backlog
(AvailableNow), client.ownership (ZooKeeper) and schedule (idle queries). leases keeps
claims alive. checkpoint reads from Spark's files where a query stands.
"""
