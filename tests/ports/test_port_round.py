"""A short round under kills for some ports; ``make ports`` runs long ones for all."""

import pytest

from .kafka_ports import KafkaTargetOnce
from .lake_ports import IcebergTarget
from .port_round import Outcome, counted, run_round

# delta_checks.py kills exports into Delta, and tests/jobs/outbox_round.py those into databases.
PORTS = [
    pytest.param(KafkaTargetOnce, marks=pytest.mark.long),
    pytest.param(IcebergTarget, marks=pytest.mark.rounds),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("port", PORTS)
def test_every_message_arrives_while_the_job_is_killed(port):
    outcome, _ = run_round(port, seed=3, messages=1200, kills=2)
    assert outcome.is_right(port.is_once), outcome
    assert outcome.in_work > 0


@pytest.mark.parametrize("field", ["lost", "unexpected", "wrong_ids", "doubled"])
def test_one_that_is_elsewhere_is_not_right(field):
    good = dict.fromkeys(Outcome.__dataclass_fields__, 0) | {"sent": 1, "delivered": 1}
    assert Outcome(**good).is_right(is_once=True)
    assert not Outcome(**good | {field: 1}).is_right(is_once=True)
    assert Outcome(**good | {"doubled": 1}).is_right(is_once=False)


@pytest.mark.parametrize(
    ("found", "field"),
    [
        ([(0, "a")], "lost"),
        ([(0, "a"), (1, "b"), (1, "b")], "doubled"),
        ([(0, "a"), (1, "b"), (2, "c")], "unexpected"),
        ([(0, "a"), (1, "b"), (1, "c")], "wrong_ids"),
        ([(0, "a"), (1, "a")], "wrong_ids"),
    ],
)
def test_what_is_wrong_is_counted(found, field):
    assert getattr(counted({0, 1}, found, kills=1, in_work=1), field) > 0
    right = counted({0, 1}, [(0, "a"), (1, "b")], kills=1, in_work=1)
    assert getattr(right, field) == 0
