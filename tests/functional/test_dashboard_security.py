"""What the dashboard lets in, and what it never lets out: asked as an attacker would."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.dashboard.app import make_app
from rmq.dashboard.security import MOST_BODY_BYTES, MOST_WRONG, Attempts, Credentials, Settings, logged_in
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.cli import REPOSITORY, Cli, bury
from tests.support.dashboard import served
from tests.support.waiting import wait_until

Browse = Callable[..., httpx.Client]
LOGIN = Credentials("ada", "pass:wörd")


@pytest.fixture
def browse(client: RmqClient) -> Iterator[Browse]:
    """A browser of a dashboard with the given settings; follows what it is told, keeps cookies."""
    with ExitStack() as stack:

        def open_one(settings: Settings | None = None, **options: object) -> httpx.Client:
            address = stack.enter_context(served(client, settings))
            own: AbstractContextManager[httpx.Client] = httpx.Client(
                base_url=address, follow_redirects=True, timeout=60, trust_env=False, **options  # pyright: ignore[reportArgumentType]
            )  # fmt: skip
            return stack.enter_context(own)

        yield open_one


def token_of(browser: httpx.Client, path: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', browser.get(path).text)
    assert found is not None, path
    return found[1]


def all_pages(topic: Topic) -> list[str]:
    name = topic.name
    return [
        "/", f"/topic/{name}", f"/topic/{name}?heat=owner", f"/topic/{name}/slot/0", "/workers", "/search",
        f"/search?topic={name}", "/message", f"/message?topic={name}&content=a", f"/dead?topic={name}", "/dead",
        f"/audit?topic={name}", "/audit", "/schedules",
    ]  # fmt: skip


# --- who may come in


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "evil@127.0.0.1"]
)
def test_a_name_that_was_led_to_us_is_refused(browse: Browse, host: str) -> None:
    browser = browse()
    assert browser.get("/", headers={"host": host}).status_code in (400, 421)
    assert browser.post("/do/pause", headers={"host": host}).status_code in (400, 421)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8642", "localhost", "LOCALHOST:1", "[::1]:8642", "192.0.2.7", "queue.example."]
)
def test_addresses_and_allowed_names_are_served(browse: Browse, host: str) -> None:
    assert browse(Settings(names=frozenset({"Queue.Example"}))).get("/", headers={"host": host}).status_code == 200


def test_another_address_needs_credentials() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7", "queue.example"):
        with pytest.raises(InvalidValueError, match="password"):
            Settings(host)
        assert Settings(host, credentials=LOGIN).host == host
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert Settings(host).credentials is None


@pytest.mark.parametrize(
    ("peer", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("192.0.2.7", 403), ("::ffff:192.0.2.7", 403)],
)
def test_without_a_login_only_this_machine_is_answered(client: RmqClient, peer: str, status: int) -> None:
    """The application may be served by a program that listens anywhere."""

    async def ask(settings: Settings | None) -> int:
        transport = httpx.ASGITransport(make_app(client, settings), client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
            return (await browser.get("/", auth=(LOGIN.user, LOGIN.password))).status_code

    assert asyncio.run(ask(None)) == status
    assert asyncio.run(ask(Settings(credentials=LOGIN))) == 200


@pytest.mark.parametrize(("user", "password"), [("", "x"), ("a:b", "x"), ("a", "")])
def test_credentials_that_are_none(user: str, password: str) -> None:
    with pytest.raises(InvalidValueError):
        Credentials(user, password)


def test_with_credentials_nothing_is_seen_without(browse: Browse, merging: Topic) -> None:
    browser = browse(Settings(credentials=LOGIN))
    for path in [*all_pages(merging), "/static/app.js", "/nowhere"]:
        answer = browser.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"][:5]) == (401, "Basic"), path
        assert merging.name not in answer.text
    assert browser.post("/do/pause", data={"topic": merging.name}).status_code == 401
    basic = base64.b64encode(f"{LOGIN.user}:{LOGIN.password}".encode()).decode()
    assert browser.get("/", headers={"authorization": f"Basic {basic}"}).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !!!",
        "Basic YWRh",
        "Bearer x",
        "Basic " + base64.b64encode(b"ada:wrong").decode(),
        "Basic \xff",
    ],
)
def test_wrong_logins(header: str) -> None:
    assert logged_in(header, LOGIN) is None


def test_who_guesses_is_refused_for_a_while(browse: Browse) -> None:
    browser = browse(Settings(credentials=LOGIN))
    right = base64.b64encode(f"{LOGIN.user}:{LOGIN.password}".encode()).decode()
    for _ in range(MOST_WRONG + 5):
        assert browser.get("/").status_code == 401, "to ask without a login is no guess"
    for number in range(MOST_WRONG):
        guess = base64.b64encode(f"ada:{number}".encode()).decode()
        assert browser.get("/", headers={"authorization": f"Basic {guess}"}).status_code == 401
    answer = browser.get("/", headers={"authorization": f"Basic {right}"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")


@pytest.fixture
def most_networks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many networks are counted: fewer than usual."""
    monkeypatch.setattr("rmq.dashboard.security.MOST_NETWORKS", 50)
    return 50


