"""What each page of the console shows: functions that return dicts.

Read topic_views first. The values can be written as JSON; rendering turns them into HTML.
"""
