"""Whether Kubernetes, KEDA and the operator of Prometheus know the fields of manifests.

Packages of npm have their types, made from the sources and resource definitions of these projects:
the compiler of TypeScript refuses unknown and missing fields, a schema wrong values.
"""

import fcntl
import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import missing
from .jars import KEPT

PACKAGES = (
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "kubernetes-models@5.1.0",
    "typescript@5.9.3",
)
OF_GROUP = {
    "apps": "kubernetes-models/apps",
    "keda.sh": "@kubernetes-models/keda/keda.sh",
    "monitoring.coreos.com": "@kubernetes-models/prometheus-operator/monitoring.coreos.com",
}
COMPILER = ["--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]
INSTALLED_S = CHECKED_S = 300


class Refused(AssertionError):
    """A manifest has a field or a value that the cluster would not take."""


def check(documents: Iterable[dict[str, Any]]) -> None:
    """Raise Refused with the messages of the compiler or of the schema."""
    node = missing.found("node", "Node.js, which checks manifests", "apt-get install nodejs npm")
    lines = []
    for number, document in enumerate(documents):
        group, version = document["apiVersion"].split("/")
        kind = document["kind"]
        lines += [
            f"import {{ {kind} as Kind{number}, type I{kind} as Fields{number} }}"
            f' from "{OF_GROUP[group]}/{version}";',
            f"const of{number}: Fields{number} = {json.dumps(document)};",
            f"new Kind{number}(of{number}).validate();",
        ]
    with tempfile.TemporaryDirectory(dir=_installed()) as folder:
        Path(folder, "package.json").write_text('{"type": "module"}')
        Path(folder, "manifests.ts").write_text("\n".join(lines))
        compiler = Path(folder, "../node_modules/typescript/bin/tsc")
        for command in ([node, compiler, *COMPILER, "manifests.ts"], [node, "manifests.js"]):
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=CHECKED_S
            )
            if done.returncode:
                raise Refused(done.stdout + done.stderr)


def _installed() -> Path:
    """Return the folder with the packages; the first call fetches them."""
    folder = KEPT / f"kubernetes-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:12]}"
    KEPT.mkdir(exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of pytest may want them
        if not folder.exists():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    """Fetch all packages, or none."""
    npm = missing.found("npm", "npm, which gets types of Kubernetes", "apt-get install npm")
    quiet = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
    with tempfile.TemporaryDirectory(dir=KEPT) as unfinished:
        made = Path(unfinished, "made")
        made.mkdir()
        done = subprocess.run(
            [npm, "install", "--prefix", made, *quiet, *PACKAGES],
            capture_output=True,
            text=True,
            timeout=INSTALLED_S,
        )
        if done.returncode:
            missing.do_without("types of Kubernetes, which npm did not get", done.stderr[-500:])
        made.rename(folder)
