"""Topics with messages in every queue, as the pages of the console show them."""

import time

from rmq_spark.client import Broker, Message

HTML = "<script>document.title = 'taken'</script><b>bold</b>"
CONTROLS = "bell \x07 null \x00 turn \u202e end"
LARGE = b"0123456789abcdef" * (10 * 2**16)  # 10 MiB
NOT_UTF8 = b"\xff\xfe\x00 no text"
HOUR_MS = 3_600_000


def stock(broker: Broker) -> None:
    """Fills a database with topics of all kinds."""
    broker.create("Orders", "FixedTime", 16, groups=["default", "audit"])
    broker.create("Replan", "RangeMerge", 4, max_retries=1, retry_backoff="10s, 1m")
    broker.create("Alerts", "Priority", 4, max_retries=0)
    broker.create("Prices", "FixedTime", 4, keyed=True)
    broker.create("Idle", "FixedTime", 2)
    send_orders(broker)
    broker.queue("Replan").send(
        [f'{{"flight": "N{number}AA"}}' for number in range(60)], time_range="50ms"
    )
    broker.queue("Alerts").send(
        [Message(f"alert {number}", priority=17 + number % 5) for number in range(40)]
    )
    broker.queue("Prices").send(
        [
            Message(
                '{"price": 12}', key="sku-1", headers={"trace": "of-4bf9", "none": None}, delay="1h"
            ),
            Message(None, key="sku-2", delay="1h"),
        ]
    )
    bury_alerts(broker)
    hold_replans(broker)


def send_orders(broker: Broker) -> None:
    now_ms = broker.server.now_ms()
    orders = [
        Message(
            f'{{"order": {number}, "customer": "customer-{number % 37}"}}',
            fixed_time=now_ms + (number - 40) * HOUR_MS // 60,
            headers={"source": "web"},
        )
        for number in range(400)
    ]
    broker.queue("Orders").send(orders)
    broker.queue("Orders").send(orders[:80])  # merges


def bury_alerts(broker: Broker) -> None:
    """Lets alerts die, of three reasons."""
    with broker.consumer("Alerts", "pager") as consumer:
        batch = consumer.poll(30)
        failed = list(batch)
        batch.rollback(failed[:12], reason=ConnectionError("the pager does not answer"))
        batch.rollback(failed[12:18], reason=ValueError("unknown <b>receiver</b> 17"))
        batch.rollback(failed[18:20])
        batch.commit()


def hold_replans(broker: Broker) -> None:
    """Leaves a claim of a consumer in progress, and messages that wait for a retry."""
    time.sleep(0.06)
    first = broker.consumer("Replan", "planner")
    batch = first.poll(10)
    batch.rollback(list(batch)[:4], reason="not now")
    batch.commit()
    first.close()
    # It is not closed: closing would give its messages back.
    HELD.append(broker.consumer("Replan", "planner-2"))
    HELD[-1].poll(15)


HELD = []
