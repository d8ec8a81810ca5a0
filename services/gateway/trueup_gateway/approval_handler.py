"""ApprovalAsked → rows that people read and answer, and ApprovalDecided for every end. The rows arbitrate."""

from collections.abc import Sequence

from pydantic import ValidationError

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import ApprovalAsked
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment
from trueup_gateway.core.approval import ACTIONS, Folding, told
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.tokens import new_nonce

SOURCE = "gateway"


def _read(message: Message) -> ApprovalAsked:
    if message.type != "ApprovalAsked":
        raise Unprocessable(f"unexpected message type {message.type}")
    try:
        asked = ApprovalAsked.model_validate_json(message.data)
    except ValidationError as error:
        raise Unprocessable(f"unreadable ApprovalAsked: {error.error_count()} errors") from error
    if asked.tenant != message.tenant:
        raise Unprocessable("the message and its approval name different tenants")
    if asked.action not in ACTIONS:
        raise Unprocessable("an approval is opened, expired or withdrawn, nothing else")
    return asked


class ApprovalHandler:
    """Opens, expires and withdraws approvals; an end that is there already is told again."""

    inbox = True

    async def handle(self, tx: GatewayTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        """Fold one batch over the locked approvals of its cases."""
        asks = [(message, _read(message)) for message in messages]
        known = await tx.approvals_of(sorted({asked.workflow_id for _, asked in asks}))
        tenants = {row.approval_id: row.tenant for row in known}
        folding = Folding(known, moment.business, new_nonce)
        causes: dict[str, Message] = {}
        for message, asked in asks:
            if tenants.get(asked.approval_id, asked.tenant) != asked.tenant:
                raise Unprocessable("the approval belongs to another tenant")
            folding.take(asked)
            for name in folding.folded.told:
                causes.setdefault(name, message)
        folded = folding.folded
        await tx.save_approvals(list(folded.changed.values()), list(folded.fresh.values()))
        return [
            Outgoing(
                Message(
                    id=f"{name}:{told(row).outcome}",
                    type="ApprovalDecided",
                    subject=event_subject(SOURCE, "approval", row.tenant),
                    tenant=row.tenant,
                    source=SOURCE,
                    time=moment.real,
                    data=json_bytes(told(row)),
                    traceparent=causes[name].traceparent,
                    causation_id=causes[name].id,
                )
            )
            for name, row in folded.told.items()
        ]

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing is left to do after the commit."""
