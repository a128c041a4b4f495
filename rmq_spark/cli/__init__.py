"""The command rmq: see what is queued, mend what died, know that it is healthy."""
