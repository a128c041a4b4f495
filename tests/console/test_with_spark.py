"""A real streaming query, looked at and steered through the console in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from .browsers import opened


@pytest.mark.long
def test_a_running_query_is_seen_paused_and_resumed(spark, redis_url, site, browser, tmp_path):
    site.broker.create("Flights", "FixedTime", 4)
    queue = site.broker.queue("Flights")
    query = (
        spark.readStream.format("rmq")
        .option("redis.url", redis_url)
        .option("keyPrefix", site.broker.key_prefix)
        .option("topic", "Flights")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "out"))
    )
    try:
        with opened(browser) as page:
            queue.send([f"{number}" for number in range(500)], fixed_time=1)
            page.goto(f"{site.address}topics/Flights")
            counters = page.locator("#counters")
            expect(counters).to_contain_text(re.compile("committed\\s*500"), timeout=120_000)
            expect(page.locator("#consumers tbody th")).to_have_count(1)
            page.get_by_role("button", name="Pause delivery").click()
            expect(page.get_by_role("status")).to_contain_text("is paused")
            queue.send([f"later {number}" for number in range(70)], fixed_time=1)
            expect(page.locator("#figures")).to_contain_text("70 due now")
            page.wait_for_timeout(3000)
            assert queue.figures().counters["committed"] == 500
            page.get_by_role("button", name="Resume delivery").click()
            expect(counters).to_contain_text(re.compile("committed\\s*570"), timeout=120_000)
            page.goto(f"{site.address}consumers")
            expect(page.locator("#all-consumers tbody tr")).to_have_count(1)
            expect(page.locator("#all-consumers")).to_contain_text("Flights")
    finally:
        query.stop()
