"""Names that providers take, and the way back to the tools' ids."""

from __future__ import annotations

import random

import pytest
from chat_rules import NAME
from hypothesis import given
from hypothesis import strategies as st

from workers.providers.names import WireNames

PARTS = st.sampled_from(["client", "mcp", "a", "b", "a_b", "ä", "x" * 70, "", ".", " ", "A"])
IDS = st.text(max_size=90) | st.lists(PARTS, max_size=4).map(".".join)


@given(st.lists(IDS), st.randoms(use_true_random=False))
def test_every_id_has_a_name_of_its_own_whatever_their_order(ids: list[str], shuffle: random.Random) -> None:
    names = WireNames(ids)
    wired = {tool_id: names.wire(tool_id) for tool_id in ids}

    assert all(NAME.fullmatch(name) for name in wired.values())
    assert len(set(wired.values())) == len(wired)
    assert all(names.tool_id(name) == tool_id for tool_id, name in wired.items())
    shuffle.shuffle(ids)
    assert {tool_id: WireNames(ids).wire(tool_id) for tool_id in ids} == wired


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["client.search", "mcp.maps.find", "agents.spawn"], ["search", "maps_find", "spawn"]),
        (["client.spawn", "agents.spawn"], ["client_spawn", "agents_spawn"]),
        (["made up!"], ["made_up_"]),
    ],
)
def test_a_name_is_short_where_it_can_be(ids: list[str], names: list[str]) -> None:
    wire = WireNames(ids)

    assert [wire.wire(tool_id) for tool_id in ids] == names


def test_ids_that_look_alike_are_told_apart() -> None:
    wire = WireNames(["mcp.a.b", "mcp.a_b"])

    assert wire.wire("mcp.a.b") != wire.wire("mcp.a_b")
    assert wire.wire("mcp.a.b").startswith("mcp_a_b_")


def test_a_long_name_keeps_its_beginning() -> None:
    name = WireNames(["client." + "x" * 70]).wire("client." + "x" * 70)

    assert name.startswith("client_xxxx")
    assert len(name) == 64


def test_a_name_that_the_model_made_up_stays_as_it_is() -> None:
    assert WireNames(["client.search"]).tool_id("client.search") == "client.search"
    assert WireNames(["client.search"]).tool_id("find") == "find"
