"""The live explorer's server over real sockets: it answers its page, survives everybody else, and computes nothing for
them."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
import uvicorn
import warm
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_explorer import OPTIONS, Net, net, picture  # noqa: F401

import erfscope
from erfscope.apps.explore import exploration, server
from erfscope.apps.explore.command import host_and_port
from erfscope.apps.explore.live import BadRequest, LiveExplorer, Overtaken, read_request
from erfscope.apps.explore.planes import block_sums, levels
from erfscope.apps.explore.stages import ENCLOSED, MEASURED
from erfscope.core import ErfscopeError, Request, open_images, open_model, projective_fields

pytestmark = pytest.mark.usefixtures("memory_unplanned")

#: Draws of a unit that takes far longer than a test.
LONG = 100_000
UNIT = {"model": "0", "stage": "far", "unit": "1,1"}
FIELD = {"model": "0", "stage": "far", "box": "1,1,1,1"}


class Served:
    """A server in this process, and what it computed."""

    def __init__(self, address: str, module: Net) -> None:
        self.module, self.host = module, urlsplit(address).netloc
        self.name, _, port = self.host.rpartition(":")
        self.port, self.path = int(port), urlsplit(address).path
        #: Names of answers that were begun, and how those ended that did not return.
        self.begun: list[str] = []
        self.raised: list[type[BaseException]] = []

    def connect(self) -> socket.socket:
        return socket.create_connection((self.name, self.port), timeout=60)

    def request(self, path: str, body: bytes = b"", *, method: str = "GET", **headers: str) -> bytes:
        named = {"host": self.host, "connection": "close"} | {k.replace("_", "-"): v for k, v in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def exchange(self, request: bytes) -> tuple[int, bytes]:
        with self.connect() as connection:
            connection.sendall(request)
            return answered(connection)

    def get(self, path: str, body: bytes = b"", **more: str) -> tuple[int, bytes]:
        return self.exchange(self.request(f"{self.path}{path}", body, **more))

    def ask(self, path: str, **query: object) -> Any:
        status, body = self.get(f"{path}?{urlencode(query, doseq=True)}")
        assert status == 200
        return json.loads(body)

    def post(self, body: bytes, name: str = "own.png") -> Any:
        path = f"picture?{urlencode({'name': name})}"
        return json.loads(self.get(path, body, method="POST", content_length=str(len(body)))[1])

    @contextlib.contextmanager
    def computing_nothing(self) -> Iterator[None]:
        before = list(self.begun)
        yield
        assert self.begun == before


def answered(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of an answer, up to the end of the connection; status 0 where there is none."""
    found = b""
    # What was sent and not read resets the connection after the answer.
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            found += part
    head, _, body = found.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        parts = re.split(rb"\r?\n?[0-9a-f]+\r\n", body)
        body = b"".join(parts).strip()
    return int(head.split()[1]) if head else 0, body


