"""The server of a live explorer: one thread computes, and for nobody but who knows its address; the one door to
starlette and uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from erfscope.apps.explore.live import BadRequest, LiveExplorer, read_request
from erfscope.core import ErfscopeError, first_line

#: Bytes of a picture that is sent, at most: more than any image that is read has.
LARGEST_FILE = 1 << 30
#: Seconds that answers have when the server ends.
GRACE_S = 1
#: Connections at once, from which more are refused.
CONNECTIONS = 500
#: Connections at once, from which a new one ends the oldest that waits for a request.
ROOM = 400
#: Seconds that the head of a request may take, and each pause in its body: at most twice as many.
IDLE_S = 3
HEADERS = [
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
]


def serve(explorer: LiveExplorer, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Answer until a signal comes, which then has its usual effect.

    Args:
        explorer: What answers.
        host: The name or address to listen at.
        port: 0 for a free one.
        ready: Called with the page's address, which holds a random token.

    Raises:
        ErfscopeError: the address cannot be listened at.
        KeyboardInterrupt: Ctrl-C.
    """
    listening = _listening(host, port)
    name = f"[{host}]" if ":" in host else host
    port = listening.getsockname()[1]
    names = {name, "localhost", "127.0.0.1", "[::1]"} if _is_loopback(host) else {name}
    token = secrets.token_urlsafe(24)
    with ThreadPoolExecutor(1, "erfscope-explorer") as thread:
        app = Guard(_app(explorer, thread), hosts={f"{host_name}:{port}" for host_name in names}, token=token)
        config = uvicorn.Config(
            app,
            http=Impatient,
            ws="none",
            lifespan="off",
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=HEADERS,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=GRACE_S,
        )
        ready(f"http://{name}:{port}/{token}/")
        uvicorn.Server(config).run(sockets=[listening])


class Guard:
    """Refuse requests of strangers, before anything of them is read.

    A request is known by the token in its path, by a host that the server has, and by its page's origin where the
    browser names it: a foreign page can reach the server under a name of its own, and send requests to it.
    """

    def __init__(self, app: ASGIApp, *, hosts: set[str], token: str) -> None:
        self._app, self._hosts, self._token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request of the page on."""
        headers, token = Request(scope).headers, scope["path"].removeprefix("/").partition("/")[0]
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        # A header may be there several times: each of them must be the page's own.
        is_own = len(hosts) == 1 and hosts[0] in self._hosts and {*origins} <= {f"http://{hosts[0]}"}
        if is_own and secrets.compare_digest(token.encode(), self._token.encode()):
            await self._app(scope, receive, send)
        else:
            refusal = PlainTextResponse("open the address that erfscope shows in the terminal\n", 403)
            await refusal(scope, receive, send)


class Impatient(H11Protocol):
    """End a connection whose client leaves the server waiting.

    That is one whose request has no whole head after some seconds, or whose body does not go on. Where there are many
    connections, the oldest of those that wait for a request makes room for a new one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for a connection, and begin to watch it."""
        self._received, self._since = 0, self.loop.time()
        if len(self.connections) >= ROOM:
            others = [cast("Impatient", connection) for connection in self.connections]
            waiting = [
                connection
                for connection in others
                if connection.conn.their_state is h11.IDLE and not connection.transport.is_closing()
            ]
            if waiting:
                min(waiting, key=lambda connection: connection._since).transport.abort()
        super().connection_made(transport)
        self._watch(None)

    def data_received(self, data: bytes) -> None:
        """Count what comes."""
        self._received += len(data)
        super().data_received(data)

    def _watch(self, before: tuple[object, int] | None) -> None:
        """Every few seconds: is the server still waiting for what it was waiting for before?"""
        state = self.conn.their_state
        # Of a head the whole, however slowly it comes; of a body the next part. None while it is the server's turn.
        waits_for = {h11.IDLE: (self.cycle, 0), h11.SEND_BODY: (self.cycle, self._received)}.get(state)
        if waits_for is not None and waits_for == before:
            self.transport.abort()
        if not self.transport.is_closing():
            self.loop.call_later(IDLE_S, self._watch, waits_for)


def _app(explorer: LiveExplorer, thread: ThreadPoolExecutor) -> Starlette:
    async def compute(answer: Callable[..., Any], *arguments: Any) -> Any:
        stop = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, explorer.run, stop, answer, *arguments)
        except ErfscopeError as error:
            return {"error": str(error)}
        except Exception as error:  # anything a model may raise
            return {"error": f"internal error, {first_line(error)}"}
        finally:
            # Also where the browser has closed the connection, since the pointer has moved on.
            stop.set()

    async def page(request: Request) -> Response:
        shown = await compute(explorer.page, read_request(request.url.query, explorer.models))
        return HTMLResponse(shown) if isinstance(shown, str) else JSONResponse(shown, 500)

    def answering(answer: Callable[..., Any], *needed: str) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            parameters = read_request(request.url.query, explorer.models, *needed, rank=explorer.rank)

            async def text() -> AsyncIterator[str]:
                yield json.dumps(await compute(answer, parameters), allow_nan=False)

            # A stream ends where its connection is closed.
            return StreamingResponse(text(), media_type="application/json")

        return respond

    async def picture(request: Request) -> Response:
        name = read_request(request.url.query, explorer.models, "name").name
        data = bytearray()
        if int(request.headers.get("content-length", 0)) <= LARGEST_FILE:
            async for part in request.stream():
                data += part
                if len(data) > LARGEST_FILE:
                    break
            else:
                return JSONResponse(await compute(explorer.add_picture, bytes(data), name))
        return JSONResponse({"error": f"more than {LARGEST_FILE >> 20} MiB are too large for an image"}, 413)

    return Starlette(
        routes=[
            Route("/{token}/", page),
            Route("/{token}/unit", answering(explorer.unit, "model", "stage", "unit")),
            Route("/{token}/field", answering(explorer.field, "model", "stage", "box")),
            Route("/{token}/picture", picture, methods=["POST"]),
        ],
        exception_handlers={BadRequest: lambda _, error: JSONResponse({"error": str(error)}, 400)},
    )


def _listening(host: str, port: int) -> socket.socket:
    if host in ("", "0.0.0.0", "::"):
        raise ErfscopeError("every address was asked for; name the one that browsers use, such as 192.168.1.5:8000")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        text = f"cannot listen at {host}:{port}: {error.strerror or error}"
        raise ErfscopeError(f"{text}; choose another --address") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
