"""Write all that is due in Orders into Parquet every night, as a DAG of Airflow 3.

Airflow needs nothing of RMQ: the job runs in a virtual environment of its own. RMQ_REDIS_URL is set
for Airflow's workers.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "drain_orders",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,  # one run takes what the missed ones would have
    max_active_runs=1,  # all runs share the checkpoint
) as dag:
    # A run after a failed one repeats its unfinished batch, and each message is there once.
    BashOperator(
        task_id="drain",
        bash_command=(
            "/srv/shop/venv/bin/rmq job export --topic Orders --once"
            " --checkpoint /srv/shop/orders-checkpoint --to parquet --path /srv/shop/orders"
        ),
        retries=3,
        retry_delay=timedelta(minutes=5),
    )
