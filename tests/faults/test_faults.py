"""A smaller round of `make faults`: the faults that say most and take least."""

import pytest

from .. import servers
from ..processes import PROC
from .injections import FAULTS
from .run_faults import Round

SMALL = (
    *(("drop", "parquet"), ("redis-kill", "keyed"), ("worker-kill", "parquet")),
    *(("fallback-rdb", "twice"), ("fallback-replica", "parquet")),
)


@pytest.mark.long
@pytest.mark.timeout(900)  # whole minutes on a machine that has much else to do
@pytest.mark.skipif(not PROC.is_dir(), reason="looks processes up under /proc")
def test_what_real_queries_deliver_while_things_die_under_them(tmp_path):
    if not servers.executables():
        servers.do_without()
    named = {fault.name: fault for fault in FAULTS}
    small = Round(tmp_path, messages=3000, times=3, seed=7)
    verdicts = small.run([(named[name], sink) for name, sink in SMALL])
    assert [verdict.faults_found() for verdict in verdicts] == [[]] * len(SMALL)
