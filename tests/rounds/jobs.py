"""Jobs of jobs/ that are killed with all their processes, and the ground on which they run."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rmq_spark.local.redis import LocalRedis

from .. import ROOT, programs, quick_spark


class Jobs:
    """Starts jobs in a folder, where each writes a log. variables: more than all programs get."""

    def __init__(self, folder: Path, redis_url: str, **variables: str) -> None:
        self.folder = folder
        self._environment = programs.environment(
            **{"RMQ_REDIS_URL": redis_url, **quick_spark.variables(), **variables}
        )
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a job, as the leader of a group that can be killed as one."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, ROOT / "jobs" / f"{name}.py", *arguments],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Leave nothing running."""
        for process in self._started:
            if process.poll() is None:
                kill(process)

    def log_ends(self) -> str:
        """Return the last characters of each log, for whoever looks into a failure."""
        texts = [
            f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}\n"
            for log in sorted(self.folder.glob("*.log"))
        ]
        return "".join(texts)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill (-9) a job with all its processes; those that have ended are no error."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def jobs_on_a_redis(**variables: str) -> Iterator[tuple[LocalRedis, Jobs]]:
    """A Redis that loses nothing and jobs on it; prints their logs if the round fails."""
    with (
        LocalRedis(settings={"appendfsync": "always"}) as redis,
        tempfile.TemporaryDirectory(prefix="rmq-jobs-") as folder,
    ):
        jobs = Jobs(Path(folder), redis.url, **variables)
        try:
            yield redis, jobs
        except BaseException:
            sys.stderr.write(jobs.log_ends())
            raise
        finally:
            jobs.end()


def run_each(
    names: Iterator[str] | list[str], run: Callable[[str], tuple[bool, Mapping[str, Any]]]
) -> int:
    """Run a round for each name and print its figures. Returns the exit code: 1 if one is wrong."""
    right = True
    for name in names:
        is_right, figures = run(name)
        right = right and is_right
        lines = [f"  {title:17} {value:,}" for title, value in figures.items()]
        sys.stdout.write("\n".join([name, *lines]) + "\n")
        sys.stdout.flush()
    sys.stdout.write("All is where it must be.\n" if right else "WRONG.\n")
    return 0 if right else 1
