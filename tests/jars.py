"""Jars that tests need, copied by Maven into a folder that is kept."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import ROOT, missing

KEPT = ROOT / ".jars"
COPIED_S = 600


def jars(pom: Path, profile: str, **properties: str) -> list[str]:
    """Return the paths of the runtime jars that a profile of a pom names; the first call copies.

    properties: of the pom, to set. The folder is named after these and the pom's text: another
    version gets another folder.
    """
    given = [f"-D{name}={value}" for name, value in properties.items()]
    text = hashlib.sha256(pom.read_bytes() + "".join(given).encode()).hexdigest()[:12]
    folder = KEPT / f"{pom.stem}-{profile}-{text}"
    KEPT.mkdir(exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of pytest may want them
        if not folder.exists():
            _copy(pom, profile, given, folder)
    return sorted(map(str, folder.glob("*.jar")))


def _copy(pom: Path, profile: str, given: list[str], folder: Path) -> None:
    """Copy all jars, or none."""
    maven = shutil.which("mvn")
    if maven is None:
        missing.do_without("Maven, which gets jars", "apt-get install maven")
    with tempfile.TemporaryDirectory(dir=KEPT) as unfinished:
        into = f"-DoutputDirectory={unfinished}/jars"
        copy = ("dependency:copy-dependencies", "-DincludeScope=runtime", into)
        done = subprocess.run(
            [maven, "-q", "-B", "-f", pom, "-P", profile, *given, *copy],
            capture_output=True,
            text=True,
            timeout=COPIED_S,
        )
        if done.returncode:
            what = f"the jars of {pom.name}, which Maven did not get"
            missing.do_without(what, done.stdout[-500:])
        Path(unfinished, "jars").rename(folder)
