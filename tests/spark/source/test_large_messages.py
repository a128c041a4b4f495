"""Claims hold a bounded number of bytes: of large messages, a batch takes fewer than planned."""

from rmq_spark.spark.schemas import SOURCE_SCHEMA

from ..driving import DUE

MIB = 1024 * 1024


def test_the_next_batch_follows_at_once(rmq):
    """No rest in between, whatever the pollInterval: a batch may leave due messages behind."""
    queue = rmq.queue(slots=1)
    sent = [b"%05d" % number + bytes(MIB) for number in range(30)]
    for content in sent:
        queue.send([content], fixed_time=DUE)
    taken, sizes = [], []
    with rmq.by_hand(queue, SOURCE_SCHEMA, pollInterval="1h") as run:
        start = run.initial()
        while len(taken) < len(sent):
            end, rows = run.next(start)
            assert end != start
            start = end
            taken += [row["content"].encode() for row in rows]
            sizes.append(len(rows))
    assert taken == sent
    assert sizes == [7, 7, 7, 7, 2]
