"""Bodies over the inline limit: kept once beside the log, put back when a record is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.broker import Broker
from broker.protocol.values import loads
from broker.protocol.wire import merge_blob
from broker.transitions import Raw


async def read_records(broker: Broker, session_id: str, raws: Sequence[Raw]) -> list[tuple[str, dict[str, Any]]]:
    """Return raw records as (id, record), blobs put in. A blob that is gone leaves its record as it is.

    Raises `BrokerUnavailableError`.
    """
    records: list[tuple[str, dict[str, Any]]] = []
    for raw in raws:
        record: dict[str, Any] = loads(raw.body)
        if (name := record.get("blob")) is not None:
            (blob,) = await broker.read(("HGET", broker.keys.of("blobs", session_id), name))
            if blob is not None:
                record = merge_blob(record, blob)
        records.append((raw.id, record))
    return records
