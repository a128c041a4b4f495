"""Celery as a peer: run it to send; ``python -m celery -A celery_peer worker`` works."""

import itertools

from celery import Celery, signals
from contents import URL, own_contents, tell_done

calls = itertools.count()  # next() is one step, whatever threads do

app = Celery("celery_peer", broker=URL)
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=64,  # faster than the default of 4
)


@app.task
def message(content: str) -> None:
    """Does nothing but count."""
    next(calls)


# The first is sent in each process of a prefork pool, the second with a pool of threads.
@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def tell(**_: object) -> None:
    """Tells how many messages a process did, when it ends."""
    tell_done(next(calls))


if __name__ == "__main__":
    with app.producer_or_acquire() as producer:
        for content in own_contents():
            message.apply_async((content,), producer=producer)
