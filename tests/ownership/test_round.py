"""A smaller round of `make ownership-demo`, and proof that it would see what ownership prevents."""

import pytest

from .. import quick_spark, servers
from ..processes import NEEDS_PROC
from .round import Round, few_services, short

pytestmark = [
    pytest.mark.timeout(900),  # whole minutes on a machine that has much else to do
    NEEDS_PROC,
]


@pytest.fixture(autouse=True)
def _needs_redis():
    if not servers.executables():
        servers.do_without()


@pytest.fixture(autouse=True)
def _starts_fast(monkeypatch):
    for name, value in quick_spark.java_variables().items():
        monkeypatch.setenv(name, value)


@pytest.mark.rounds
def test_a_query_and_a_service_never_work_on_one_stream_at_once(tmp_path):
    with Round(tmp_path, per_second=20, seed=7).running() as round_:
        short(round_)
        verdict = round_.finish()
    assert verdict.holds, verdict
    assert verdict.processed == verdict.sent >= 60


@pytest.mark.long
def test_no_two_services_work_on_one_stream_whatever_happens_to_them(tmp_path):
    with Round(tmp_path, per_second=40, seed=7).running() as round_:
        few_services(round_)
        verdict = round_.finish()
    assert verdict.holds, verdict
    assert verdict.processed == verdict.sent >= 100


@pytest.mark.rounds
def test_without_ownership_two_queries_work_on_one_stream_at_once(tmp_path):
    """Else the test above would prove nothing."""
    with Round(tmp_path, per_second=100, seed=7, owned=False).running() as round_:
        round_.add("q1")
        round_.add("q2")
        for name in ("q1", "q2"):
            round_.until(f"{name} works", lambda name=name: round_.processed()[name] > 50)
        verdict = round_.finish()
    assert verdict.overlaps
    assert not verdict.lost
