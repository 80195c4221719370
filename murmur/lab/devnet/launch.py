"""Launch and control of a devnet as a child process, for the local network's supervisor and for tests.

The child belongs to the caller, who must stop it. Never imports bittensor.
"""

import ctypes
import json
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from murmur.lab.devnet.genesis import Genesis
from murmur.protocol.errors import ChainError, ConfigError

START_SECONDS = 60.0
STOP_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
ANSWER_SECONDS = 60.0


@dataclass
class Devnet:
    """A running devnet. `url` is the value for a node's --network; `genesis` the hash of block 0 as 0x-hex. `again` are
    python's arguments that restart it after a crash, with its blocks and under the same url."""

    process: subprocess.Popen[str]
    url: str
    genesis: str
    again: Sequence[str]

    def admin(self) -> "Admin":
        return Admin(self.url)

    def stop(self) -> None:
        """Terminate it; kill it when it does not end in time."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """Send SIGKILL, as in a crash."""
        self.process.kill()
        self.process.wait()


def start(
    data: Path,
    genesis: Genesis | None = None,
    *,
    port: int = 0,
    block_seconds: float = 0.25,
    step: bool = False,
    finality_lag_blocks: int = 0,
    keep_blocks: int | None = None,
    log: IO[str] | None = None,
) -> Devnet:
    """Start a devnet in folder `data` and wait until it answers; `genesis` is needed when the folder is new.

    A Ctrl-C in the caller's terminal does not reach it, so nodes that still use it can be stopped first. `log` receives
    its stderr (default: the caller's), with the reason when it does not start. That failure raises ConfigError.
    """
    data.mkdir(parents=True, exist_ok=True)
    program = ["-m", "murmur.lab.devnet", "--data", str(data)]
    program += ["--finality-lag", str(finality_lag_blocks)]
    program += [] if keep_blocks is None else ["--keep-blocks", str(keep_blocks)]
    program += ["--step"] if step else ["--block-seconds", str(block_seconds)]
    command = [sys.executable, *program, "--port", str(port)]
    if genesis is not None:
        path = data / "genesis.json"
        genesis.save(path)
        command += ["--genesis", str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, preexec_fn=end_with_parent
    )
    try:
        ready = json.loads(_first_line(process))
    except ValueError:
        process.kill()
        raise ConfigError(
            f"the devnet in {data} did not start within {START_SECONDS:.0f} s (exit status {process.wait()}): "
            "see its messages on stderr or in its log"
        ) from None
    again = [*program, "--port", str(urlsplit(ready["url"]).port)]
    return Devnet(process, ready["url"], ready["genesis"], again)


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Make the kernel end this child when its parent dies, for whatever reason (Linux). For a child's preexec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)


def _first_line(process: subprocess.Popen[str]) -> str:
    """Return the one line that the devnet prints; empty when it ended, or START_SECONDS passed, without one."""
    assert process.stdout is not None
    with process.stdout, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(START_SECONDS) else ""


@dataclass(frozen=True, slots=True)
class Admin:
    """The devnet_* calls, each over its own connection, so that this object survives restarts of the devnet.

    Each returns the resulting {"genesis", "head", "finalized", "oldest", "netuid", "waiting"}.
    """

    url: str

    def step(self, blocks: int = 1) -> dict[str, Any]:
        """Make this many blocks now."""
        return self._info("devnet_step", blocks)

    def reorg(self, depth: int, *, drop: bool = False, empty_blocks: int = 0) -> dict[str, Any]:
        """Replace the last `depth` blocks by a branch one longer (author.Author.reorg)."""
        return self._info("devnet_reorg", depth, drop, empty_blocks)

    def finality(self, lag_blocks: int) -> dict[str, Any]:
        """Make finality trail the head by this lag from the next block on; a huge lag is a stall."""
        return self._info("devnet_finality", lag_blocks)

    def reveals(self, reveals: bool) -> dict[str, Any]:
        """Whether sealed weights are opened when they are due, from the next block on."""
        return self._info("devnet_reveals", reveals)

    def info(self) -> dict[str, Any]:
        return self._info("devnet_info")

    def _info(self, method: str, *params: Any) -> dict[str, Any]:
        return dict(self.request(method, *params))

    def request(self, method: str, *params: Any) -> Any:
        """Send any JSON-RPC request. Raises ChainError, with the chain's message, when it refuses or cannot be
        reached."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        try:
            with connect(self.url, compression=None, max_size=None) as connection:
                connection.send(json.dumps(message))
                answer = json.loads(connection.recv(ANSWER_SECONDS))
        except (OSError, WebSocketException) as error:
            raise ChainError(f"the devnet at {self.url} did not answer {method}: {error}") from error
        if "error" in answer:
            refusal = answer["error"]
            raise ChainError(f"{refusal['message']}: {refusal.get('data', '')}", code=str(refusal["code"]))
        return answer["result"]
