"""SQL of the gateway, one file per subject; this is the whole of it: one transaction and one set of reads.

Every read names its tenant. Rows are locked in id order and keys inserted in key order, so that two batches cannot
deadlock.
"""

from trueup_common.runtime.db import Database, SqlStore
from trueup_gateway.store.acceptance import AcceptanceSql, AcceptRows, KeyTaken, lock_timed_out
from trueup_gateway.store.anomalies import AnomalySql
from trueup_gateway.store.artifacts import ArtifactReads, ArtifactSql
from trueup_gateway.store.authority import AuthoritySql, GovernanceSql, GrantRows
from trueup_gateway.store.batches import BatchReads, BatchSql
from trueup_gateway.store.holds import HoldReads, HoldSql
from trueup_gateway.store.numbers import NumbersReads, NumbersSql
from trueup_gateway.store.operators import OperatorReads, OperatorSql
from trueup_gateway.store.people import PeopleReads, PeopleSql
from trueup_gateway.store.reads import CoreReads
from trueup_gateway.store.repairs import RepairReads
from trueup_gateway.store.rows import Page, Reader
from trueup_gateway.store.sessions import SessionReads, SessionSql
from trueup_gateway.store.views import ViewsSql
from trueup_gateway.store.workflows import WorkflowReads, WorkflowSql

__all__ = [
    "AcceptRows",
    "GatewayReads",
    "GatewayTransaction",
    "GrantRows",
    "KeyTaken",
    "Page",
    "Reader",
    "gateway_store",
    "lock_timed_out",
]


class GatewayTransaction(
    AcceptanceSql,
    AnomalySql,
    ArtifactSql,
    AuthoritySql,
    BatchSql,
    GovernanceSql,
    HoldSql,
    NumbersSql,
    OperatorSql,
    PeopleSql,
    SessionSql,
    ViewsSql,
    WorkflowSql,
):
    """One transaction of the gateway."""

    service = "gateway"


class GatewayReads(
    ArtifactReads,
    BatchReads,
    HoldReads,
    OperatorReads,
    NumbersReads,
    PeopleReads,
    RepairReads,
    SessionReads,
    WorkflowReads,
    CoreReads,
):
    """Everything that the API reads."""


def gateway_store(database: Database) -> SqlStore[GatewayTransaction]:
    """The gateway's transactions on a database."""
    return SqlStore(database, GatewayTransaction)
