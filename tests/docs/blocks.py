"""The fenced blocks of the repository's pages, and the commands in them."""

from collections.abc import Iterator
import dataclasses
import itertools
import pathlib
import re
import shlex
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = (
  "README.md",
  "CONTRIBUTING.md",
  "benchmarks/README.md",
  "experiments/README.md",
  "docs/*.md",
)
SHELL = ("sh", "bash", "console", "shell")
COMMAND = re.compile(
  r"(\$ |prm-jax |make |launch/\S+\.sh |python |pip |sbatch |sudo |for )"
)
_FENCE = re.compile(
  r"(?:<!-- (?P<marker>[^>]*?) -->\n+)?"
  r"^(?P<indent> *)```(?P<tag>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
  re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block.

  Args:
    page: the page's path, from the root.
    line: of the opening fence, from 1.
    tag: the language behind the fence, "" if it has none.
    text: what is between the fences, without the fences' indentation.
    marker: the HTML comment directly before the block, "" if there is none.
  """

  page: str
  line: int
  tag: str
  text: str
  marker: str

  def __str__(self) -> str:
    return f"{self.page}:{self.line}"

  @property
  def is_shell(self) -> bool:
    """Whether the block holds commands: by its tag or by its first line."""
    lines = self.text.splitlines()
    return self.tag in SHELL or (
      self.tag == "" and any(COMMAND.match(line) for line in lines[:1])
    )

  @property
  def why_not_run(self) -> str:
    """The reason that the marker gives for not running the block."""
    return self._after("not run: ")

  @property
  def run_by(self) -> str:
    """The test that runs the block, FILE::NAME, by its marker."""
    return self._after("run by: ")

  def _after(self, start: str) -> str:
    if not self.marker.startswith(start):
      return ""
    return self.marker.removeprefix(start).strip()


def of_text(page: str, text: str) -> list[Block]:
  """Returns the blocks of a page's text."""
  return [
    Block(
      page,
      text[: match.start("indent")].count("\n") + 1,
      match["tag"],
      textwrap.dedent(match["text"]),
      (match["marker"] or "").strip(),
    )
    for match in _FENCE.finditer(text)
  ]


def of_repository() -> list[Block]:
  """Returns the blocks of all pages."""
  paths = [path for glob in PAGES for path in sorted(ROOT.glob(glob))]
  return [
    block
    for path in paths
    for block in of_text(
      str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    )
  ]


def commands(block: Block) -> list[str]:
  """Returns the command lines of a block: joined, without comments and output.

  A line that ends in a backslash, or is followed by an indented one, goes on in
  the next. In a block with prompts the other lines are output.
  """
  text = re.sub(r"\\\n *", "", block.text)
  text = re.sub(r"\n {2,}(?=\S)", " ", text) if "\n$ " not in text else text
  lines = text.splitlines()
  if any(line.startswith("$ ") for line in lines):
    lines = [x.removeprefix("$ ") for x in lines if x.startswith("$ ")]
  lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in lines]
  return [line for line in lines if line]


def is_form(line: str) -> bool:
  """Whether a line is a form, with [optional] words and a|choices."""
  return any(
    "|" in word or word.startswith("[") or word.endswith("...")
    for word in shlex.split(line)
  )


def expanded(line: str) -> Iterator[list[str]]:
  """Yields the words of each command that a form stands for.

  A form's brackets go and its choices are each taken in turn.
  """
  choices = []
  for word in shlex.split(line):
    word = word.strip("[]")
    if word in ("...", "value ...", ""):
      continue
    name, equals, values = word.partition("=")
    if word.startswith("--") and equals and ":" not in values.split("|")[0][:5]:
      choices.append([f"{name}={value}" for value in values.split("|")])
    elif word.startswith("--") and equals:
      choices.append([word])
    else:
      choices.append(word.split("|"))
  yield from (list(words) for words in itertools.product(*choices))
