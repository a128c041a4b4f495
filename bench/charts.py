"""Draw what `make bench-peers` has measured as bars: messages a second, sent and received.

It reads results/peers.json, and writes results/peers.png.
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

RESULTS = Path(__file__).parent / "results"
OURS, THEIRS = "#c0392b", "#7f8c8d"
# How a figure of ours is called in the picture.
WAYS = {"send": "sent", "call": "received by a function"}


def bars(results: Path, way: str) -> dict[str, float]:
    """Return the medians of one way: ours first, then those of each peer."""
    found: dict[str, float] = {}
    for figure in json.loads((results / "peers.json").read_text())["figures"]:
        at, _, ours = figure["name"].partition(": ")
        if at == way:
            found[f"RMQ: {ours}"] = figure["median"]
            found[figure["against"]] = sorted(figure["beside"])[len(figure["beside"]) // 2]
    return found


def draw(results: Path) -> Path:
    """Draw a panel for each way."""
    figure, panels = pyplot.subplots(1, len(WAYS), figsize=(10, 2.6), layout="constrained")
    for panel, (way, title) in zip(panels, WAYS.items(), strict=True):
        found = bars(results, way)
        names = list(reversed(found))
        colours = [OURS if name.startswith("RMQ: ") else THEIRS for name in names]
        drawn = panel.barh(names, [found[name] for name in names], color=colours)
        panel.bar_label(drawn, [f"{found[name]:,.0f}" for name in names], padding=3, fontsize=8)
        panel.set(title=f"messages/s {title}", xlim=(0, 1.2 * max(found.values())))
        panel.xaxis.set_visible(False)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    picture = results / "peers.png"
    figure.savefig(picture, dpi=100)
    pyplot.close(figure)
    return picture


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="charts.py", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: bench/results")
    print(draw(parser.parse_args().results))
