"""The numbers that a store sorts messages by, and what their ranges mean."""

# From RMQ's design: a message is delivered once and retried up to 16 times. In a store, a score of
# 16 or less is a number of retries left, so the lowest score of a first delivery is 17.
MOST_RETRIES = 16
LOWEST_SCORE = MOST_RETRIES + 1
# Scores are IEEE doubles, which are exact for whole numbers up to here.
HIGHEST_SCORE = 2**53
# As the score of a FixedTime message that is sent, this means the time at which Redis stores it.
# A negative score is a delay with its sign changed (lua/include/dated.lua).
AT_ONCE = 0
