"""A short round of the outbox under kills; ``make outbox`` runs the long one."""

import pytest

from .. import postgres
from .outbox_round import Outcome, run_round


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_order_is_lost_and_none_is_refused_wrongly_while_the_job_is_killed():
    postgres.driver()
    outcome = run_round(seed=3, orders=600, kills=2, export_kills=1, seconds=30)
    assert outcome.is_right, outcome
    assert outcome.delivered + outcome.refused_by_topic <= outcome.orders


@pytest.mark.parametrize("field", ["missing", "unexpected", "wrongly"])
def test_one_that_is_elsewhere_is_not_right(field):
    counted = dict.fromkeys(Outcome.__dataclass_fields__, 0) | {"orders": 1, "delivered": 1}
    assert Outcome(**counted).is_right
    assert not Outcome(**counted | {field: 1}).is_right