@pytest.fixture(scope="module")
def serving() -> Iterator[Any]:
    """Start servers, which end with the module."""
    servers: list[uvicorn.Server] = []
    threads: list[threading.Thread] = []
    patch = pytest.MonkeyPatch()

    class Noted(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    patch.setattr(uvicorn, "Server", Noted)

    def start(image: object, **options: object) -> Served:
        ready: Queue[str | BaseException] = Queue()
        module = net().train()
        served: list[Served] = []

        class Counted(LiveExplorer):
            def run(self, stop, answer, *asked):
                served[0].begun.append(answer.__name__)
                try:
                    return super().run(stop, answer, *asked)
                except BaseException as error:
                    served[0].raised.append(type(error))
                    raise

        def run() -> None:
            try:
                exploration.serve(module, image, **{**OPTIONS, **options}, ready=ready.put)
            except BaseException as error:
                ready.put(error)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(exploration, "LiveExplorer", Counted)
            threads.append(threading.Thread(target=run))
            threads[-1].start()
            address = ready.get(timeout=60)
        assert isinstance(address, str), address
        served.append(Served(address, module))
        return served[0]

    yield start
    for each in servers:
        each.should_exit = True
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    patch.undo()


@pytest.fixture(scope="module")
def served(serving, picture) -> Served:  # noqa: F811
    return serving(picture)


@pytest.fixture(scope="module")
def slow(serving, picture) -> Served:  # noqa: F811
    return serving(picture, draws=LONG)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def assert_is(found: dict[str, Any], alone: erfscope.Result) -> None:
    """The answer is the unit that is measured alone."""
    expected = [alone.measures[name].value for name in MEASURED]
    assert found["numbers"] == pytest.approx([v if isinstance(v, float) else None for v in expected], abs=1e-9)
    assert found["at"] == pytest.approx(alone.unit.center_px)
    assert np.interp(alone["r50"].value, found["radii"], ENCLOSED) == pytest.approx(0.5, abs=0.01)
    (plane,) = found["planes"]
    shown = np.frombuffer(base64.b64decode(plane["levels"]), dtype=np.uint8).reshape(plane["blocks"])
    rows, cols = (slice(at, at + count) for at, count in zip(plane["first"], plane["blocks"], strict=True))
    assert np.abs(shown.astype(int) - levels(block_sums(alone.map.values, 1)[rows, cols])).max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "unit", "chosen"),
    [("near", (3, 31), {}), ("far.0", (2, 5), {"convention": "luo"}), ("far", (5, 0), {"wrt": "near"})],
)
def test_an_answer_is_the_unit_that_is_measured_alone(served, picture, stage, unit, chosen):  # noqa: F811
    found = served.ask("unit", model=0, stage=stage, unit=f"{unit[0]},{unit[1]}", **chosen)
    assert_is(found, erfscope.analyze(net(), images=picture, unit=unit, **{**OPTIONS, "layer": stage, **chosen}))
    assert served.module.training


@pytest.mark.slow
def test_a_box_moves_the_units_that_its_projective_field_says(served, picture):  # noqa: F811
    found = served.ask("field", model=0, stage=["near", "far"], box="3,3,7,7")
    request = Request.parse({**OPTIONS, "images": picture, "samples": 1})
    with open_model(net(), request) as model:
        expected = projective_fields(model, open_images(request, model).batch([0]), ((3, 4), (7, 8)), ["near", "far"])
    for text, values in zip(found["stages"], expected.values(), strict=True):
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(text), "<f4"), values.ravel(), rtol=1e-6)


@pytest.mark.slow
def test_a_picture_of_the_readers_own_is_measured_as_a_file_is(served, tmp_path):
    pixels = np.random.default_rng(5).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    (tmp_path / "own.png").write_bytes(png(pixels))
    key = served.post(png(pixels), "own.png")["picture"]
    found = served.ask("unit", model=0, stage="far", unit="2,3", picture=key)
    assert_is(found, erfscope.analyze(net(), images=tmp_path / "own.png", unit=(2, 3), **{**OPTIONS, "layer": "far"}))
    _, page = served.get(f"?picture={key}")
    assert b"own.png" in page


@pytest.mark.slow
def test_what_cannot_be_answered_comes_as_one_line_and_nothing_is_computed_for_a_bad_request(served):
    for path, query, text in (
        ("unit", UNIT | {"stage": "nowhere"}, "unknown layer 'nowhere'"),
        ("unit", UNIT | {"unit": "99,1"}, "99"),
        ("unit", UNIT | {"convention": "x"}, "unknown convention 'x'"),
        ("unit", UNIT | {"picture": "x"}, "not held any more"),
        ("field", FIELD | {"box": "0,99,0,3"}, "rows and"),
    ):
        error = served.ask(path, **query)["error"]
        assert text in error
        assert "\n" not in error
    for path in ("unit?model=0", "field?model=0", "?wrt=image&wrt=image", "picture?x=1"):
        method = {"method": "POST", "content_length": "1"} if path.startswith("picture") else {}
        with served.computing_nothing():
            status, body = served.get(path, b"x" * bool(method), **method)
        assert status == 400
        assert "; give it" in json.loads(body)["error"]
    for length in (None, "x", "-1", "+1", "1.5", "", "9" * 30, "9" * 5000, "1, 1", "1, 2"):
        named = {} if length is None else {"content_length": length}
        status, body = served.get("picture?name=x", b"x", method="POST", **named)
        # A body that no length announces is the beginning of another request, which older servers answer first.
        assert status in {None: (200, 400), "1, 1": (200,)}.get(length, (400, 413)), length
        assert b"internal error" not in body


