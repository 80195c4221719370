"""Members' beats in their bucket: each member writes one object, again and again."""

from loguru import logger

from murmur.cluster.documents import Documents
from murmur.cluster.group_keys import Group
from murmur.protocol import keys
from murmur.protocol.cluster import Beat
from murmur.protocol.errors import StorageError
from murmur.protocol.messages import NO_ROUND
from murmur.protocol.ports import Time
from murmur.protocol.types import Digest, PeerId
from storage.s3 import SharedBucket

UNSEEN_BEATS = 4
"""So many beats of ours that a listing does not show make its ETags worthless."""


class Beats(Documents):
    """All members' beats, and our own. Thread-safe; each call raises StorageError."""

    def __init__(self, bucket: SharedBucket, run: Digest, group: Group, me: PeerId, time: Time) -> None:
        super().__init__(bucket, run, group, time)
        self.me = me
        self._beats: dict[PeerId, tuple[str, Beat]] = {}
        """The last beats with their ETags."""
        self._beaten, self._own_etag, self._etags_count = 0, ("", 0), True

    def beat(self, beat: Beat, timeout_seconds: float) -> None:
        self.put(keys.beats(self.run) + self.me.hex(), beat, NO_ROUND, self.me, timeout_seconds)
        self._beaten += 1

    def clear(self, member: PeerId) -> None:
        """Delete the beat of a member that is gone for good, and its list of lacked places. If it comes back, it writes
        others."""
        for prefix in (keys.wanted_by(self.run), keys.beats(self.run)):
            self.delete(prefix + member.hex())

    def beats(self) -> dict[PeerId, Beat]:
        """Return each member's last beat."""
        return self.read_beats()[0]

    def read_beats(self) -> tuple[dict[PeerId, Beat], set[PeerId]]:
        """Return each member's last beat, and the members whose beat the store did not bring: it says nothing about
        them. One that has not changed since the last call is not read again, so beats that thousands of dead members
        left cost one listing."""
        prefix, unread = keys.beats(self.run), set[PeerId]()
        listed = self.members_under(prefix)
        known = self._beats if self._etags_tell(listed.get(self.me, "")) else {}
        same = {m: known[m] for m, etag in listed.items() if etag and m in known and known[m][0] == etag}

        def read(member: PeerId) -> Beat | None:
            return self.find_beat(prefix + member.hex(), member)

        changed, asked = dict[PeerId, Beat](), [member for member in listed if member not in same]
        try:
            changed = self.read_each(read, asked, unread)
        except StorageError:
            if not same:
                raise
            unread.update(asked)
        found = {
            m: same[m] if m in same else (etag, changed[m]) for m, etag in listed.items() if m in same or m in changed
        }
        self._beats = found
        return {member: beat for member, (_, beat) in found.items()}, unread

    def _etags_tell(self, own: str) -> bool:
        """Whether ETags of a listing tell what has changed. Not those of a store that has shown one for several of our
        own beats. own: the ETag of our beat."""
        before, beaten = self._own_etag
        if own != before:
            self._own_etag = own, self._beaten
        elif own and self._etags_count and self._beaten >= beaten + UNSEEN_BEATS:
            self._etags_count = False
            logger.warning(
                "the store's listings do not show that objects have changed: every beat is read at every look. "
                "Prefer another store"
            )
        return self._etags_count

    def own_beat(self) -> Beat | None:
        """Return the beat at our place."""
        return self.find_beat(keys.beats(self.run) + self.me.hex(), self.me)

    def find_beat(self, key: str, member: PeerId) -> Beat | None:
        """Return the member's beat under this key."""
        return self.find(Beat, key, NO_ROUND, member)
