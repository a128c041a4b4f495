"""The tests: a package a room, helpers of several rooms beside them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]  # of the checkout