#: Values of no form that a page sends.
ODD = ["", " ", "x", "-1", "1.5", "nan", "inf", "1e9", "[0]", "1,1,1", "-1,-1", ",", "\u0663", "\x00"]
ODD += ["9" * 30, "9" * 5000]


@pytest.mark.parametrize("good", [UNIT, FIELD], ids=["unit", "field"])
def test_a_missing_a_repeated_or_an_odd_parameter_is_a_bad_request(good):
    assert read_request(urlencode(good), 1, *good).stages == ["far"]
    for name in good:
        missing = {key: value for key, value in good.items() if key != name}
        odd = [{**good, name: value} for value in (ODD if name != "stage" else [""])]
        repeated = [] if (good, name) == (FIELD, "stage") else [{**good, name: [good[name]] * 2}]
        for query in [missing, *odd, *repeated]:
            with pytest.raises(BadRequest, match=r"^[^\n]+; [^\n]+$"):
                read_request(urlencode(query, doseq=True), 1, *good)


@pytest.mark.parametrize(
    ("query", "needed", "text"),
    [
        ("model=1&stage=far&unit=1,1", UNIT, "there is no model 1; the page has 1, counted from 0"),
        ("model=0&stage=far&box=3,1,0,0", FIELD, "the box 3,1,0,0 ends before it begins"),
        ("model=0&stage=far&unit=1", UNIT, "unit is '1'; write 2 whole numbers, such as 0,0"),
        ("convention=", (), "the request has no convention"),
        ("wrt=image&wrt=image", (), "wrt is given 2 times; give it 1 times at most"),
        ("picture=&picture=", (), "picture is given 2 times"),
        ("", ["name"], "the request has no name"),
        ("name=a&name=b", ["name"], "name is given 2 times"),
    ],
)
def test_a_bad_request_says_what_to_send(query, needed, text):
    with pytest.raises(BadRequest, match=re.escape(text)):
        read_request(query, 1, *needed)


WORDS = st.sampled_from([*ODD, "0", "1", "far", "near", "far.0", "far[0]", "image", "near:in", "luo", "1,1", "0,3,0,3"])
NAMES = st.sampled_from(["model", "stage", "unit", "box", "layer", "wrt", "convention", "picture", "name", "x[]"])


@pytest.mark.slow
@fuzz(60)
@given(path=st.sampled_from(["", "unit", "field"]), query=st.lists(st.tuples(NAMES, WORDS | st.text(max_size=4))))
def test_no_query_is_an_internal_error(served, path, query):
    pairs = [(name, value.encode(errors="ignore")) for name, value in query]
    if path:
        pairs += [pair for pair in (UNIT | FIELD).items() if pair[0] not in dict(pairs)]
    status, body = served.get(f"{path}?{urlencode(pairs)}")
    assert status in (200, 400), pairs
    assert b"internal error" not in body


@pytest.mark.slow
def test_foreign_hosts_are_refused_this_machines_names_known_and_ten_gigabytes_not_taken(served):
    origins = ("http://evil.example", "null", "", f"HTTP://{served.host}", f"https://{served.host}")
    foreign = [("host", "evil.example"), *(("origin", text) for text in (*origins, f"http://{served.name}"))]
    for (header, text), order in itertools.product(foreign, (1, -1)):
        own = {"host": served.host, "origin": f"http://{served.host}"}
        given = [f"{header}: {own.pop(header)}", f"{header}: {text}"][::order]
        head = [f"GET {served.path} HTTP/1.1", "connection: close", *given, *(f"{k}: {v}" for k, v in own.items())]
        status, _ = served.exchange("\r\n".join([*head, "", ""]).encode())
        assert status in ((400, 403) if header == "host" else (403,)), (header, text, order)
    assert len(served.path) > 30
    for name in (f"localhost:{served.port}", f"127.0.0.1:{served.port}"):
        assert served.get(f"unit?{urlencode(UNIT)}", host=name, origin=f"http://{name}")[0] == 200
    for folder, expected in ((served.path, 413), ("/stranger/", 403)):
        request = served.request(f"{folder}picture?name=x", method="POST", content_length=str(10**10))
        with served.computing_nothing():
            assert served.exchange(request)[0] == expected


