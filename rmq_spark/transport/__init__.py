"""The way to Redis: connections, retries, routing, errors and permissions.

Read server first: it runs requests. connection parses the options of the connection and builds the
redis-py client. routing sends commands to one server or to the nodes of a cluster. failures turns
errors into an RmqError and knows which ones may pass. acl checks the permissions of the Redis user.
wakeups receives the notes to readers that messages fall due.

For asyncio, async_server does what server does, with the routes of async_routing; awaiting lets the
same code run there.
"""
