"""Points in time as people write them."""

import pytest

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.moments import parse_moment_from_now_ms
from rmq_spark.topics.scores import HIGHEST_SCORE

NOW_MS = 1_893_456_000_000  # 2030-01-01


def parsed(text):
    return parse_moment_from_now_ms("--from", text, lambda: NOW_MS)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", NOW_MS),
        ("30s", NOW_MS + 30_000),
        ("+1.5h", NOW_MS + 5_400_000),
        ("-1d", NOW_MS - 86_400_000),
        (" - 2 min ", NOW_MS - 120_000),
        ("0", 0),
        ("1893456000000", NOW_MS),
        ("2030-01-01T01:00+01:00", NOW_MS),
        ("20300101T000000Z", NOW_MS),
        (str(HIGHEST_SCORE), HIGHEST_SCORE),
    ],
)
def test_a_moment_is_absolute_or_from_now(text, ms):
    assert parsed(text) == ms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", r"Or from now: 30s, -1h, now"),
        ("2030-01-01", "ISO 8601 with a zone"),
        ("30 weeks", "is no duration"),
        ("-30000d", "is too far from now"),
        ("999999999999d", "is too far from now"),
        (str(HIGHEST_SCORE + 1), "Or from now"),
        ("", "Or from now"),
    ],
)
def test_another_text_is_refused(text, said):
    with pytest.raises(InvalidOption, match=said) as raised:
        parsed(text)
    assert f"--from={text!r}" in str(raised.value)
