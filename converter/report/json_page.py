"""Writes the tables of fields in docs/json.md: `python -m converter.report.json_page docs/json.md`, or `make docs`."""

import re
import sys
from pathlib import Path

from converter.report.documents import DOCUMENTS, PLAN
from converter.report.fields import Record

TABLE = re.compile(r"(<!-- fields of (?P<name>[a-z -]+?) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with the table of each named document between its marks.

    Raises:
      KeyError: a mark names no document.
    """
    return TABLE.sub(lambda found: f"{found[1]}\n{_table(found['name'])}\n{found[3]}", page)


def _table(name: str) -> str:
    kind = DOCUMENTS[name]
    if name == "convert":
        # It has the fields of a plan, too; they are described once.
        planned = {entry.name for entry in PLAN.fields}
        kind = Record(name, tuple(entry for entry in kind.fields if entry.name not in planned))
    return kind.table()


def main() -> None:
    """Fills a page in its place."""
    page = Path(sys.argv[1])
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
