"""The names of arq that `workers/worker.py` leans on. When one of these fails, arq has changed: read the worker again."""

from __future__ import annotations

import ast
import asyncio
import inspect
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import arq.constants
import arq.jobs
import holders
import pytest
from arq.connections import ArqRedis
from arq.worker import Function, Worker, func
from turns import Steps, add

from broker import queue
from broker.broker import Broker
from workers import worker as module
from workers.agent import AgentDefinition
from workers.worker import TurnWorker

ROOT: Final = Path(__file__).parent.parent.parent
OPTIONS: Final = {
    "functions",
    "queue_name",
    "redis_pool",
    "max_jobs",
    "job_timeout",
    "keep_result",
    "max_tries",
    "handle_signals",
    "job_serializer",
    "job_deserializer",
}


@pytest.fixture
async def worker(embedded_broker: Broker) -> TurnWorker:
    return TurnWorker(embedded_broker, [AgentDefinition(model=Steps(), name="agent", tools=[add])], slots=7)


def test_the_version_is_one_that_was_read() -> None:
    major, minor = (int(part) for part in metadata.version("arq").split(".")[:2])

    assert (0, 26) <= (major, minor) < (0, 29)
    assert '"arq>=0.26.3,<0.29"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_options_of_a_worker() -> None:
    assert set(inspect.signature(Worker.__init__).parameters) >= OPTIONS
    assert set(inspect.signature(func).parameters) >= {"coroutine", "name", "keep_result"}
    assert set(inspect.signature(ArqRedis.__init__).parameters) >= {
        "pool_or_conn",
        "job_serializer",
        "job_deserializer",
    }


def test_the_methods_that_are_ours() -> None:
    """Same names, same leading parameters: whatever of arq calls them finds ours."""
    assert list(inspect.signature(Worker.run_job).parameters) == ["self", "job_id", "score"]
    assert list(inspect.signature(TurnWorker.run_job).parameters)[:3] == ["self", "job_id", "score"]
    assert list(inspect.signature(Worker.main).parameters) == ["self"]
    assert inspect.iscoroutinefunction(Worker.main)


async def test_what_a_worker_has_from_the_start(worker: TurnWorker) -> None:
    assert (worker.max_jobs, worker.job_counter, worker.tasks) == (7, 0, {})
    assert isinstance(worker.sem, asyncio.Semaphore)
    assert worker.loop is asyncio.get_running_loop()
    assert worker.ctx["runs"] == {}
    assert list(worker.functions) == ["run_turn"]
    function = worker.functions["run_turn"]
    assert isinstance(function, Function)
    assert function.coroutine is module.run_turn
    assert (function.keep_result_s, worker.keep_result_s) == (0, 0)
    assert (worker.max_tries, worker.job_timeout_s) == (10**6, 30 * 86_400)


async def test_a_slot_is_taken_and_given_back(worker: TurnWorker) -> None:
    free = worker.sem._value
    await worker.sem.acquire()
    worker.job_counter += 1

    worker._release_sem_dec_counter_on_complete()

    assert (worker.job_counter, worker.sem._value) == (0, free)
    assert free >= worker.max_jobs


async def test_signals_are_left_to_the_command_line(worker: TurnWorker) -> None:
    assert worker._handle_signals is False


async def test_arq_reads_the_jobs_that_lua_writes(broker: Broker) -> None:
    session_id = await holders.open_session(broker)
    turn = await holders.start(broker, session_id)
    (job_id,), _ = await holders.queued(broker)

    body = await holders.command(broker, "GET", arq.constants.job_key_prefix + job_id)
    read = arq.jobs.deserialize_job(body, deserializer=queue.loads)

    assert arq.constants.job_key_prefix == "arq:job:"
    assert (read.function, list(read.args), read.kwargs) == ("run_turn", [session_id, turn, 1], {})
    assert not read.job_try
    raw = arq.jobs.deserialize_job_raw(body, deserializer=queue.loads)
    assert raw[0] == "run_turn"


async def test_the_pool_of_arq_is_the_broker_s(worker: TurnWorker) -> None:
    assert worker.pool.connection_pool is worker.broker.client.connection_pool
    assert worker.pool.job_serializer is queue.dumps
    assert worker.pool.job_deserializer is queue.loads


class _Names(ast.NodeVisitor):
    """Attributes that the worker's own class neither sets nor defines: what it has from arq."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.own: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.own.add(node.name)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.own.add(node.name)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            (self.own if isinstance(node.ctx, ast.Store) else self.used).add(node.attr)
        self.generic_visit(node)


def test_nothing_else_of_arq_is_leant_on() -> None:
    tree: Any = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    names = _Names()
    names.visit(next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TurnWorker"))
    leant = {"sem", "tasks", "loop", "functions", "ctx", "max_jobs", "_release_sem_dec_counter_on_complete"}

    assert names.used - names.own == leant
    assert "job_counter" in names.own  # counted by us, given back by arq
