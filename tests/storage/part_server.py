"""A script for the hostile server: just enough of S3 to take objects, in parts too, and to go wrong at it."""

import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import md5

from tests.storage.hostile import response

SECONDS = 60.0


@dataclass
class PartServer:
    """Objects of one bucket, by key. `in_order`: a part is answered only once all in front of it are there.
    `on_complete`: called with how many completions were asked for; False breaks the connection before anything is done.
    `on_completed`: the same, when it is done, in place of the answer. `keeps`: False throws away what comes, block by
    block."""

    keeps: bool = True
    in_order: bool = False
    on_complete: Callable[[int], bool] = lambda number: True
    on_completed: Callable[[int], bool] = lambda number: True
    objects: dict[str, bytes] = field(default_factory=dict)
    parts: dict[int, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """begin, part N, complete, abort, put, head and get, in the order of arrival."""
    open: bool = False
    completions: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, connection: socket.socket, head: bytes) -> None:
        head, _, body = head.partition(b"\r\n\r\n")
        found = re.match(rb"(\w+) /bucket/?([^ ?]*)\??(\S*) ", head)
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        assert found is not None
        verb, key, query = (text.decode() for text in found.groups())
        rest, left = bytearray(body), int(length[1]) - len(body) if length else 0
        while left > 0:
            block = connection.recv(1 << 16)
            if not block:
                return
            left -= len(block)
            if self.keeps:
                rest += block
        answer = self.answer(verb, key, query, bytes(rest))
        if answer is not None:
            # Said, as it ends here: a client that took it for open would lose its next request on it, now and then.
            connection.sendall(answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    def answer(self, verb: str, key: str, query: str, body: bytes) -> bytes | None:
        part = re.search(r"partNumber=(\d+)", query)
        with self.changed:
            if verb == "POST" and query == "uploads":
                self.asked.append("begin")
                self.open, self.parts = True, {}
                return says("<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
            if verb == "PUT" and part:
                return self.part(int(part[1]), body)
            if verb == "POST":
                return self.complete(key)
            self.asked.append("abort" if query else verb.lower())
            if verb == "DELETE":
                self.open = False
                self.changed.notify_all()
                return response("204 No Content")
            if verb == "PUT":
                self.objects[key] = body
                return response("200 OK", "Content-Length: 0", 'ETag: "e"')
            if not key:
                return response("200 OK", "Content-Length: 0")
            if key not in self.objects:
                return response("404 Not Found", "Content-Length: 0")
            data = self.objects[key]
            facts = (f"Content-Length: {len(data)}", f'ETag: "{md5(data).hexdigest()}"')
            return response("200 OK", *facts, body=b"" if verb == "HEAD" else data)

    def part(self, number: int, body: bytes) -> bytes | None:
        self.asked.append(f"part {number}")
        if self.in_order:
            self.changed.wait_for(lambda: not self.open or all(n in self.parts for n in range(1, number)), SECONDS)
        if not self.open:
            return says("<Error><Code>NoSuchUpload</Code></Error>", "404 Not Found")
        self.parts[number] = body
        self.changed.notify_all()
        return response("200 OK", "Content-Length: 0", f'ETag: "{number}"')

    def complete(self, key: str) -> bytes | None:
        self.asked.append("complete")
        self.completions += 1
        if not self.on_complete(self.completions):
            return None
        if not self.open:
            return says("<Error><Code>NoSuchUpload</Code></Error>", "404 Not Found")
        self.open = False
        self.objects[key] = b"".join(data for _, data in sorted(self.parts.items()))
        if not self.on_completed(self.completions):
            return None
        return says("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")


def says(body: str, status: str = "200 OK") -> bytes:
    return response(status, f"Content-Length: {len(body)}", body=body.encode())
