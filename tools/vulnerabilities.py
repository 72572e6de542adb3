"""Ask OSV for known vulnerabilities of the packages in requirements.lock; part of ``make check``.

``uv audit`` reads no such file. It reads the head of a script, so one is made from the lock file.
A machine without a way to OSV gets a line that says so, and the check passes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SERVICE: Final = "https://api.osv.dev/"
_PATIENCE_S: Final = 5
_PACKAGE: Final = re.compile(r"^([^\s\\#]+==[^\\]+)", re.MULTILINE)


def script(lock: str) -> str:
    """Return a script that needs the packages of a lock file."""
    packages = [f"#     {json.dumps(found.strip())}," for found in _PACKAGE.findall(lock)]
    return "\n".join(
        [
            "# /// script",
            '# requires-python = ">=3.11"',
            "# dependencies = [",
            *packages,
            "# ]",
            "# ///\n",
        ]
    )


def answers(service: str) -> bool:
    """Return True if a service can be reached; any answer counts."""
    try:
        urllib.request.urlopen(service, timeout=_PATIENCE_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def main(service: str = SERVICE) -> int:
    """Print what is known of the packages; return 1 if one has a known vulnerability."""
    if not answers(service):
        print(f"vulnerabilities of packages: not checked, as {service} does not answer")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "packages.py")
        path.write_text(script((ROOT / "requirements.lock").read_text()))
        command = [sys.executable, "-m", "uv", "audit", "--preview", "--script", str(path)]
        return subprocess.run([*command, "--service-url", service]).returncode


if __name__ == "__main__":
    sys.exit(main())
