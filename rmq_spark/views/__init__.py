"""What is shown of queues and servers, for the command line and the console.

Read json_fields first: the names of the fields that programs get. shown_texts formats times,
durations and contents. rates compares two looks at all topics. browsing reads messages
part by part. due_bars counts what falls due when.
server_checks looks for what is wrong with a server, and names the remedy.
"""
