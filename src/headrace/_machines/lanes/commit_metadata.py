"""The metadata that KIP-333 commits in its two logs.

The first log is the group's own: the live lane's offset. The second, of the group `<group.id>.backlog`, has the
progress of the backlog lane. Both carry a *mark* in the commit's metadata:

    headrace/2 1240 k3Jx0Q 700 tVXx7G6IYX00 the user's own metadata
    form       |    |      |   |            a note, if there is one
               |    |      |   the completed offsets, packed as in `offset_set.py`
               |    |      their lowest open one
               |    the token that these ranges belong to
               the offset it was committed with; with any other one the text means nothing

In the first log the open ranges below the offset are the *token*: what the live lane has skipped. It is written
together with the live lane's start and before any record from there is handed out. In the second log they are progress,
which counts only for the token that it names: progress for another token was written by a zombie, or is out of date. So
whatever is lost of the second log, or written to it by somebody else, repeats records and never skips one.

A token ends in a name of its group: a group may be called `<group.id>.backlog` although it is somebody else's, perhaps
one with two lanes of its own. Those of headrace 0.1.0 have no such name.

A commit without a mark is a plain one: everything below it is done (and what `OffsetSet.from_text` finds beyond it).
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re

from ...types import OffsetAndMetadata
from ..commit.committed_offset import CommittedOffset
from ..commit.offset_set import OffsetSet, looks_like_ours, note_in

BACKLOG_SUFFIX = ".backlog"

_FORM = "headrace/2"
_TEXT = re.compile(
    _FORM + r" (?P<offset>[0-9]+) (?P<token>[^ ]+) (?P<low>[0-9]+) (?P<packed>[^ ]+)(?: (?P<note>.*))?", re.DOTALL
)
_LIMIT = 4096  # Kafka's offset.metadata.max.bytes


@dataclasses.dataclass(frozen=True, slots=True)
class CommitMark:
    """A commit of one of the two logs."""

    offset: int
    done: OffsetSet
    token: str = ""  # empty: a plain commit
    note: str = ""
    leader_epoch: int | None = None

    @property
    def commit(self) -> OffsetAndMetadata:
        """Raises ValueError if the user's note leaves no room."""
        if not self.token:
            return OffsetAndMetadata(self.offset, self.done.to_text(_LIMIT, self.note), self.leader_epoch)
        head = f"{_FORM} {self.offset} {self.token} {self.done.low} "
        tail = f" {self.note}" if self.note else ""
        packed = self.done.packed(_LIMIT - len(head) - len(tail.encode()))
        if packed is None:
            raise ValueError(f"metadata of {len(self.note.encode())} bytes leaves no room for the backlog's ranges")
        return OffsetAndMetadata(self.offset, f"{head}{packed}{tail}", self.leader_epoch)

    def below(self, end: int) -> CommitMark:
        """The part that is still valid when the log was truncated at `end`."""
        return dataclasses.replace(self, offset=min(self.offset, end), done=self.done & OffsetSet(end))

    @classmethod
    def read(cls, found: OffsetAndMetadata) -> CommitMark:
        """Raises ValueError for a mark that cannot be parsed: to take it for a plain commit would skip its ranges."""
        text = found.metadata
        if not text.startswith(f"{_FORM} "):
            done = OffsetSet.from_text(text, found.offset)
            return cls(found.offset, done, "", note_in(text), found.leader_epoch)
        parts = _TEXT.fullmatch(text)
        if parts is None:
            raise ValueError(f"{text!r} is not a mark")
        note = parts["note"] or ""
        if parts["offset"] != str(found.offset):
            # Somebody has set another offset and kept the text: the offset counts.
            return cls(found.offset, OffsetSet(found.offset), "", note, found.leader_epoch)
        done = OffsetSet.unpacked(parts["packed"], int(parts["low"]))
        return cls(found.offset, done, parts["token"], note, found.leader_epoch)


def is_unused(found: OffsetAndMetadata) -> bool:
    """Whether headrace's text beside a commit is to be ignored: it is damaged, has an unknown form, or was written with
    another offset."""
    text = found.metadata
    if text.startswith(f"{_FORM} "):
        return not CommitMark.read(found).token
    return looks_like_ours(text) and OffsetSet.in_text(text, found.offset) is None


def token_of(group: str, unique: str) -> str:
    """A new token of the group. `unique` has no dot."""
    return f"{unique}.{_name_in_tokens(group)}"


def _name_in_tokens(group: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(group.encode()).digest()[:6]).decode()


def is_progress_of(found: OffsetAndMetadata, group: str) -> bool:
    """Whether a commit in `<group>.backlog` is progress of this group."""
    try:
        token = CommitMark.read(found).token
    except ValueError:
        return False
    _, has_name, name = token.partition(".")
    return bool(token) and (not has_name or name == _name_in_tokens(group))


def is_foreign(found: OffsetAndMetadata, group: str) -> bool:
    """Whether a commit in `<group>.backlog` is somebody else's. A mark that is damaged may be of any group: like others
    of ours, it is overwritten, but it is not deleted."""
    try:
        CommitMark.read(found)
    except ValueError:
        return False
    return not is_progress_of(found, group)


def done_offsets(first: CommitMark, second: CommitMark | None) -> OffsetSet:
    """The completed offsets of the partition, by both logs."""
    if not first.token or second is None or second.token != first.token:
        return first.done
    return first.done | (second.done & OffsetSet(first.offset))


def committed_offset(first: CommitMark, second: CommitMark | None) -> CommittedOffset:
    """What both logs say of the partition."""
    return CommittedOffset(first.offset, done_offsets(first, second), first.leader_epoch)
