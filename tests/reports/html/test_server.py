"""`stride view`: the list of runs, pages that are written when they are asked for, and what it refuses."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

import pytest

from stridebench.harness.record.entries import CellMeta
from stridebench.reports.html.server import PageServer, may_ask, serve
from tests.support import page_runs
from tests.support.cli import refused, stride
from tests.support.fake_store import empty, meta, record, step


@dataclass(frozen=True)
class View:
    """A server of a folder."""

    port: int
    folder: Path

    def get(self, address: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, str, str]:
        """Status, text, and where the answer sends the browser."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, address, headers={"Host": host if "@" in host else f"{host}:{self.port}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer.headers.get("Location") or ""


@pytest.fixture()
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[View]:
    monkeypatch.setattr("stridebench.reports.html.text.write", lambda folder: None)
    records = [record(f"p{i}", [step()] * 3) for i in range(2)]
    fake = empty().add(meta("ar", role="baseline"), records).add(meta("m"), records)
    page_runs.stored(fake, tmp_path / "first", unsealed=("m",))
    page_runs.stored(fake, tmp_path / "second")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("<b>{")
    with serve(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield View(server.server_port, tmp_path)
        server.shutdown()
        thread.join()


def test_the_list_says_how_far_each_run_is_and_what_cannot_be_read(view: View) -> None:
    status, text, _ = view.get("/")
    assert status == 200 and "1 of 2" in text and "2 of 2" in text
    assert "damaged" in text and "<b>{" not in text
    assert "1 exact" in text and "a CPU" in text


def test_the_list_has_the_duration_and_the_speed_up_and_failures_of_the_report(view: View) -> None:
    head = "label,role,status,verdict,n_failed,speedup,speedup_low,speedup_high\n"
    rows = [
        "ar,baseline,done,-,1,1,1,1",
        "fast,method,done,exact,2,1.62,1.10,1.90",
        "rough,method,done,approximate,0,9,8,10",
    ]
    rows += ["slow,method,done,exact (1e-16),0.0,1.7,0.8,2.9", "none,method,skipped,,,,,"]
    (view.folder / "second" / "report").mkdir()
    (view.folder / "second" / "report" / "summary.csv").write_text(head + "\n".join(rows) + "\n")
    (view.folder / "first" / "report").mkdir()
    (view.folder / "first" / "report" / "summary.csv").write_text("something else")
    text = view.get("/")[1]
    assert "1.62 [1.10, 1.90] fast" in text and '<td class="num">3</td>' in text
    assert re.search(r'<td class="num" data-order="[\d.]+">[\d.]+ (s|min|h)</td>', text)


@pytest.mark.parametrize(
    ("name", "host", "may"),
    [
        ("127.0.0.1:7474", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("192.168.1.7:7474", "127.0.0.1", False),
        ("192.168.1.7:7474", "0.0.0.0", True),
        ("[fe80::1]:7474", "0.0.0.0", True),
        (f"{socket.gethostname()}:7474", "0.0.0.0", True),
        ("evil.example:7474", "0.0.0.0", False),
        ("127.0.0.1.other:7474", "127.0.0.1", False),
        ("user@192.168.1.7", "0.0.0.0", False),
        ("box.lan:7474", "box.lan", True),
    ],
)
def test_a_foreign_name_is_refused_at_every_address(name: str, host: str, may: bool) -> None:
    assert may_ask(name, host) is may


def test_another_address_is_served_to_its_name_alone(tmp_path: Path) -> None:
    with serve(tmp_path, 0, host="localhost") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        for host, status in (("localhost", 200), ("evil.example", 403)):
            connection.request("GET", "/", headers={"Host": host})
            answer = connection.getresponse()
            assert (answer.status, answer.read() is not None) == (status, True)
            connection.close()
        server.shutdown()
        thread.join()


def test_a_page_of_a_run_that_goes_on_says_when_to_load_again(view: View) -> None:
    _, _, place = view.get("/open?run=first")
    assert place == "/runs/first/index.html"
    before = view.get("/state?run=first")[1]
    assert f'data-state="{before}"' in view.get(place)[1] and 'data-follow="/state?run=first"' in view.get(place)[1]
    store = page_runs.Store.open(view.folder / "first")
    store.write("m", record("p2", [step()] * 3))
    assert view.get("/state?run=first")[1] != before
    assert "not finished: 3 decodes are stored" in view.get(place)[1]
    store.seal("m", CellMeta.read(meta("m")))
    finished = view.get(place)[1]
    assert view.get("/state?run=first")[1] == "" and 'data-follow=""' in finished and "not finished" not in finished
    assert view.get("/runs/first/cells/m.html")[0] == 200


def test_picked_cells_of_two_runs_stand_beside_the_first(view: View) -> None:
    status, _, place = view.get("/compare?cell=second/m&cell=first/ar")
    text = view.get(place)[1]
    assert status == 303 and "Beside m" in text and text.count('name="cell"') == 2
    assert "1.00" in text.partition("beside-title")[2] and "first/m" not in text
    outputs = text.partition("Outputs side by side")[2].partition("</table>")[0]
    assert outputs.count("<tr>") == 3 and outputs.count("<td><bdi>") == 4 and ">p0</bdi>" in outputs


def test_what_two_cells_do_not_share_is_said(view: View) -> None:
    other = empty().add(meta("x", role="baseline", backbone="big", task="else"), [record("q0", [step()] * 3)])
    other.body["provenance"] = {"fingerprint": "elsewhere"}
    page_runs.stored(other, view.folder / "third")
    text = view.get(view.get("/compare?cell=second/m&cell=third/x")[2])[1]
    for words in ("no prompt in common", "another machine", "other backbone", "other task"):
        assert words in text


def test_what_is_no_page_is_not_there(view: View) -> None:
    addresses = [
        "/open?run=absent",
        "/open?run=..%2Fsecret",
        "/open?run=damaged",
        "/runs/",
        "/compare?cell=first/m",
        "/compare?cell=x",
        "/state?run=x",
        "/../../etc/passwd",
        "/%2e%2e/x",
        "/assets/page.css%00",
        "/open?run=first%00",
        "http://elsewhere/",
        "//elsewhere/",
    ]
    assert [address for address in addresses if view.get(address)[0] != 404] == []


def test_the_reason_stands_on_a_page(view: View) -> None:
    text = view.get("/open?run=%3Cb%3E")[1]
    assert "There is no such page" in text and "there is no run" in text and "<b>" not in text


def test_a_foreign_name_is_refused(view: View) -> None:
    """A page elsewhere may point a name of its own at the loopback address."""
    hosts, methods = ("attacker.example", "127.0.0.1:80@other", ""), ("GET", "HEAD", "POST")
    assert {view.get("/", host, method)[0] for host in hosts for method in methods} == {403}


def test_a_head_is_the_answer_without_its_body(view: View) -> None:
    for address in ("/", "/open?run=first", "/open?run=absent", "/state?run=first"):
        (status, _, place), (head, body, to) = (view.get(address, method=method) for method in ("GET", "HEAD"))
        assert (head, to, body) == (status, place, "")


@pytest.mark.parametrize("name", ["#1 sp ace x+y ünï a~20b 100% a&b=c", "é" * 120])
def test_a_run_is_found_whatever_its_folder_is_called(view: View, name: str) -> None:
    (view.folder / "second").rename(view.folder / name)
    text = view.get("/")[1]
    (link,) = (part.partition('"')[0] for part in text.split('href="')[1:] if quote(name, safe="") in part)
    status, _, place = view.get(link)
    if len(name) == 120:  # 720 bytes in an address
        assert status == 404 and "too long for the address of a page" in view.get(link)[1]
        return
    page = view.get(place)
    assert (status, page[0]) == (303, 200) and escape(name) in page[1]
    assert view.get(place.replace("index.html", "cells/m.html"))[0] == 200
    both = view.get(f"/open?run=first&run={quote(name, safe='')}")[2]
    assert "1. first: " in view.get(both)[1]


def test_clients_that_leave_early_print_nothing_and_many_at_once_get_the_whole_list(
    view: View, capfd: pytest.CaptureFixture[str]
) -> None:
    """A client that resets its connection while the answer is sent, then 64 that ask before any is answered."""
    request = f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{view.port}\r\n\r\n".encode()
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", view.port), timeout=30) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(request)
    expected = view.get("/")[1]
    clients = [socket.create_connection(("127.0.0.1", view.port), timeout=30) for _ in range(64)]
    for client in clients:
        client.sendall(request)
    texts = []
    for client in clients:
        with client, client.makefile("rb") as answer:
            texts.append(answer.read().decode().partition("\r\n\r\n")[2])
    assert set(texts) == {expected} and PageServer.request_queue_size >= 512
    assert capfd.readouterr().err == ""


def test_an_error_of_the_server_itself_is_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with serve(tmp_path, 0) as server:
        for error, said in ((BrokenPipeError(), False), (ValueError("odd"), True)):
            try:
                raise error
            except type(error):
                server.handle_error(None, ("127.0.0.1", 1))
            assert ("odd" in capfd.readouterr().err) == said


def test_a_port_that_is_taken_and_a_missing_folder_are_one_message(view: View, tmp_path: Path) -> None:
    assert f"port {view.port} cannot be served" in refused("view", tmp_path, "--port", view.port)
    assert "is not a folder" in refused("view", tmp_path / "absent")
    assert "--host is empty" in refused("view", tmp_path / "absent", "--host", "")


def test_an_interrupt_is_how_a_view_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(server: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupt)
    done = stride("view", tmp_path, "--port", 0)
    assert done.code == 0 and "^C ends it" in done.out
