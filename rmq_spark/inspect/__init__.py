"""What people and programs see of queues and servers: for `rmq`, the console and Prometheus.

Read figures first, then fields: they say what is counted, and what programs get.
"""
