"""A real browser, Debian's or the system's Chromium, without the network."""

import os
import shutil
from contextlib import contextmanager
from typing import NoReturn

import pytest
from playwright.sync_api import sync_playwright

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


def do_without() -> NoReturn:
    """Skips the test on a laptop, fails it in CI."""
    text = "No Chromium was found: 'apt-get install chromium'."
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def executable() -> str:
    return next(filter(None, map(shutil.which, PROGRAMS)), None) or do_without()


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
