"""Artifacts: bytes by reference and hash. They leave only with that hash, as an attachment that no browser runs."""

import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.ids import new_id
from trueup_common.runtime.objects import ObjectDiffers, ObjectsAway
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import (
    Body,
    OpenBody,
    answer,
    body_pieces,
    caller_of,
    found,
    header_values,
    not_found,
    object_id,
    read_model,
    reader_of,
    require,
)
from trueup_gateway.api.route import BODY, READ, LeanRoute, path_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.artifact import (
    OPAQUE,
    SAFE_TYPES,
    ArtifactRow,
    media_type_of,
    refuse_deletion,
    shown_type,
    tombstone,
)
from trueup_gateway.core.refusal import Refused, forbidden

log = logging.getLogger("trueup.gateway.artifacts")

_OBJECTS: Final = "The object store does not answer right now."


class ArtifactAnswer(OpenBody):
    """A kept artifact."""

    artifact_id: str
    sha256: str = Field(description="Hex SHA-256 of the bytes.")
    size: int


class DeletionRequest(Body):
    """Why."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)] = "deleted"


class Tombstone(OpenBody):
    """What is left of a deleted artifact."""

    artifact_id: str
    sha256: str
    size: int
    deleted_at: str
    deleted_by: str
    reason: str


def objects_away() -> Refused:
    """503: whether the content is there is not known."""
    return Refused("unavailable", _OBJECTS, retry_after_seconds=1)


async def store(request: Request) -> Response:
    """Keep the bytes of the body as an artifact. The same bytes again get another id and the same hash."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.STORE_ARTIFACT)
    if any(value.lower() != "identity" for value in header_values(request, b"content-encoding")):
        raise Refused("media-type-unsupported", "Encoded bodies are not accepted.")
    kinds = header_values(request, b"content-type")
    artifact_id = new_id("art")
    pieces: AsyncIterator[bytes] = body_pieces(request, gateway.settings.artifact_bytes_max)
    try:
        stored = await gateway.objects.write(caller.tenant, artifact_id, pieces)
    except ObjectsAway as away:
        log.warning("artifact not kept", extra={"reason": str(away)})
        raise objects_away() from away
    try:
        async with gateway.store.transaction() as tx:
            row = ArtifactRow(
                artifact_id=artifact_id,
                tenant=caller.tenant,
                sha256=stored.sha256,
                size=stored.size,
                media_type=media_type_of(kinds[0] if len(kinds) == 1 else None),
                created_by=caller.subject,
                created_at=(await tx.moment()).business,
            )
            await tx.save_artifact(row)
    except BaseException:  # content that no row names would stay for ever
        await _remove(gateway, caller.tenant, artifact_id)
        raise
    body = {"artifact_id": artifact_id, "sha256": stored.sha256, "size": stored.size}
    return answer(body, 201, {"Location": f"/v1/artifacts/{artifact_id}", "ETag": f'"{stored.sha256}"'})


async def _remove(gateway: Gateway, tenant: str, artifact_id: str) -> None:
    """Remove content that nothing may need any more. Where the broker is away it stays, and that is only space."""
    try:
        await gateway.objects.delete(tenant, artifact_id)
    except ObjectsAway as away:
        log.warning("content not removed", extra={"artifact_id": artifact_id, "reason": str(away)})