@pytest.mark.slow
def test_the_page_says_what_it_cannot_show_and_shows_the_rest(served):
    status, page = served.get("?layer=nowhere")
    assert status == 200
    assert b"unknown layer &#39;nowhere&#39;" in page
    assert b'"name":"far"' in page
    key = served.post(png(np.zeros((8, 8, 3), dtype=np.uint8)), "mine.png")["picture"]
    _, page = served.get(f"?layer=nowhere&picture={key}")
    assert b"mine.png" in page
    _, page = served.get("?picture=x")
    assert b"this picture is not held any more" in page


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", png(np.zeros((8, 8, 3), dtype=np.uint8))])
def test_nothing_is_computed_for_strangers(served, body):
    assert served.exchange(served.request("*", method="OPTIONS"))[0] == 403
    query = "picture?name=x" if body else "unit?model=0&stage=far&unit=1,1"
    method = {"method": "POST", "content_length": str(len(body))} if body else {}
    for change in (
        {"host": "evil.example"},
        {"host": "evil.example:80", "origin": "http://evil.example:80"},
        {"host": "127.0.0.1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"token": ""},
        {"token": "x" * 32},
    ):
        path = f"/{change.pop('token')}/" if "token" in change else served.path
        with served.computing_nothing():
            found = served.exchange(served.request(path + query, body, **method, **change))
        assert found == (403, b"open the address that erfscope shows in the terminal\n"), change


@pytest.mark.slow
def test_bodies_are_read_up_to_the_limit_forgotten_where_they_break_off_and_awaited_where_they_are_slow(
    served, monkeypatch
):
    before = list(served.begun)
    with served.connect() as connection:
        path = f"{served.path}picture?name=x"
        connection.sendall(served.request(path, bytes(1000), method="POST", content_length="2000"))
    assert served.ask("unit", **UNIT)["planes"]
    assert served.begun == [*before, "unit"]
    monkeypatch.setattr(server, "IDLE_S", 0.2)
    body = png(np.zeros((8, 8, 3), dtype=np.uint8))[:40]
    with served.connect() as connection:
        length = {"content_length": str(len(body))}
        connection.sendall(served.request(f"{served.path}picture?name=x", method="POST", **length))
        for byte in body:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
        status, found = answered(connection)
    assert status == 200
    assert "cannot read 'x'" in json.loads(found)["error"]
    monkeypatch.setattr(server, "LARGEST_FILE", 1 << 20)
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    sent = 0
    with served.computing_nothing(), served.connect() as connection:
        connection.sendall(served.request(f"{served.path}picture?name=x", method="POST", transfer_encoding="chunked"))
        try:
            for _ in range(10_000):
                connection.sendall(chunk)
                sent += 1
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("all of it was read")
    assert sent < 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "bomb",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (k, b"y" * 1000) for k in range(2000)),
        b"GET / HTTP/1.1\r\nx: " + b"y" * 2_000_000,
        b"GET /" + b"y" * 2_000_000,
        b"\x16\x03\x01\x02\x00" * 20_000,
    ],
)
def test_a_bomb_of_headers_ends_its_connection(served, bomb):
    with served.computing_nothing(), served.connect() as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(bomb)
        assert answered(connection)[0] in (0, 400)
    assert served.ask("unit", **UNIT)["planes"]


@pytest.mark.slow
def test_fifty_connections_at_once_are_answered_beside_fifty_idle_ones_and_more_idle_ones_keep_nobody_out(served):
    asked = {"model": 0, "stage": "near", "unit": "1,1", "convention": "luo"}
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(served.connect()) for _ in range(50)]
        for connection in idle[::2]:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: ")
        with ThreadPoolExecutor(50) as pool:
            found = list(pool.map(lambda _: served.ask("unit", **asked), range(50)))
    assert all(each == found[0] for each in found)
    assert found[0]["planes"]
    with contextlib.ExitStack() as stack:
        for _ in range(server.CONNECTIONS + 20):
            stack.enter_context(served.connect())
        assert served.get(f"unit?{urlencode(UNIT)}")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nhost: ", "slowly", "body", "answered"])
