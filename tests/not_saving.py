"""A Redis that cannot save, as on a full disk. It takes no writes (MISCONF) until it can."""

from contextlib import contextmanager
from pathlib import Path

from .waiting import wait_until


@contextmanager
def not_saving(admin):
    """A folder with the name of the file that the server writes."""
    admin.config_set("save", "3600 1")
    obstacle = _file_of(admin)
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    admin.bgsave()
    wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err", "the failure")
    yield
    save_again(admin)


def save_again(admin):
    """Remove the obstacle, and let the server find out."""
    if _file_of(admin).is_dir():
        _file_of(admin).rmdir()
    admin.bgsave()
    wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "ok", "a save")


def _file_of(admin):
    return Path(admin.config_get("dir")["dir"], "dump.rdb")
