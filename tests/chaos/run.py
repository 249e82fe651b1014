"""`make chaos`: nothing is lost, whatever dies. Parts one after another, each by its seed, and a table of their findings.

    make chaos                      10 parts: over 1,000 kills, 60 broker restarts, 5,000 turns; well under an hour
    make chaos SEED=7 PARTS=1       the part of one seed: how a finding is replayed
    make chaos TURNS=200 OLD=0      smaller parts; workers of HEAD alone
    make chaos INTO=/some/folder    where reports, logs of workers, ledgers and the broker's data go

Some workers are born to die at a named place of their work, as any does with `TURNSTREAM_FAULT=<name>[:<nth>]`
(`broker/fault_points.py` lists the names).

A part has a broker of its own (`part.py`), five worker processes of HEAD and of the foundation (`crew.py`, `launcher.py`),
clients (`people.py`) and observers (`watchers.py`) behind proxies, and strikes them with faults (`faults.py`). What happens
when to whom is a pure function of seed and size (`schedule.py`); how it interleaves is the machine's, so a replay is alike, not
the same: what a race brought about may take a few. At the end every accepted turn must have ended by itself, and the verdict
(`verdict.py`) holds the logs and what observers saw against the history checker, the ledger of effects (`ledger.py`) and what
clients were told.

The broker writes its AOF with `appendfsync always`: what is acknowledged is kept, so nothing at all may be lost. With
`everysec` a broker that dies with its machine loses up to two seconds of what it had acknowledged; that is no part of this run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from foundation import NoHistoryError, unpack
from part import Part
from schedule import Size, draw

HANGS_S: Final = 300.0
"""Seconds over its schedule's after which a part is taken to hang."""


def main() -> None:
    given = _arguments()
    folder = Path(given.into or tempfile.mkdtemp(prefix="turnstream-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"reports, logs and ledgers: {folder}", flush=True)
    old = None
    if given.old:
        try:
            old = unpack(folder / "foundation")
        except NoHistoryError as missing:
            if not given.may_miss_old:
                raise SystemExit(str(missing)) from None
            print(f"HEAD alone: {missing}", flush=True)
    reports = []
    for seed in range(given.seed, given.seed + given.parts):
        report = _part(seed, _size(given, old), folder / f"part-{seed}", old)
        reports.append(report)
        _tell_part(report, given)
    print(_table(reports))
    sys.exit(any(report["findings"] for report in reports))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first part; each next one's is one more")
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--turns", type=int, default=Size().turns, help="in each part; the faults come in proportion")
    parser.add_argument("--seconds", type=float, default=0.0, help="for which a part's turns and faults come")
    parser.add_argument("--size", nargs="*", default=[], metavar="NAME=N", help="another number of one kind: stops=40")
    parser.add_argument("--old", type=int, default=1, help="0: no workers of the foundation")
    parser.add_argument("--may-miss-old", action="store_true", help="go on without them where the history is not there")
    parser.add_argument("--into", help="the folder for reports, logs and ledgers; default: a new one")
    return parser.parse_args()


def _size(given: argparse.Namespace, old: Path | None) -> Size:
    whole = Size()
    share = given.turns / whole.turns
    seconds = given.seconds or whole.seconds * share

    def part_of(count: int) -> int:
        return int(max(1, round(count * share)))

    size = Size(
        turns=given.turns,
        seconds=seconds,
        sessions=max(20, round(whole.sessions * share)),
        kills=part_of(whole.kills),
        stops=part_of(whole.stops),
        drains=part_of(whole.drains),
        restarts=part_of(whole.restarts),
        freezes=part_of(whole.freezes),
        cuts=part_of(whole.cuts),
        swallows=part_of(whole.swallows),
        holds=part_of(whole.holds),
        old=old is not None,
    )
    others: dict[str, Any] = {
        name: float(count) if "." in count else int(count)
        for name, _, count in (each.partition("=") for each in given.size)
    }
    return replace(size, **others)


def _part(seed: int, size: Size, folder: Path, old: Path | None) -> dict[str, Any]:
    if folder.exists():
        raise SystemExit(f"{folder} is there already, of another run: name another folder with INTO=, or none.")
    begun = time.time()
    report = asyncio.run(asyncio.wait_for(Part(draw(seed, size), folder, old).run(), size.seconds + HANGS_S))
    report["took"] = round(time.time() - begun, 1)
    (folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def _tell_part(report: dict[str, Any], given: argparse.Namespace) -> None:
    numbers = Counter(report["faults"])
    print(
        f"seed {report['seed']}: {report['counts'].get('turns', 0)} turns, {report['counts'].get('parked', 0)} parked, "
        f"{numbers['kill']} kills, {numbers['restart'] + numbers['crash']} broker restarts, "
        f"{len(report['findings'])} findings, {report['took']:g} s",
        flush=True,
    )
    for finding in report["findings"][:20]:
        print(f"  {finding}")
    if report["findings"]:
        print(f"  again: make chaos SEED={report['seed']} PARTS=1 TURNS={given.turns} OLD={given.old}", flush=True)


def _table(reports: list[dict[str, Any]]) -> str:
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for report in reports:
        counts += Counter(report["counts"])
        faults += Counter(report["faults"])
    times = sorted(each for report in reports for each in report["recoveries"])
    interrupts = sum(count for name, count in counts.items() if name.startswith("interrupt: Turn"))
    rows: list[tuple[str, object]] = [
        ("seeds", f"{reports[0]['seed']} to {reports[-1]['seed']}"),
        ("turns", counts["turns"]),
        ("  of them parked", counts["parked"]),
        ("runs of turns", f"{counts['runs by head']} by HEAD, {counts['runs by old']} by the foundation"),
        ("kills (kill -9)", faults["kill"]),
        ("deaths at fault points", counts["deaths at fault points"]),
        ("workers frozen", faults["stop"]),
        ("workers drained", faults["drain"]),
        ("broker restarts", faults["restart"] + faults["crash"]),
        ("  of them by kill -9", faults["crash"]),
        ("broker freezes", faults["freeze"]),
        ("cuts, swallows, holds", f"{faults['cut']}, {faults['swallow']}, {faults['hold']}"),
        ("connections cut", faults["cut links"]),
        ("interrupts and cancels", interrupts + counts["cancel"]),
        ("dead letters", counts["dead letters"]),
        ("observed events", counts["observed events"]),
        ("recoveries", len(times)),
        ("  p50, p99, max in s", _quantiles(times)),
        ("  later than 7 s", sum(len(report["late"]) for report in reports)),
        ("drained over their grace", _quantiles([*sorted(each for report in reports for each in report["drains"])])),
        ("minutes", f"{sum(report['took'] for report in reports) / 60:.1f}"),
        ("findings", sum(len(report["findings"]) for report in reports)),
    ]
    return "\n".join(f"{name:<26}{value}" for name, value in rows)


def _quantiles(times: list[float]) -> str:
    if not times:
        return "-"
    return ", ".join(f"{times[min(len(times) - 1, int(len(times) * share))]:.2f}" for share in (0.5, 0.99, 1.0))


if __name__ == "__main__":
    main()
