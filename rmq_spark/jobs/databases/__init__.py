"""Databases that Spark reaches through JDBC.

Read dialect first: it says what differs between databases. postgresql, mariadb and derby hold the
differences, one database each, and known_dialects chooses by the url. database opens connections
and explains errors; jdbc_connection runs statements.
"""
