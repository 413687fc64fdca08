"""What a page says, whatever its markup."""

import html.parser


class Reader(html.parser.HTMLParser):
  """Collects tags with names of attributes, text, rows of tables and facts.

  facts: of lists, {key: value}.
  """

  def __init__(self, page):
    super().__init__()
    self.tags, self.text, self.rows, self.in_cell = [], "", [], False
    self.facts, self.at = {}, ""
    self.feed(page)

  def handle_starttag(self, tag, attrs):
    self.at = tag
    self.tags.append((tag, *(name for name, _ in attrs)))
    if tag == "tr":
      self.rows.append([])
    if tag in ("td", "th"):
      self.rows[-1].append("")
      self.in_cell = True

  def handle_endtag(self, tag):
    self.at = ""
    self.tags.append("/" + tag)
    if tag in ("td", "th"):
      self.rows[-1][-1] = self.rows[-1][-1].strip()
      self.in_cell = False

  def handle_data(self, data):
    self.text += data
    if self.at == "dt":
      self.key = data
    if self.at == "dd":
      self.facts[self.key] = data
    if self.in_cell:
      self.rows[-1][-1] += data


def row(page, head):
  rows = Reader(page).rows
  return next(cells for cells in rows if cells[0] == head)
