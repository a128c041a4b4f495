"""Requests to Redis: functions that build calls of scripts and read the replies, without I/O.

Read calls first: a request is a value, which rmq_spark.transport.server runs. The docstring of a
function that returns a request describes what happens when the request runs: its effect, its
answer, and its errors.

sending, claiming, reading, runs, stages and sealing build the requests. claims, names and
pages define the values in them. topic_queues names the keys of a topic. scripts loads the Lua
scripts. messagepack packs scores and contents for them, and chunks splits long lists.
"""