def test_guesses_are_forgotten_and_bounded(most_networks: int) -> None:
    attempts = Attempts()
    for _ in range(MOST_WRONG):
        attempts.wrong("192.0.2.7", 100.0)
    assert attempts.exhausted("192.0.2.7", 159.0)
    assert not attempts.exhausted("192.0.2.8", 159.0)
    assert not attempts.exhausted("192.0.2.7", 160.0)
    for number in range(most_networks + 10):
        attempts.wrong(str(number), 161.0)
    assert len(attempts._wrong) <= most_networks


def test_many_addresses_free_no_refused_one(most_networks: int) -> None:
    attempts = Attempts()
    for number in range(MOST_WRONG):
        attempts.wrong(f"2001:db8::{number:x}", 100.0)
    assert attempts.exhausted("2001:db8::ffff", 101.0), "a user has a whole /64"
    assert not attempts.exhausted("2001:db8:0:1::1", 101.0)
    for number in range(most_networks + 10):
        attempts.wrong(f"2001:db8:{number:x}::1", 102.0)
    assert attempts.exhausted("2001:db8::1", 103.0)
    for network in list(attempts._wrong):  # all of them refused: the oldest goes
        attempts._wrong[network] = 102.0, MOST_WRONG
    attempts.wrong("192.0.2.7", 104.0)
    assert len(attempts._wrong) == most_networks
    assert not attempts.exhausted("2001:db8::1", 104.0)


# --- what may be done


def test_nothing_changes_without_the_token_of_a_form(browse: Browse, client: RmqClient, merging: Topic) -> None:
    browser, form = browse(), {"topic": merging.name, "back": "/"}
    token = token_of(browser, f"/topic/{merging.name}")
    other = browse()
    foreign = token_of(other, f"/topic/{merging.name}")
    for wrong in ({}, {"token": ""}, {"token": token[:-2]}, {"token": foreign}):
        assert browser.post("/do/pause", data={**form, **wrong}).status_code == 403, wrong
    good = {**form, "token": token}
    for header in (
        {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}, {"origin": "http://[evil"},
    ):  # fmt: skip
        assert browser.post("/do/pause", data=good, headers=header).status_code == 403, header
    without_cookie = httpx.post(f"{browser.base_url}/do/pause", data=good, trust_env=False)
    assert without_cookie.status_code == 403
    assert browser.get("/do/pause", params=good).status_code == 405
    assert not any(slot.paused for slot in client.inspect(merging).stats().slots)
    assert browser.post("/do/pause", data=good).status_code == 200
    assert all(slot.paused for slot in client.inspect(merging).stats().slots)
    client.control(merging).resume()


