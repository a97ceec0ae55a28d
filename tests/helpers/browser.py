"""Pages in headless Chromium without a network, with a record of what a page asks for and what the console says."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import environments

if TYPE_CHECKING:
    from playwright.sync_api import Page

NO_BROWSER = "no Chromium was found: pages were NOT tested; install one, as with `apt-get install chromium`"
NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Visit:
    """A page that is open, and what it did.

    Attributes:
      page: Playwright's page.
      requests: all URLs but the page's own.
      messages: what the console shows, errors of scripts and of the policy among it.
    """

    page: "Page"
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return self.page.locator(selector).count()


@dataclass(frozen=True)
class Browser:
    """A browser."""

    process: Any

    @contextmanager
    def visit(self, file: Path, *, width: int = 1280, scheme: str = "light") -> Iterator[Visit]:
        """Opens a file from disk, in a window of its own."""
        context = self.process.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, service_workers="block"
        )
        own = file.resolve().as_uri()
        visit = Visit(context.new_page())
        visit.page.on("request", lambda request: visit.requests.append(request.url) if request.url != own else None)
        visit.page.on("console", lambda message: visit.messages.append(message.text))
        visit.page.on("pageerror", lambda error: visit.messages.append(str(error)))
        visit.page.goto(own)
        yield visit
        context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; its absence fails with CI=true, unless it could not be installed, and is a skip elsewhere."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        path = found or playwright.chromium.executable_path
        if not os.path.exists(path):
            if environments.in_ci() and not os.environ.get("AX2MT_WITHOUT_BROWSER"):
                pytest.fail(NO_BROWSER)
            pytest.skip(NO_BROWSER)
        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root may not have one
        process = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield Browser(process)
        process.close()
