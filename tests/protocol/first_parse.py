"""Many threads that parse a document of a shape that none has parsed before: run as a process of its own."""

import sys
from contextlib import suppress
from threading import Barrier, Thread

from gauntlet.shapes import ReportShape
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import parse_as

THREADS = 8
REPORT = b"""{"peers":{"a":{"repetition":{"confirmed":true,"declared":1,"gradients":[0.1],"moves":[0.1],"round":1,
"steps":1},"uid":1,"weight":0.1}},"round":1}""".replace(b"\n", b"")


def main() -> None:
    sys.setswitchinterval(1e-6)
    together = Barrier(THREADS)

    def parse() -> None:
        together.wait()
        with suppress(InvalidMessage):
            parse_as(REPORT, ReportShape)

    threads = [Thread(target=parse) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
