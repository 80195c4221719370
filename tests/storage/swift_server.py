"""A whole OpenStack Swift with s3api in one process and one folder, for the contract suite:

    python -m tests.storage.swift_server FOLDER

Proxy, account, container and object servers share one event loop on free ports of 127.0.0.1; one replica, one device.
Tempauth knows the account's owner (who may do everything) and a reader, to whom the container's ACL gives reading.
FOLDER/ready.json is written when it serves. Needs extended attributes in FOLDER. Never imported by the tests:
eventlet patches the process that it runs in.
"""

import eventlet

eventlet.monkey_patch()

import json  # noqa: E402
import logging  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import eventlet.wsgi  # noqa: E402

ACCOUNT = "AUTH_test"
CONTAINER = "miner-0"

SWIFT = """
[swift-hash]
swift_hash_path_suffix = contract
swift_hash_path_prefix = contract
[storage-policy:0]
name = one
default = yes
"""

BACKEND = """
[DEFAULT]
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
fallocate_reserve = 0
[pipeline:main]
pipeline = server
[app:server]
use = egg:swift#{kind}
"""

PROXY = """
[DEFAULT]
swift_dir = {folder}
[pipeline:main]
pipeline = {pipeline}
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
node_timeout = 20
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = auto
[filter:tempauth]
use = egg:swift#tempauth
user_test_owner = owner-secret .admin
user_test_reader = reader-secret
user_test_stranger = stranger-secret
[filter:slo]
use = egg:swift#slo
[filter:bulk]
use = egg:swift#bulk
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:gatekeeper]
use = egg:swift#gatekeeper
"""


def main(folder: Path) -> None:
    (folder / "swift.conf").write_text(SWIFT)
    from swift.common import storage_policy, utils

    utils.set_swift_dir(str(folder))
    utils.validate_hash_conf()
    storage_policy.reload_storage_policies()
    from swift.common.ring import RingBuilder
    from swift.common.wsgi import loadapp

    quiet = logging.getLogger("quiet")
    quiet.disabled = True

    def serve(sock: object, app: object) -> None:
        eventlet.spawn(eventlet.wsgi.server, sock, app, quiet, log_output=False, keepalive=True)

    backends = {}
    for kind in ("account", "container", "object"):
        backends[kind] = eventlet.listen(("127.0.0.1", 0))
        builder = RingBuilder(1, 1, 1)
        port = backends[kind].getsockname()[1]
        device = {"id": 0, "region": 1, "zone": 1, "weight": 1, "ip": "127.0.0.1", "port": port, "device": "d0"}
        builder.add_dev({**device, "replication_ip": "127.0.0.1", "replication_port": port, "meta": ""})
        builder.rebalance()
        builder.get_ring().save(str(folder / f"{kind}.ring.gz"))
    (folder / "devices" / "d0").mkdir(parents=True)
    for kind, sock in backends.items():
        (folder / f"{kind}.conf").write_text(BACKEND.format(folder=folder, kind=kind))
        serve(sock, loadapp(str(folder / f"{kind}.conf")))
    filters = "gatekeeper listing_formats bulk s3api tempauth slo"
    (folder / "proxy.conf").write_text(PROXY.format(folder=folder, pipeline=f"{filters} proxy-server"))
    (folder / "inner.conf").write_text(PROXY.format(folder=folder, pipeline="proxy-server"))
    front = eventlet.listen(("127.0.0.1", 0))
    serve(front, loadapp(str(folder / "proxy.conf")))
    # Without tempauth in the way: the container and who may read it.
    from swift.common.swob import Request

    inner = loadapp(str(folder / "inner.conf"))
    readers = {"X-Container-Read": "test:reader"}
    # Parts of a multipart upload live in a second container, which a reader reads too.
    for name in (CONTAINER, f"{CONTAINER}+segments"):
        owned = {"swift_owner": True, "REQUEST_METHOD": "PUT"}
        answer = Request.blank(f"/v1/{ACCOUNT}/{name}", environ=owned, headers=readers).get_response(inner)
        assert answer.status_int == 201, answer.status
    ready = {"endpoint": f"http://127.0.0.1:{front.getsockname()[1]}", "bucket": CONTAINER}
    (folder / "ready.tmp").write_text(json.dumps(ready))
    (folder / "ready.tmp").rename(folder / "ready.json")
    while True:
        eventlet.sleep(3600)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
