"""Compares pinned packages with the database of known vulnerabilities at osv.dev: make audit.

Its argument is a file of pins, constraints.txt by default. Exits with 0 where nothing is known, and
where the database cannot be reached, which one line then says.
"""

import subprocess
import sys
import urllib.request

from .. import ROOT

DATABASE = "https://api.osv.dev"
PINS = ROOT / "constraints.txt"
REACH_S = 10
SKIPPED = f"audit: skipped, {DATABASE} cannot be reached"


def unreachable():
    """Why the database cannot be reached, or None."""
    try:
        urllib.request.urlopen(f"{DATABASE}/v1/vulns/PYSEC-2021-66", timeout=REACH_S).close()
    except OSError as error:
        return str(error)
    return None


def main(pins):
    reason = unreachable()
    if reason is not None:
        sys.stdout.write(f"{SKIPPED}: {reason}\n")
        return 0
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", "osv", "--no-deps"]
    # The pins are complete, so nothing is installed or looked up elsewhere.
    command += ["--disable-pip", "--progress-spinner", "off", "--requirement", pins]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else str(PINS)))
