"""dramatiq as a peer: run it to send; ``python -m dramatiq dramatiq_peer`` works."""

import itertools

import dramatiq
from contents import URL, own_contents, tell_done
from dramatiq.brokers.redis import RedisBroker

calls = itertools.count()  # next() is one step, whatever threads do


class Told(dramatiq.Middleware):
    """Tells how many messages a worker process did, when it ends."""

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        """Runs once a process."""
        tell_done(next(calls))


dramatiq.set_broker(RedisBroker(url=URL))
dramatiq.get_broker().add_middleware(Told())


@dramatiq.actor
def message(content: str) -> None:
    """Does nothing but count."""
    next(calls)


if __name__ == "__main__":
    for content in own_contents():
        message.send(content)
