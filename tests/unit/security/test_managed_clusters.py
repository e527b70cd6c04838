"""The settings that docs/clouds.md names for managed clusters are accepted as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace._protocol.messages import FETCH, METADATA, PRODUCE
from headrace._security.access import Access
from headrace.cli.properties import parse_properties
from headrace.config.consumer import ConsumerConfig
from headrace.local.certificates import Authority

PAGE = (Path(__file__).parents[3] / "docs" / "clouds.md").read_text()
BLOCKS = re.findall(r"^```properties\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: parse_properties(block)["bootstrap.servers"])
def test_the_documented_settings_of_a_managed_cluster_are_accepted(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority()
    own = authority.issue("me", client=True)
    for name, text in (("ca.pem", authority.pem), ("service.cert", own.certificates), ("service.key", own.key)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    settings = parse_properties(block)
    if settings.get("sasl.mechanism") == "AWS_MSK_IAM":
        pytest.importorskip("botocore")
    parsed = ConsumerConfig.parse(settings)
    assert parsed.uses_tls
    assert (Access(parsed).mechanism is None) == ("sasl.mechanism" not in settings)
    assert caplog.records == []  # no setting is without effect


def test_every_managed_cluster_has_its_settings() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == [
        "Confluent Cloud", "Aiven", "Amazon MSK", "Azure Event Hubs",
    ]  # fmt: skip
    assert ["```properties" in section for section in sections] == [True, True, True, False]


def test_the_page_says_which_versions_of_azure_event_hubs_are_too_old() -> None:
    rows = re.findall(r"^\| (\w+) \| up to (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert [(name, int(needed)) for name, _, needed in rows] == [
        (api.name, api.lowest) for api in (PRODUCE, FETCH, METADATA)
    ]
    assert all(int(highest) < int(needed) for _, highest, needed in rows)
