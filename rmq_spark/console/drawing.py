"""Lines and bars as SVG, drawn by the server: a page needs no library for charts."""

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from rmq_spark.views.rates import Rate

LINE_WIDTH, LINE_HEIGHT = 120, 24
# A line shows so many seconds, and is broken where nobody looked for longer than a gap.
SECONDS_SHOWN = 300.0
LONGEST_GAP_S = 30.0


def rate_line(rates: Sequence[Rate]) -> Markup:
    """Draw messages in and out per second, the latest at the right."""
    end_s = rates[-1].at_s if rates else 0.0
    shown = [rate for rate in rates if rate.at_s > end_s - SECONDS_SHOWN]
    most = max((max(rate.came, rate.went) for rate in shown), default=0.0) or 1.0
    came = _path([(rate.at_s, rate.came) for rate in shown], end_s, most)
    went = _path([(rate.at_s, rate.went) for rate in shown], end_s, most)
    return Markup(
        '<svg class="line" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="came" d="{}"/><path class="went" d="{}"/></svg>'
    ).format(LINE_WIDTH, LINE_HEIGHT, came, went)


def _path(points: Sequence[tuple[float, float]], end_s: float, most: float) -> str:
    drawn = [
        (
            LINE_WIDTH * (1 - (end_s - at_s) / SECONDS_SHOWN),
            1 + (LINE_HEIGHT - 2) * (1 - value / most),
        )
        for at_s, value in points
    ]
    gap = LINE_WIDTH * LONGEST_GAP_S / SECONDS_SHOWN
    steps = [f"M{drawn[0][0]:.1f} {drawn[0][1]:.1f}"] if drawn else []
    for (before, _), (x, y) in pairwise(drawn):
        steps.append(f"{'M' if x - before > gap else 'L'}{x:.1f} {y:.1f}")
    return "".join(steps)


def bar(value: int, most: int, kind: str = "") -> Markup:
    """Draw a horizontal bar. kind: a class, which gives its colour."""
    width = 0.0 if most <= 0 else max(0.5 if value else 0.0, 100 * value / most)
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="{:.2f}" height="8"/></svg>'
    ).format(kind, width)
