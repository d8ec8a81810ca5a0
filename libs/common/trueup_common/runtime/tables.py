"""Tables: columns follow from contracts, so that a field is written down once; and the tables of the mail."""

import types
from collections.abc import Collection, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, TIMESTAMP
from sqlalchemy.types import TypeEngine

NOW = text("now()")

INLINE = {"toast_tuple_target": 8160}
"""Rows of a few KiB stay in their page, uncompressed: compressing them cost more than writing them (ADR 0010)."""

WITH_ROOM = {**INLINE, "fillfactor": 50}
"""Rows that are changed find room for their next version in the same page: the log takes what changed (ADR 0027)."""


def _unwrap(annotation: Any) -> tuple[Any, bool]:
    """The bare type of an annotation and whether None is allowed."""
    if get_origin(annotation) is Annotated:
        return _unwrap(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [arg for arg in get_args(annotation) if arg is not type(None)]
        bare, _ = _unwrap(rest[0]) if len(rest) == 1 else (Any, True)
        return bare, len(rest) < len(get_args(annotation))
    return annotation, annotation is Any


def _sql_type(annotation: Any) -> TypeEngine[Any]:
    if isinstance(annotation, type):
        if issubclass(annotation, Enum | str):
            return Text()
        if issubclass(annotation, bool):
            return Boolean()
        if issubclass(annotation, int):
            return BigInteger()
        if issubclass(annotation, float):
            return Double()
        if issubclass(annotation, datetime):
            return TIMESTAMP(timezone=True)
    return JSON(none_as_null=True)


def contract_table(
    model: type[BaseModel],
    name: str,
    metadata: MetaData,
    *,
    key: Sequence[str],
    indexes: Sequence[Index] = (),
    extra: Sequence[Column[Any]] = (),
    fixed: Collection[str] = (),
) -> Table:
    """A table whose columns are the fields of a contract. `extra` columns are the service's own.

    `fixed` names the columns that no update ever writes. They come first: of a changed row the log takes what lies
    between its first and its last change.
    """
    columns: list[Column[Any]] = []
    for field, info in model.model_fields.items():
        bare, optional = _unwrap(info.annotation)
        columns.append(Column(field, _sql_type(bare), primary_key=field in key, nullable=optional and field not in key))
    columns.sort(key=lambda column: not (column.primary_key or column.name in fixed))
    return Table(name, metadata, *columns, *extra, *indexes, postgresql_with=WITH_ROOM if fixed else INLINE)


def mail_tables(metadata: MetaData) -> None:
    """Inbox, outbox, quarantine, failure counts and stream marks of one service."""
    Table(
        "inbox",
        metadata,
        Column("consumer", Text, primary_key=True),
        Column("message_id", Text, primary_key=True),
        Column("received_at", TIMESTAMP(timezone=True), nullable=False, server_default=NOW),
        Index("inbox_received_at", "received_at", postgresql_using="brin"),
    )
    Table(
        "outbox",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("message_id", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("time", TIMESTAMP(timezone=True), nullable=False),
        Column("traceparent", Text),
        Column("causation_id", Text),
        Column("reply_to", Text),
        Column("data", LargeBinary, nullable=False),
        Column("created_at", TIMESTAMP(timezone=True), nullable=False, server_default=NOW),
        postgresql_with=INLINE,
    )
    Table(
        "outbox_unsent",
        metadata,
        Column("id", BigInteger, primary_key=True),
        Column("message_id", Text, nullable=False),
        Column("created_at", TIMESTAMP(timezone=True), nullable=False, server_default=NOW),
        Index("outbox_unsent_message_id", "message_id"),
    )
    Table(
        "quarantine",
        metadata,
        Column("quarantine_id", Text, primary_key=True),
        Column("consumer", Text, nullable=False),
        Column("message_id", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("tenant", Text, nullable=False),
        Column("headers", JSON, nullable=False),
        Column("data", LargeBinary, nullable=False),
        Column("reason", Text, nullable=False),
        Column("quarantined_at", TIMESTAMP(timezone=True), nullable=False, server_default=NOW),
        Column("released_at", TIMESTAMP(timezone=True)),
    )
    Table(
        "delivery_failure",
        metadata,
        Column("consumer", Text, primary_key=True),
        Column("message_id", Text, primary_key=True),
        Column("failures", BigInteger, nullable=False),
        Column("last_failed_at", TIMESTAMP(timezone=True), nullable=False, server_default=NOW),
    )
    Table(
        "stream_mark",
        metadata,
        Column("stream", Text, primary_key=True),
        Column("created", TIMESTAMP(timezone=True)),
        Column("last_sequence", BigInteger, nullable=False),
    )