def test_who_steers_the_dead_of_a_group_is_written_down(
    browse: Browse, client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    client.producer(topic)
    client.stream(topic).add_group("g")
    login = base64.b64encode(f"{LOGIN.user}:{LOGIN.password}".encode()).decode()
    browser = browse(Settings(credentials=LOGIN), headers={"authorization": f"Basic {login}"})
    form = {"token": token_of(browser, f"/topic/{topic.name}"), "topic": topic.name, "group": "g", "back": "/"}
    for action, answer in (("redrive-group", {"yes": "yes"}), ("purge-group", {"confirm": topic.name})):
        assert browser.post(f"/do/{action}", data={**form, **answer}).status_code == 200
    wait_until(lambda: len(client.stream(topic).audit()) == 4, 60)
    assert {line.actor for line in client.stream(topic).audit()} == {"ada@dashboard"}
    assert browser.get(f"/audit?topic={topic.name}").text.count("ada@dashboard") == 4


def test_read_only_shows_everything_and_changes_nothing(browse: Browse, client: RmqClient, merging: Topic) -> None:
    browser = browse(Settings(read_only=True))
    for path in all_pages(merging):
        page = browser.get(path)
        assert page.status_code == 200, path
        assert 'method="post"' not in page.text
    assert browser.post("/do/pause", data={"topic": merging.name}).status_code == 403
    assert not any(slot.paused for slot in client.inspect(merging).stats().slots)


def test_a_form_that_is_too_large_is_refused(browse: Browse) -> None:
    browser = browse()
    assert browser.post("/do/pause", content=b"a" * (MOST_BODY_BYTES + 1)).status_code == 413

    def slowly() -> Iterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n'
        for _ in range(40):
            yield b"a" * (MOST_BODY_BYTES // 20)

    with pytest.raises(httpx.HTTPError):
        browser.post("/do/pause", content=slowly()).raise_for_status()
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=b"):  # of unknown length
        answer = browser.post("/do/pause", content=slowly(), headers={"content-type": kind})
        assert (answer.status_code, "The form is too large." in answer.text) == (413, True)


@pytest.mark.parametrize(
    "cursor",
    [
        "9" * 5_000, "0;0=" + "9" * 60 + ".0.0.0", "0;0=" + "9" * 20 + ".0.0.0", "0;0=1.1.1.18446744073709551616",
        "0;" + "9" * 5_000 + "=0.0.0.0", "0;0=1.1.1.1;0=1.1.1.1", "\u0663", "0;\u0660=0.0.0.0", "-1", "0;0=", "x",
        "99999",
    ],
)  # fmt: skip
@pytest.mark.parametrize("page", ["search", "dead"])
def test_a_cursor_that_no_search_gave_out_is_refused(browse: Browse, merging: Topic, page: str, cursor: str) -> None:
    answer = browse().get(f"/{page}", params={"topic": merging.name, "cursor": cursor})
    assert answer.status_code == (200 if cursor == "99999" else 400), cursor[
        :50
    ]  # beyond the last slot nothing is left


@pytest.mark.parametrize("number", ["9" * 5_000, "-1", "1e3", "\u0663", "", " 1"])
def test_a_number_that_is_none_is_refused(browse: Browse, merging: Topic, number: str) -> None:
    browser = browse()
    assert browser.get(f"/topic/{merging.name}/slot/{number or 'x'}").status_code == 400
    if number:
        query = {"topic": merging.name, "content": "a", "slot": number}
        assert browser.get("/message", params=query).status_code == 400


@pytest.mark.parametrize(
    "back", ["https://evil.example", "//evil.example", "/\\evil.example", "/do/purge", "", "/a\nb"]
)
def test_a_form_leads_back_to_us_only(browse: Browse, client: RmqClient, merging: Topic, back: str) -> None:
    browser = browse()
    form = {"topic": merging.name, "back": back, "token": token_of(browser, f"/topic/{merging.name}")}
    answer = browser.post("/do/pause", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    client.control(merging).resume()


@pytest.mark.parametrize(
    ("action", "given", "problem"),
    [
        ("pause", {"slot": "7"}, "slot"),
        ("pause", {"slot": "x"}, "; it must be a whole number"),
        ("promote", {"hex": "zz"}, "; it must be pairs of hexadecimal digits"),
        ("promote", {}, "hex is missing"),
        ("promote", {"hex": "61"}, "nothing done"),
        ("reschedule", {"hex": "61", "at": "soon"}, "must be a time"),
        ("reprioritise", {"hex": "61", "priority": "20"}, "has due times"),
        ("redrive", {"hex": "61"}, "no longer dead"),
    ],
)
def test_wrong_input_is_said_on_the_page(
    browse: Browse, merging: Topic, action: str, given: dict[str, str], problem: str
) -> None:
    browser = browse()
    token = token_of(browser, f"/topic/{merging.name}")
    page = browser.post(f"/do/{action}", data={"topic": merging.name, "back": "/", "token": token, **given})
    assert page.status_code == 200
    [note] = re.findall(r'<p class="note bad" role="status">(.*?)</p>', page.text)
    assert problem in note
    assert "note bad" not in re.sub(r'<p class="note bad" id="trouble".*?</p>', "", browser.get("/").text)  # said once


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404), ("/topic/never-heard-of", 404), ("/message?topic=x&content=a", 404),
        ("/topic/{name}/slot/2", 400), ("/message?topic={name}&hex=zz", 400),
        pytest.param("/topic/{name}/slot/" + 5_000 * "9", 400, id="a slot of 5,000 digits"),
        ("/search?topic={name}&cursor=nonsense", 400),
        ("/search?topic={name}&place=nowhere", 400), ("/message?topic={name}&hex=61&slot=99", 400),
        ("/message?topic={name}&sha256=00&slot=0&place=store", 400),
        ("/static/../app.py", 404), ("/static/%2e%2e/app.py", 404),
    ],
)  # fmt: skip
def test_what_is_not_there(browse: Browse, merging: Topic, path: str, status: int) -> None:
    page = browse().get(path.format(name=merging.name))
    assert page.status_code == status
    assert "<h1>" in page.text


# --- what payloads can do: nothing

