"""A short round of the outbox under kills; ``make outbox`` runs the long one."""

import pytest

from .outbox_round import Outcome, run_round


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgresql", marks=pytest.mark.long),
        pytest.param("mariadb", marks=pytest.mark.rounds),
    ],
)
def test_every_order_arrives_once_while_the_job_is_killed(kind):
    outcome = run_round(kind, seed=3, orders=600, kills=4, export_kills=1, seconds=20)
    assert outcome.is_right, outcome
    assert outcome.delivered + outcome.refused_by_topic <= outcome.orders


@pytest.mark.parametrize("field", ["missing", "unexpected", "wrongly", "twice", "unmarked"])
def test_one_that_is_elsewhere_is_not_right(field):
    counted = dict.fromkeys(Outcome.__dataclass_fields__, 0) | {"orders": 1, "delivered": 1}
    assert Outcome(**counted).is_right
    assert not Outcome(**counted | {field: 1}).is_right
