"""The source: ``spark.readStream.format("rmq")``.

Read stream_reader first: it holds the methods that Spark calls. query_run plans and commits the
batches of one run, and topic_run does this in one topic. task_reader makes the claims in a task.

A plan draws on planning (quotas of slots, claims, tasks), batch_sizing (targetBatchDuration),
backlog (AvailableNow), owned_slots (ZooKeeper) and polling (idle queries). lease_renewal keeps
claims alive, and offsets reads and writes the checkpoint.
"""
