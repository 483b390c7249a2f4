"""Debian's chromium, without a window."""

import os
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="package")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no chromium on this machine; on Debian: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        alone = ["--no-sandbox"] if os.getuid() == 0 else []  # a container's root has no sandbox
        window = playwright.chromium.launch(executable_path=path, args=alone)
        yield window
        window.close()


@pytest.fixture
def tab(browser):
    """Give a function that opens an empty page; whatever its console says fails the test."""
    said, contexts = [], []

    def opening(allowed="file:", **options):
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(120_000)  # milliseconds; a busy machine is no failure
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        inside = (allowed, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(inside) else said.append(r.url))
        return page

    yield opening
    for context in contexts:
        context.close()
    assert not said


def ready(page, app="clearvit"):
    """Wait until all that is shown is decoded and drawn."""
    page.wait_for_function(f"() => window.{app} && window.{app}.frames > 0")
    page.evaluate(f"window.{app}.store.idle()")
    page.evaluate("new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))")
