"""Requests to Redis: functions that build calls of scripts and read the replies, without I/O.

Read calls first: a request is a value, which rmq_spark.redis.server runs. The docstring of a
function that returns a request describes what happens when the request runs: its effect, its
answer, and its errors.

sending, claiming, reading, returning and staging build the requests. claims, names, pages and
bodies define the values in them. scripts loads the Lua scripts. packing packs scores and
contents for them.
"""
