"""The transactional outbox: relay a message table of a database to topics.

Read rounds first: it relays messages, one transaction at a time. relay_outbox is the job. tables
creates and checks the tables. exceptions_table stores refused messages, and header_texts is JSON of
headers, both for export as well.
"""
