"""Somebody at the console, over HTTP: cookies, and forms filled in as their pages made them."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import httpx

HERE = {"Origin": "http://gateway", "Sec-Fetch-Site": "same-origin"}


@dataclass
class Person:
    """Somebody with a browser: cookies, and forms filled in as the page made them."""

    client: httpx.AsyncClient

    async def log_in(self, *roles: str, name: str = "olga", **more: str) -> httpx.Response:
        fields = {"name": name, "tenant": "acme", "scopes": "content:*", "roles": list(roles), **more}
        return await self.client.post("/console/login", data=fields, headers=HERE)

    async def see(self, path: str, status: int = 200) -> str:
        response = await self.client.get(f"/console{path}")
        assert response.status_code == status, response.text[-2000:]
        return response.text

    async def send(self, path: str, page: str, form: str, **fields: str) -> httpx.Response:
        """Send the first form of a page that goes to `form`, with these fields filled in."""
        return await self.client.post(f"/console{path}", data={**hidden(form_to(page, form)), **fields}, headers=HERE)


def hidden(form: str) -> dict[str, str]:
    """The fields of a form that its page filled in."""
    found = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found}


def form_to(page: str, address: str) -> str:
    """The first form of a page that goes to an address of the console."""
    part = next(text for text in page.split("<form")[1:] if f'action="/console{address}"' in text)
    return part.partition("</form>")[0]