HOSTILE = [
    b"<script>alert(1)</script>",
    b"\"><img src=x onerror=alert(1)>",
    b"' onmouseover='alert(1)",
    b"{{7*7}}{% for x in y %}",
    b"\x1b]0;owned\x07\x1b[31mred",
    b"\xff\xfe<b>",
    "right-to-left \u202e gpj.exe".encode(),
    b"line\r\nSet-Cookie: a=b",
]  # fmt: skip


def acting(html: str) -> list[str]:
    """All that a browser would run or obey in a page, but for the scripts of ours."""
    found: list[str] = []

    class Look(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            found.extend(f"{tag} {name}" for name in given if name.startswith("on") or name == "style")
            if tag in ("script", "style", "iframe", "img", "object", "embed", "base"):
                if not (given.get("src") or "").startswith("/static/"):
                    found.append(tag)

    Look().feed(html)
    return found


def test_payloads_are_shown_and_never_obeyed(browse: Browse, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, max_content_bytes=65_536)
    client.producer(topic).send_many(PriorityMessage(content, 100, body=content * 3) for content in HOSTILE)
    bury(client, topic, 4, ValueError("<script>alert(2)</script>\x1b[2J"))
    client.control(topic, actor="<script>alert(3)</script>").cancel(HOSTILE[0])
    browser = browse()
    links = [f"/message?topic={topic.name}&hex={content.hex()}" for content in HOSTILE]
    for path in [*all_pages(topic), f"/topic/{topic.name}/slot/1", *links, "/search?topic=<script>&pattern=<script>"]:
        page = browser.get(path)
        for bad in (
            "<script>alert",
            "<img src=x",
            "onmouseover='alert",
            "49{%",
            "\x1b",
            "\x07",
            "\u202e",
            "\r\nSet-Cookie",
        ):
            assert bad not in page.text, path
        assert "set-cookie" not in page.headers or "a=b" not in page.headers["set-cookie"]
        headers = page.headers
        assert "'unsafe" not in headers["content-security-policy"]
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "server" not in headers
        assert acting(page.text) == [], path  # what the policy would forbid
    assert "&lt;script&gt;alert(1)" in browser.get(links[0]).text
    assert "ff fe 3c 62 3e" in browser.get(links[5]).text
    assert "\\x1b]0;owned" in browser.get(links[4]).text


def test_large_payloads_are_cut(browse: Browse, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_content_bytes=65_536)
    content, body = "é" * 32_768, b"\xff" * 262_144
    client.producer(topic).send(PriorityMessage(content, 100, body=body))
    browser = browse()
    found = browser.get(f"/search?topic={topic.name}").text
    assert len(found) < 30_000
    [link] = re.findall(r'href="(/message\?[^"]+)"', found)
    page = browser.get(link.replace("&amp;", "&")).text
    assert "sha256" in link
    assert ("65,536 bytes" in page, "262,144 bytes" in page, "shown in hex" in page) == (True, True, True)
    assert len(page) < 500_000  # each form carries the content
    client.control(topic).cancel(content)
    gone = browser.get(link.replace("&amp;", "&"))
    assert (gone.status_code, "search for it again" in gone.text) == (400, True)


# --- the command


def test_the_command_refuses_what_is_not_safe(cli: Cli, tmp_path: Path) -> None:
    ran = cli("dashboard", "--host", "0.0.0.0", code=2)
    assert "password" in ran.err
    assert "a login needs a user" in cli("dashboard", "--user", "ada", code=2).err
    assert "cannot be read" in cli("dashboard", "--user", "ada", "--password-file", str(tmp_path / "no"), code=2).err
    assert (
        "cannot listen"
        in cli("dashboard", "--host", "192.0.2.1", "--user", "a", code=2, env={"RMQ_DASHBOARD_PASSWORD": "b"}).err
    )


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "jinja2", "itsdangerous"])
def test_without_the_extra_the_command_names_it(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from rmq.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "dashboard"], capture_output=True, text=True, timeout=100, cwd=REPOSITORY
    )
    found = (ran.returncode, "pip install 'rmq[dashboard]'" in ran.stderr, "Traceback" in ran.stderr)
    assert found == (1, True, False), ran


def test_the_command_serves_until_it_is_told_to_end(cli: Cli, merging: Topic, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n", "utf-8")
    options = ("--port", "0", "--user", "ada", "--password-file", str(secret), "--read-only", "--json")
    with cli.process("dashboard", *options) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r'"address": "([^"]+)"', line)
        assert address is not None, line
        page = httpx.get(address[1], auth=("ada", "open sesame"), timeout=60, trust_env=False)
        assert (page.status_code, merging.name in page.text, "read-only" in page.text) == (200, True, True)
        assert httpx.get(address[1], auth=("ada", "open"), timeout=60, trust_env=False).status_code == 401
        process.terminate()
        wait_until(lambda: process.poll() is not None, 60)
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")
