"""Tool sources as an agent declares them: what is wrong is said when they are made, and no credential is shown."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from broker.protocol.errors import SdkError
from workers.agent import AgentDefinition
from workers.scripted import ScriptedModel
from workers.sources import Connector, MCPServer, takes


def token(_ctx: object) -> str:
    return "token"


def define(**options: Any) -> AgentDefinition:
    return AgentDefinition(model=ScriptedModel([]), **options)


def connector(name: str = "notion", **options: Any) -> Connector:
    given: dict[str, Any] = {
        "url": "https://a.example/mcp",
        "sign_in_url": "https://a.example/in",
        "credentials": token,
    }
    return Connector(name, **{**given, **options})


def test_sources_have_ids_titles_and_a_place_among_the_agent_s() -> None:
    server, notion = MCPServer("files", command="serve", title="The files"), connector()
    definition = define(mcps=[server], connectors=[notion])

    assert definition.sources == (server, notion)
    assert [(source.id, source.title) for source in definition.sources] == [
        ("mcp:files", "The files"),
        ("connectors:notion", "notion"),
    ]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, ValueError, "give url or command, and not both"),
        ({"url": "https://a.example", "command": "a"}, ValueError, "give url or command, and not both"),
        ({"url": "ftp://s3cret.example"}, ValueError, "url must be an address that starts with http:// or https://"),
        ({"url": "http://[s3cret"}, ValueError, "url must be an address"),
        ({"url": "https://"}, ValueError, "url must be an address"),
        ({"url": 7}, TypeError, "url must be a text, not int"),
        ({"command": ""}, TypeError, "command must be a program's name"),
        ({"command": ["a"]}, TypeError, "command must be a program's name"),
        ({"command": "a", "args": "-v"}, TypeError, "args must be a sequence of texts, not str"),
        ({"command": "a", "args": [1]}, TypeError, r"args\[0\] must be a text, not int"),
        ({"command": "a", "env": {"A": 1}}, TypeError, "env holds texts by name; 'A' is int"),
        ({"command": "a", "env": ["A"]}, TypeError, "env must be a mapping"),
        ({"command": "a", "headers": {}}, ValueError, "headers are for a url, not for a command"),
        ({"url": "https://a.example", "args": ["a"]}, ValueError, "args, env and cwd are for a command"),
        ({"url": "https://a.example", "env": {}}, ValueError, "args, env and cwd are for a command"),
        ({"url": "https://a.example", "headers": ["a"]}, TypeError, "headers must be a mapping"),
        ({"url": "https://a.example", "headers": {"A": 7}}, TypeError, "headers: A must be a text, not int"),
        ({"url": "https://a.example", "headers": {"a b": "c"}}, ValueError, "headers: 'a b' is no header's name"),
        (
            {"url": "https://a.example", "headers": {"A": "s3cret\n"}},
            ValueError,
            "A holds characters that no header may have",
        ),
        ({"command": "a", "title": 7}, TypeError, "title must be a text or None, not int"),
        ({"command": "a", "timeout": "5"}, TypeError, "timeout must be a number of seconds, not str"),
        ({"command": "a", "timeout": 0}, ValueError, "timeout must be more than 0 seconds, not 0"),
        ({"command": "a", "call_timeout": -1}, ValueError, "call_timeout must be more than 0 seconds, not -1"),
        ({"command": "a", "call_timeout": True}, TypeError, "call_timeout must be a number"),
        ({"command": "a", "tools": "*"}, TypeError, "tools must be a sequence of texts, not str"),
    ],
    ids=str,
)
def test_a_wrong_server_is_refused_and_no_secret_is_shown(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"^MCPServer 'box': .*{said}") as refused:
        MCPServer("box", **options)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 65, "ü"])
def test_a_name_fits_the_ids_of_its_tools(name: str) -> None:
    with pytest.raises(ValueError, match="name must be 1 to 64 of the characters"):
        MCPServer(name, command="a")
    with pytest.raises(TypeError, match="name must be a text"):
        MCPServer(7, command="a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"url": "notion"}, ValueError, "url must be an address"),
        ({"sign_in_url": "javascript:alert(1)"}, ValueError, "sign_in_url must be an address"),
        ({"credentials": "token"}, TypeError, "credentials must be a function of a context, not str"),
    ],
    ids=str,
)
def test_a_wrong_connector_is_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^Connector 'notion': {said}"):
        connector(**options)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"mcps": ["https://a.example"]}, TypeError, r"mcps\[0\] must be a MCPServer, not str"),
        ({"mcps": [connector()]}, TypeError, r"mcps\[0\] must be a MCPServer, not Connector"),
        ({"connectors": "notion"}, TypeError, "connectors must be a sequence of Connector, not str"),
        ({"mcps": iter([connector()])}, TypeError, "mcps must be a sequence of MCPServer, not list_iterator"),
        ({"connectors": connector()}, TypeError, "connectors must be a sequence of Connector, not Connector"),
        ({"connectors": [connector(), connector()]}, ValueError, "two of them have the name 'notion'"),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],
)
def test_an_agent_refuses_what_are_no_sources(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^{said}" if "two" not in said else said):
        define(**options)


def test_a_server_and_a_connector_may_have_one_name() -> None:
    assert len(define(mcps=[MCPServer("box", command="a")], connectors=[connector("box")]).sources) == 2


@pytest.mark.parametrize(
    ("version", "said"), [(None, "is not installed"), ("1.28.0", "is installed in version 1.28.0")]
)
def test_without_the_mcp_client_an_agent_with_sources_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, version: str | None, said: str
) -> None:
    def installed(_name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(metadata, "version", installed)
    with pytest.raises(SdkError, match=rf"{said}.*pip install 'turnstream\[mcp\]'"):
        define(mcps=[MCPServer("box", command="a")])
    assert define().sources == ()


def test_what_a_source_shows_of_itself_holds_no_credential() -> None:
    server = MCPServer("box", url="https://s3cret@a.example/?key=s3cret", headers={"Authorization": "s3cret"})
    program = MCPServer("box", command="a", args=["s3cret"], env={"TOKEN": "s3cret"})

    for shown in (server, server.endpoint, program, program.endpoint, connector().endpoint_for("s3cret")):
        assert "s3cret" not in f"{shown!r} {shown}"


def test_globs_choose_tools_by_their_own_names() -> None:
    server = MCPServer("box", command="a", tools=["read_*", "list"])

    assert [takes(server, name) for name in ("read_file", "list", "list_all", "write")] == [True, True, False, False]
    assert takes(MCPServer("box", command="a"), "write")
    assert not takes(MCPServer("box", command="a", tools=[]), "write")
