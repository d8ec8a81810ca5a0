"""The door of the console: what it needs is imported when the first person comes, and every answer leaves guarded."""

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PREFIX: Final = "/console"
GUARDS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class Door:
    """The console as an application that is made on first use: a plane that nobody looks at does not pay for it."""

    def __init__(self) -> None:
        self._site: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if self._site is None:
            from trueup_gateway.console.site import make_site

            self._site = make_site()

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in GUARDS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._site(scope, receive, guarded)


async def _enter(scope: Scope, receive: Receive, send: Send) -> None:
    await RedirectResponse(f"{PREFIX}/exceptions", 307, headers=GUARDS)(scope, receive, send)


def door_routes() -> list[BaseRoute]:
    """The routes that lead into the console."""
    return [Route(PREFIX, _Enter(), methods=["GET"]), Mount(PREFIX, Door())]


class _Enter:
    """`/console` itself leads to what is open; an object, so that it is served as an application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _enter(scope, receive, send)
