"""The progress of a query as its checkpoint shows it.

Spark keeps a file for each planned batch in ``offsets``, with a line for each source, and one for
each finished batch in ``commits``. Both are named by the batch's number.
"""

import json
import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem

from rmq_spark.errors import InvalidOption, quoted, without_login
from rmq_spark.protocol.names import ConsumerName
from rmq_spark.spark.options import Subscription
from rmq_spark.topics.definition import group_text

# From version 2 of Spark's log of offsets on, the name of the source and a colon come first.
_LINE_OF_SOURCE = re.compile(r"(?:\w[^{:]*:)?(?P<offset>\{.*)")
_LOCAL_SCHEME = re.compile(r"\Afile:(//)?(?=/(?!/))", re.IGNORECASE)
# Scheme and host; the path; and the options of a store, which pyarrow takes there.
_URI = re.compile(r"([^/:]+:(?://[^/]*)?)([^?]*)(.*)", re.DOTALL)


@dataclass(frozen=True)
class LoggedProgress:
    """The offset behind the last finished batch, and that behind a batch that is not finished."""

    finished: dict[str, Any] | None = None
    unfinished: dict[str, Any] | None = None


class SeveralSources(InvalidOption):
    """An error for a query of which several sources read a topic in the same group."""


def read_progress(
    path: str, subscription: Subscription, *, must_exist: bool = False
) -> LoggedProgress:
    """Read the offsets of the source with this subscription. Raises InvalidOption.

    must_exist: because Spark has planned a batch.
    """
    try:
        files, folder = place_of(path)
        planned = _batches(files, f"{folder}/offsets", must_exist)
        finished = _batches(files, f"{folder}/commits")
        logged = {
            batch: _offset(_lines(files, f"{folder}/offsets/{batch}"), subscription)
            for batch in {max(planned, default=None), max(finished, default=None)} - {None}
            if batch in planned
        }
    except SeveralSources:
        raise
    except (OSError, ValueError) as error:
        raise InvalidOption(
            f"checkpointLocation={quoted(path)} cannot be read: {without_login(str(error))}. "
            "Accepted: that of the query, as an absolute path or a URI that pyarrow can read on "
            "the driver."
        ) from None
    last, done = max(planned, default=-1), max(finished, default=-1)
    return LoggedProgress(logged.get(done), logged.get(last) if last > done else None)


def place_of(path: str) -> tuple[FileSystem, str]:
    """Find a folder as Spark does: in a path, %20, # or a space stand for themselves."""
    path = _LOCAL_SCHEME.sub("", path)
    uri = _URI.fullmatch(path)
    if uri is None:
        return LocalFileSystem(), os.path.abspath(path)
    place, name, options = uri.groups()
    files, folder = FileSystem.from_uri(place + quote(name, "/:@") + options)
    return files, folder.rstrip("/")


def _batches(files: FileSystem, folder: str, must_exist: bool = False) -> set[int]:
    found = files.get_file_info(FileSelector(folder, allow_not_found=not must_exist))
    return {int(each.base_name) for each in found if each.base_name.isdecimal()}


def _lines(files: FileSystem, path: str) -> list[str]:
    with files.open_input_stream(path) as file:
        content: bytes = file.read()
    return content.decode().splitlines()


def _offset(lines: list[str], subscription: Subscription) -> dict[str, Any]:
    # Behind the version and the metadata, which are of no source.
    found = filter(None, map(_LINE_OF_SOURCE.fullmatch, lines[2:]))
    offsets = [offset for line in found if "consumer" in (offset := json.loads(line["offset"]))]
    ours = [offset for offset in offsets if subscription.continues(str(offset.get("topic")))]
    if not ours and offsets:
        others = " and ".join(str(offset.get("topic")) for offset in offsets)
        raise ValueError(f"its query reads {others}, not {subscription.text}")
    if len(ours) > 1:  # a source that the query uses twice has two equal lines
        ours = [one for at, one in enumerate(ours) if one not in ours[:at]]
        ours = [one for one in ours if _group_of(one) == subscription.group]
    if len(ours) > 1:
        raise SeveralSources(
            f"{len(ours)} sources of the query read {subscription.text} in the group "
            f"{group_text(subscription.group)}, so each message reaches only one of them. A "
            "DataFrame that is joined with itself has two sources. Give each load() its own "
            "consumer group, or join inside foreachBatch."
        )
    if not ours:
        raise ValueError(f"none of its sources reads {subscription.text}")
    return dict(ours[0])


def _group_of(offset: dict[str, Any]) -> str:
    return ConsumerName.parse(str(offset["consumer"])).group