def test_a_connection_that_sends_no_whole_request_is_ended(served, monkeypatch, sent):
    monkeypatch.setattr(server, "IDLE_S", 0.2)
    begun = time.monotonic()
    with served.connect() as connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        if sent == "body":
            request = served.request(f"{served.path}picture?name=x", b"x", method="POST", content_length="9")
            connection.sendall(request)
        elif sent == "answered":
            connection.sendall(served.request("/", connection="keep-alive"))
        elif sent == "slowly":
            for character in "GET / HTTP/1.1\r\n" * 20:
                connection.sendall(character.encode())
                time.sleep(0.03)
        else:
            connection.sendall(sent.encode())
        answered(connection)
    assert time.monotonic() - begun < 3


@pytest.mark.slow
def test_an_answer_that_takes_long_is_not_idle(slow, monkeypatch):
    monkeypatch.setattr(server, "IDLE_S", 0.1)
    with slow.connect() as connection:
        connection.sendall(slow.request(f"{slow.path}unit?{urlencode(UNIT)}"))
        connection.settimeout(1)
        head = connection.recv(1 << 16)
        with pytest.raises(TimeoutError):
            connection.recv(1 << 16)
    assert b" 200 " in head
    slow.begun.clear()
    wait_for(lambda: slow.raised)
    slow.raised.clear()


@pytest.mark.slow
def test_an_answer_ends_when_its_connection_is_closed(slow):
    unit = slow.request(f"{slow.path}unit?model=0&stage=far&unit=1,1")
    first, second = slow.connect(), slow.connect()
    first.sendall(unit)
    wait_for(lambda: slow.begun == ["unit"])
    # The second waits for the first one, and is given up before it has begun.
    second.sendall(unit)
    time.sleep(0.2)
    second.close()
    time.sleep(0.2)
    first.close()
    status, page = slow.get("")
    assert status == 200
    assert f"{LONG} random draws" in page.decode()
    assert slow.begun == ["unit", "page"]
    assert slow.raised == [Overtaken]


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_also_while_it_computes(number):
    command = [sys.executable, "-m", "erfscope", "explore", "test_resnet", "--weights", "random", "--serve"]
    command += ["--input-size", "32", "--draws", str(LONG)]
    process = warm.WarmProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", process.stdout.readline())[0]
    served = Served(address, net())
    with served.connect() as connection:
        connection.sendall(served.request(f"{served.path}unit?model=0&stage=layer2&unit=1,1"))
        time.sleep(0.5)
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == (0 if number == signal.SIGINT else 128 + signal.SIGTERM)
    assert said.strip() == ""


def test_an_address_that_cannot_be_listened_at_is_refused_and_a_missing_extra_is_named(picture, monkeypatch):  # noqa: F811
    refused = {"0.0.0.0": "name the one that browsers use", "203.0.113.7": "cannot listen at 203.0.113.7:0"}
    for host, text in refused.items():
        with pytest.raises(ErfscopeError, match=re.escape(text)):
            exploration.serve(net(), picture, **OPTIONS, host=host)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "erfscope.apps.explore.server")
    with pytest.raises(ErfscopeError, match=re.escape("pip install '.[explore]' in a checkout of erfscope")):
        exploration.serve(net(), picture, **OPTIONS)


def test_the_command_takes_a_file_or_serves_at_an_address(command):
    for asked, text in (
        ([], "give either -o FILE"),
        (["--serve", "-o", "x.html"], "give either -o FILE"),
        (["--serve", "--address", "here"], "'here' is no address; write HOST:PORT"),
        (["--serve", "--address", "1.2.3.4:99999"], "is no address"),
    ):
        code, _, told = command("explore", "test_resnet", "--weights", "random", *asked)
        assert (code, text in told) == (2, True), told
    for text, expected in (("8000", ("127.0.0.1", 8000)), ("[::1]:0", ("::1", 0)), ("pc.local:80", ("pc.local", 80))):
        assert host_and_port(text) == expected
