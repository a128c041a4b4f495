"""Tests of options as they are declared."""
