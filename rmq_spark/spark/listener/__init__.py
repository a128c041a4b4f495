"""``each_message``: a function called for every message of a micro-batch."""
