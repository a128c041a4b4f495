"""The numbers that a store sorts messages by, and what their ranges mean."""

# RMQ's design: a message is delivered once and retried 16 times. A score of 16 or less in a store
# is a number of retries left, hence the lowest score of a first delivery is 17.
MOST_RETRIES = 16
LOWEST_SCORE = MOST_RETRIES + 1
# Scores are IEEE doubles: whole numbers are exact up to here.
HIGHEST_SCORE = 2**53
# Sent as a score, it stands for the time at which Redis stores the message (at_once.lua).
AT_ONCE = 0
