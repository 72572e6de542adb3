"""What surrounds a Spark session."""

from __future__ import annotations

import subprocess
import sys

_A_GATEWAY_THAT_LOST_ITS_JVM = """
import logging
from py4j import clientserver, java_gateway
from tailrace_server.pipeline.spark.session import hush_gateway

hush_gateway()
exec(compile("import logging; logging.exception('root')", java_gateway.__file__, "exec"))
clientserver.logger.error("its own")
logging.getLogger("anybody").error("else")
"""


def test_contract_34_what_the_gateway_logs_of_a_dead_jvm_stays_off_the_screen() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _A_GATEWAY_THAT_LOST_ITS_JVM],
        capture_output=True,
        check=True,
        text=True,
    ).stderr
    assert "root" not in said
    assert "its own" not in said
    assert "else" in said
