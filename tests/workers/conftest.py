"""The modules that these tests share with those of faults."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))  # for processes
