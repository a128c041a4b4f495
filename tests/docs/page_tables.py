"""The tables of a page, by the heading that they stand below."""

import re


class Tables:
    """Sections and tables of a page in Markdown."""

    def __init__(self, text):
        # Within a block a # begins no heading.
        self._text = re.sub(r"^```.*?^```$", _hidden, text, flags=re.M | re.S)

    def section(self, heading):
        """What stands below a heading, up to the next one."""
        found = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", self._text, re.M | re.S)
        assert len(found) == 1, f"{len(found)} headings are called {heading}"
        return found[0].replace("\0", "#")

    def rows(self, heading):
        """The first table below a heading: a list of cells for each row."""
        tables = re.findall(r"(?:^\|.*\n)+", self.section(heading), re.M)
        assert tables, f"there is no table below {heading}"
        head, _, *rows = [_cells(line) for line in tables[0].splitlines()]
        assert [row for row in rows if len(row) != len(head)] == []
        return rows

    def by_name(self, heading):
        """The other cells of each row, by the first one."""
        rows = self.rows(heading)
        found = {plain(name): cells for name, *cells in rows}
        assert len(found) == len(rows), f"a name stands twice below {heading}"
        return found


def plain(cell):
    return cell.replace("`", "")


def _cells(line):
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _hidden(block):
    return block[0].replace("#", "\0")
