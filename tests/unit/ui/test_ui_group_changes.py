"""Plans and errors of changes. `tests/integration/ui/test_ui_changes.py` carries them out with a broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from headrace import OffsetAndMetadata, TopicPartition
from headrace._machines.admin.deletion import deletion_warning
from headrace.admin import GroupDescription, GroupListing, OffsetChange, ResetPlan
from headrace.errors import HeadraceError, RequestTimeoutError
from headrace.ui import changes
from headrace.ui.change_requests import change_routes
from headrace.ui.changes import GroupChanges

PLAN = ResetPlan(
    "g", "classic", tuple(OffsetChange(TopicPartition("t", at), 5, None if at < 10 else 0) for at in range(700))
)

DECISION = '{"headrace.sink": 1, "sequence": 1}'


class Admin:
    """An admin client whose `apply_reset` fails as the test says."""

    kind = "classic"
    metadata = ""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def __call__(self, settings: object) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def plan_reset(self, *_: object, **__: object) -> ResetPlan:
        return PLAN

    async def describe_group(self, group: str) -> GroupDescription | None:
        return None if group == "gone" else GroupDescription(GroupListing(group, self.kind, "Empty"), "", ())

    async def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        assert self.kind != "share"
        return {TopicPartition("t", 0): OffsetAndMetadata(5, self.metadata)}

    async def delete_group(self, group: str) -> tuple[str, ...]:
        return (group,)

    async def apply_reset(self, plan: ResetPlan) -> None:
        if self.error is None:
            await asyncio.Event().wait()
        else:
            raise self.error


def plan_and_apply() -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        mine = GroupChanges({})
        plan = await mine.plan("g", "0", None, None)
        await mine.apply(plan["plan"])
        return plan

    return asyncio.run(main())


def test_a_plan_counts_the_partitions_that_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "AsyncAdmin", Admin())
    plan = asyncio.run(GroupChanges({}).plan("g", "0", None, None))
    assert (len(plan["changes"]), plan["partitions"], plan["settable"]) == (500, 700, 690)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "the brokers did not answer within 0 s. Some offsets may be set: check the group."),
        (RequestTimeoutError("broker 1 is slow"), "broker 1 is slow. Some offsets may be set: check the group."),
        (HeadraceError("the group has members"), "the group has members"),
    ],
)
def test_a_reset_that_was_cut_off_may_be_half_done(
    error: Exception | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "AsyncAdmin", Admin(error))
    monkeypatch.setattr(changes, "_WITHIN", 0.1)
    with pytest.raises(HeadraceError) as found:
        plan_and_apply()
    assert str(found.value) == text


@pytest.mark.parametrize(
    ("kind", "metadata", "is_warned", "is_deleted"),
    [
        ("classic", "", False, True),
        ("share", "", False, True),
        ("classic", DECISION, False, False),
        ("classic", DECISION, True, True),
    ],
)
def test_the_decisions_of_a_spark_sink_are_deleted_only_after_a_warning(
    kind: str, metadata: str, is_warned: bool, is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin()
    admin.kind, admin.metadata = kind, metadata
    monkeypatch.setattr(changes, "AsyncAdmin", admin)
    warning = asyncio.run(GroupChanges({}).warning("g"))
    assert warning == (f"group g {deletion_warning([OffsetAndMetadata(5, DECISION)])}" if metadata else None)
    deletion = GroupChanges({}).delete("g", is_warned=is_warned)
    if is_deleted:
        assert asyncio.run(deletion) == ("g",)
    else:
        with pytest.raises(HeadraceError, match=r"or writes a batch twice\. Confirm this warning to delete the group"):
            asyncio.run(deletion)


def test_a_group_that_is_gone_has_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "AsyncAdmin", Admin())
    assert asyncio.run(GroupChanges({}).warning("gone")) is None


def test_the_name_of_a_group_is_text_that_kafka_can_have() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"group": "\ud800", "confirm": "\ud800"}).encode()}

    async def main() -> None:
        (delete,) = (it for it in change_routes(GroupChanges({})) if it.path == "/api/groups/delete")
        scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
        with pytest.raises(HTTPException, match="group contains a surrogate") as found:
            await delete.endpoint(Request(scope, receive))
        assert found.value.status_code == 400

    asyncio.run(main())