async def read(request: Request) -> Response:
    """Read the bytes of an artifact, checked against their hash. Agents read what they stored themselves,
    and who sees no business content reads none."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    require(caller, roles.VIEW_BUSINESS)
    artifact_id = object_id(request, "artifact_id", "art")
    row = await gateway.reads.artifact(reader, artifact_id)
    if row is None:
        raise not_found()
    if row.deleted_at is not None:
        raise Refused("not-found", "This artifact was deleted.", extra={"tombstone": tombstone(row)})
    headers = {
        "ETag": f'"{row.sha256}"',
        "Content-Disposition": f'attachment; filename="{artifact_id}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, no-cache",
    }
    if headers["ETag"] in [
        tag.strip() for value in header_values(request, b"if-none-match") for tag in value.split(",")
    ]:
        return Response(status_code=304, headers=headers)
    content = await content_of(gateway, row)
    if content is None:
        raise objects_away()
    return Response(content, headers={**headers, "Content-Type": shown_type(row.media_type)})


async def content_of(gateway: Gateway, row: ArtifactRow) -> bytes | None:
    """The content of an artifact; None where the object store has none. Raises Refused."""
    try:
        return await gateway.objects.get(row.tenant, row.artifact_id, row.sha256)
    except ObjectsAway as away:
        raise objects_away() from away
    except ObjectDiffers as differs:
        log.error("kept content has another hash", extra={"artifact_id": row.artifact_id, "sha256": row.sha256})
        raise Refused("internal", "The kept content does not have the hash of its artifact.") from differs


async def delete(request: Request) -> Response:
    """Delete an artifact: a tombstone with its hash and the reason stays. Refused while something refers to it."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    artifact_id = object_id(request, "artifact_id", "art")
    wanted = await read_model(request, gateway, DeletionRequest, optional=True)
    async with gateway.store.transaction() as tx:
        row = found(await tx.artifact(caller.tenant, artifact_id))
        if not roles.may(caller.roles, roles.DELETE_ARTIFACT) and not (
            roles.may(caller.roles, roles.STORE_ARTIFACT) and caller.subject == row.created_by
        ):
            if not roles.may(caller.roles, roles.READ_TENANT):
                raise not_found()
            raise forbidden("role", f"This needs one of the roles {roles.needed(roles.DELETE_ARTIFACT)}.")
        if row.deleted_at is None:
            held_by = await tx.held_by(caller.tenant, artifact_id)
            refuse_deletion(row, *await tx.artifact_references(caller.tenant, artifact_id), held_by)
            row = row.evolve(
                deleted_at=(await tx.moment()).business, deleted_by=caller.subject, deletion_reason=wanted.reason
            )
            await tx.entomb_artifact(row)
    await _remove(gateway, caller.tenant, artifact_id)
    return answer(tombstone(row))


_ID: Final = path_parameter("artifact_id", "The artifact.", "art_00000000000000000000000000000000")
_BYTES: Final[dict[str, Any]] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _store_route() -> LeanRoute:
    made = route(
        "POST",
        "/v1/artifacts",
        store,
        tag="artifacts",
        summary="Keep bytes as an artifact",
        answers={201: ("It is kept", ArtifactAnswer)},
        problems=("tenant-invalid", "forbidden", "request-timeout", "too-large", "media-type-unsupported"),
    )
    # Any media type is taken: what is kept are the bytes.
    made.openapi_extra = {**(made.openapi_extra or {}), "requestBody": {"required": True, "content": _BYTES}}
    return made


def _read_route() -> LeanRoute:
    made = route(
        "GET",
        "/v1/artifacts/{artifact_id}",
        read,
        tag="artifacts",
        summary="Read an artifact",
        answers={200: ("Its bytes", None), 304: ("The bytes that `If-None-Match` named", None)},
        media_type=OPAQUE,
        parameters=(_ID,),
        problems=READ,
    )
    # Under the type that it was stored with, where that is harmless: raw bytes, so none of them has a schema.
    made.responses[200]["content"] = {name: {} for name in sorted({OPAQUE, *SAFE_TYPES})}
    return made


ROUTES: Final[list[LeanRoute]] = [
    _store_route(),
    _read_route(),
    route(
        "DELETE",
        "/v1/artifacts/{artifact_id}",
        delete,
        tag="artifacts",
        summary="Delete an artifact",
        answers={200: ("What is left of it", Tombstone)},
        body=DeletionRequest,
        example={"reason": "personal data, asked to be removed"},
        body_required=False,
        parameters=(_ID,),
        problems=("tenant-invalid", "forbidden", "not-found", "conflict", *BODY),
    ),
]
