"""``python -m tailrace_server.machine_code``: compile what servers load, for installers and images."""

import logging

from tailrace_server.codecs.compiled_encoder_loader import begin_loading
from tailrace_server.typed.loops import loops_made

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    begin_loading().join()
    loops_made()
