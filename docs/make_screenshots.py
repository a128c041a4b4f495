"""Make the pictures of console.md: a console on a Redis of its own, in a real browser."""

import argparse
import itertools
import math
import sys
import time
from pathlib import Path

from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rmq_spark.local.redis import LocalRedis  # noqa: E402
from tests.console.browsers import launched, opened  # noqa: E402
from tests.console.site import Site, running  # noqa: E402
from tests.console.stocked import stock  # noqa: E402

# How long messages come and go before the first picture, so that there are lines to draw.
TRAFFIC_S = 40
# The name of each picture, its page, its width, and whether it is dark.
PICTURES = (
    ("topics", "/topics", 1280, False),
    ("topic", "/topics/Orders", 1280, False),
    ("messages", "/topics/Orders/messages?slot=3", 1280, True),
    ("dead", "/topics/Alerts/dead", 1280, False),
    ("phone", "/topics/Orders", 390, True),
)


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(prog="make_screenshots.py", description=__doc__)
    folder = ROOT / "docs" / "pictures"
    parser.add_argument("folder", nargs="?", type=Path, default=folder, help="default: pictures")
    into = parser.parse_args().folder
    into.mkdir(parents=True, exist_ok=True)
    with LocalRedis() as redis, running(redis.url, allow_changes=True) as site:
        stock(site.broker)
        make_lines(site)
        with launched() as browser:
            for name, path, width, dark in PICTURES:
                with opened(browser, width=width, dark=dark) as page:
                    picture(page, site, path, into / f"{name}.png")


def make_lines(site: Site) -> None:
    """Let messages come and go for some time while somebody looks."""
    queue, begun = site.broker.queue("Orders"), time.monotonic()
    with site.broker.consumer("Orders", "billing") as consumer:
        for number in itertools.count():
            spent_s = time.monotonic() - begun
            if spent_s > TRAFFIC_S:
                return
            sent = int(30 + 25 * math.sin(spent_s / 4))
            queue.send([f'{{"order": {1000 + 100 * number + at}}}' for at in range(sent)], delay=0)
            consumer.poll(40).commit()
            site.json("/topics")
            time.sleep(0.25)


def picture(page: Page, site: Site, path: str, file: Path) -> None:
    """Open a page, wait for its second look, and make a picture of it."""
    page.goto(site.address.rstrip("/") + path)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file, full_page=True)
    sys.stdout.write(f"{file.name}\n")


if __name__ == "__main__":
    main()
