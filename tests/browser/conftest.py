"""One browser for all tests of this folder: starting it takes seconds.

It ends with them, since Playwright keeps an event loop running meanwhile, in which no other test could run
one of its own.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from tests.browser.chromium import arguments, found

PATIENCE_MS = 120_000
"""Until something shows. A shared machine may be slow; what takes longer is broken."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = found()
    if program is None:
        pytest.skip(
            "no Chromium on this machine, and none could be installed (python -m tests.browser.chromium)"
        )
    with sync_playwright() as driver:
        try:
            opened = driver.chromium.launch(executable_path=program, args=arguments(), timeout=PATIENCE_MS)
        except Error as error:
            pytest.skip(f"{program} does not start here: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A wide screen."""
    context = browser.new_context(viewport={"width": 1800, "height": 1000})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()
