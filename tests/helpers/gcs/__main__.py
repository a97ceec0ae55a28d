"""The fake store as a process: `python -m tests.helpers.gcs PORT` prints its address and runs until it is killed.

With `--until-eof` it ends with its standard input, and so with the process that started it. The control path `/_fake/`
is what `Gcs` in client.py uses: `Gcs("http://127.0.0.1:PORT")` holds such a store.
"""

import signal
import sys

from tests.helpers.gcs.server import Server

if __name__ == "__main__":
    ports = [argument for argument in sys.argv[1:] if argument.isdigit()]
    server = Server(int(ports[0]) if ports else 0)
    server.start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    if "--until-eof" in sys.argv:
        sys.stdin.read()
    else:
        signal.pause()
    server.stop()
