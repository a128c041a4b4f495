"""What operators do with pages of dead messages: requeue them, or purge them."""

from rmq_spark.client.queue import Queue
from rmq_spark.protocol import sending
from rmq_spark.protocol.pages import Page


def requeue_page(queue: Queue, page: Page, score: int) -> int:
    """Requeue the messages of a page as first deliveries. Return how many were still dead.

    score: theirs in the store (messages.requeue_score).
    """
    pairs = [value for content in page.contents for value in (score, content)]
    return queue.ask(sending.requeue, {page.slot: pairs})


def purge_page(queue: Queue, page: Page) -> int:
    """Delete the messages of a page from their queue for good. Return how many were there.

    A message whose score has changed meanwhile (it died again, or was sent again) stays.
    """
    pairs = [v for pair in zip(page.scores, page.contents, strict=True) for v in pair]
    return queue.ask(sending.purge, {page.slot: pairs}, page.kind)
