"""The way to Redis: connections, retries, routing, errors and permissions.

Read server first: it runs requests. connection builds the redis-py client from options. routing
sends commands to one server or to the nodes of a cluster. failures turns errors into an RmqError
and knows which ones may pass. permissions finds commands that the user may not run. notifications
wakes readers when messages fall due.

aio is the same for asyncio.
"""
