"""A real browser, Debian's or the system's Chromium, without the network."""

import shutil
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

from .. import missing

# It must not call home, and as root it cannot have a sandbox.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str:
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    return found or missing.do_without("Chromium", "apt-get install chromium fonts-dejavu-core")


@contextmanager
def launched():
    """A browser with an empty profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(), headless=True, args=list(FLAGS)
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, width=1280, height=900, dark=False):
    """A page of a session of its own, in a time zone that is not UTC."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        timezone_id="Asia/Kolkata",
        locale="en-GB",
    )
    try:
        yield context.new_page()
    finally:
        context.close()
