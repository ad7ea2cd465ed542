"""The page during the demo, as a new user tries it: a recovery from start to end, and five questions."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests import browser
from tests.system.test_demo import running

MOST_SECONDS = 10
"""Time in which the page answers each question."""


@contextmanager
def answered(question: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    print(f"{question} {seconds:.1f} s")
    assert seconds <= MOST_SECONDS, question


@pytest.mark.measures
@pytest.mark.repeat
@pytest.mark.parametrize("rate, arguments", [(20, ()), (2, ("--kafka", "4"))], ids=["simulated", "kafka"])
def test_the_page_answers_five_questions_during_the_demo(tmp_path: Path, rate: int, arguments: tuple[str, ...]) -> None:
    if browser.find() is None:
        pytest.skip(browser.ABSENT)
    with running(tmp_path, "--keep", *arguments) as demo, browser.driven() as chromium:
        demo.wait_until(lambda: "the page: " in demo.text(), 240)
        address = re.findall(r"the page: (\S+)", demo.text())[0]
        page = chromium.new_page()
        faults, hosts = [], set()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(address)
        demo.wait_until(lambda: "Updated throttle" in demo.text(), 60)
        ask_five_questions(page, rate)
        refuse_a_bad_rate(page)
        demo.wait_until(lambda: "Leading in term" in demo.text(), 60)
        expect(page.locator("#cycle")).to_contain_text("leads since", timeout=30_000)
        demo.wait_until(lambda: "everything keeps running" in demo.text(), 300)
        expect(page.locator("h1")).to_have_text("Nothing moves", timeout=15_000)
        expect(page.locator("#live")).to_have_text("live", timeout=15_000)
        page.get_by_role("tab", name="Audit").click()
        expect(page.locator("#past-audit")).to_contain_text(f"set a rate of broker 1006: none → {rate:.1f}"[:36])
        expect(page.locator("#past-audit")).to_contain_text("removed a rate of broker 1006")
        page.close()
        assert [fault for fault in faults if "400" not in fault and "503" not in fault] == []
        assert hosts - {""} == {urlsplit(address).netloc}
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(timeout=30) == 130
        assert demo.leftovers() == []


def ask_five_questions(page: Page, rate: int) -> None:
    with answered("What moves?"):
        moves = "clickstream, orders, payments and telemetry move to broker 1006"
        expect(page.locator("h1")).to_have_text(moves, timeout=MOST_SECONDS * 1000)
    with answered("When is it done?"):
        expect(page.locator("#facts .value").first).to_have_text(re.compile(r"in \d"), timeout=MOST_SECONDS * 1000)
    with answered("Why has broker 1006 this rate?"):
        page.locator("h1").get_by_role("button", name="broker 1006").click()
        panel = page.get_by_role("dialog")
        expect(panel.locator("h2")).to_have_text(re.compile(r"^Broker 1006: [\d.]+ MB/s in"))
        expect(panel.locator(".why")).to_contain_text("clients use")
    with answered(f"How do I slow it down to {rate} MB/s?"):
        panel.get_by_label("New rate of broker 1006").fill(str(rate))
        panel.get_by_role("button", name="Set this rate").click()
        confirm = page.get_by_role("button", name=re.compile("^Set broker 1006 to"))
        expect(page.locator(".effect")).to_contain_text("Broker 1006 inbound: throttle")
        confirm.click()
        expect(page.locator("#done")).to_contain_text("Broker 1006: set to", timeout=MOST_SECONDS * 1000)
        expect(panel.locator(".why")).to_contain_text("override of broker 1006", timeout=MOST_SECONDS * 1000)
        expect(panel.locator("h2")).to_contain_text(f"{rate}.0")
    with answered("How do I undo that?"):
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#force li")).to_have_count(0, timeout=MOST_SECONDS * 1000)
    page.keyboard.press("Escape")


def refuse_a_bad_rate(page: Page) -> None:
    page.get_by_role("button", name="Set a rate").click()
    page.get_by_label("Rate in each direction").fill("0")
    page.get_by_label("Broker", exact=True).fill("1006")
    page.get_by_role("button", name=re.compile("^Set broker 1006 to")).click()
    expect(page.get_by_role("alert")).to_contain_text("override rate 0 bytes/s is outside of 1..1000000000000")
    page.keyboard.press("Escape")
