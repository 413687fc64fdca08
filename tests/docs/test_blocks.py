"""Every python and shell block of the pages runs, or says why it doesn't.

A comment directly before a block says what is done with it:

  <!-- not run: REASON -->          its commands are parsed, its Python compiled
  <!-- run by: FILE::TEST -->       the same; that other test runs it

A block without a comment is run here, in a temporary folder with tiny models.
"""

import argparse
import collections
import pathlib
import re
import shlex
import shutil
import subprocess

import blocks
import ml_collections
import pytest
import using_prm_jax

import prm_jax
from prm_jax import schema
from prm_jax import trainer
from prm_jax.cli import main
from prm_jax.runtime import config_files
from prm_jax.runtime import verbs
from prm_jax.training import train_run_config

BLOCKS = blocks.of_repository()
SHELL = [b for b in BLOCKS if b.is_shell]
PYTHON = [b for b in BLOCKS if b.tag == "python"]
# run by tests/docs/test_quickstart.py, as a notebook
QUICKSTART = "docs/quickstart.md"

# Files that a reader writes: copies of this one.
OWN_CONFIGS = ("mine.py", "my_prm.py", "X.py")
CONFIG = blocks.ROOT / "experiments" / "prm800k_small.py"
# The same fields, but of a size that trains in seconds.
TINY = f"""
import importlib.util
import pathlib
spec = importlib.util.spec_from_file_location("original", {str(CONFIG)!r})
original = importlib.util.module_from_spec(spec)
spec.loader.exec_module(original)

def get_config():
  c = original.get_config()
  c.data = dict(train=("jsonl:mine.jsonl",))
  c.tokenizer = dict(kind="bytes")
  c.model = {using_prm_jax.MODEL!r}
  c.encoding.max_tokens = c.packing.sequence_length = 128
  c.eval_rows = 8
  c.optimizer.warmup_steps = 1
  c.fit = dict(steps=2, tensorboard=False)
  return c
"""


@pytest.fixture(scope="module")
def world(one_device, equal_programs, tmp_path_factory):
  """A folder with what the pages' commands read."""
  folder = tmp_path_factory.mktemp("world")
  made = folder / "runs"
  prm = made / "prm"
  using_prm_jax.train(prm)
  using_prm_jax.train_policy(made / "policy")
  for name, target in (
    ("base", "policy"),
    ("demo/policy", "policy"),
    ("rl", "policy"),
    ("demo/prm", "prm"),
    ("head", "prm"),
  ):
    path = made / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(made / target)
  (folder / "launch").symlink_to(blocks.ROOT / "launch")
  (folder / "experiments").mkdir()
  for path in (blocks.ROOT / "experiments").glob("*.py"):
    (folder / "experiments" / path.name).symlink_to(path)
  (folder / "experiments" / CONFIG.name).unlink()
  for name in (*OWN_CONFIGS, CONFIG.name):
    (folder / "experiments" / name).write_text(TINY)
    (folder / name).write_text(TINY)
  (folder / "my_sft.py").symlink_to(
    blocks.ROOT / "experiments" / "gsm8k_policy_small.py"
  )
  for name in ("mine", "solutions"):
    prm_jax.write_solutions(folder / f"{name}.jsonl", using_prm_jax.solutions())
  (folder / "problems.jsonl").write_text(
    '{"id": "p", "problem": "2 + 3", "answer": "5"}\n'
  )
  return folder


@pytest.fixture
def inside(world, monkeypatch):
  """The current folder is the world; only what reads it may use this."""
  monkeypatch.chdir(world)
  monkeypatch.delenv("PRM_JAX_DATA", raising=False)


@pytest.fixture
def inside_copy(world, tmp_path, monkeypatch):
  """The current folder is a copy of the world, to be written to."""
  shutil.copytree(world, tmp_path / "world", symlinks=True)
  monkeypatch.chdir(tmp_path / "world")
  monkeypatch.delenv("PRM_JAX_DATA", raising=False)


# --- What the markers say ---------------------------------------------------


def test_there_are_blocks_of_both_kinds():
  assert len(SHELL) > 20 and len(PYTHON) > 10


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.marker], ids=str)
def test_a_marker_says_why_or_names_a_test(block):
  assert block.why_not_run or block.run_by, f"{block}: {block.marker}"
  if block.run_by:
    file, _, name = block.run_by.partition("::")
    text = (blocks.ROOT / file).read_text(encoding="utf-8")
    assert f"def {name}(" in text, f"{block}: no such test: {block.run_by}"
    page = pathlib.Path(block.page)
    assert page.name in text or page.stem in text, f"{block}: {block.run_by}"


def test_blocks_are_found_with_their_markers():
  text = (
    "a\n\n<!-- not run: slow -->\n```sh\nprm-jax doctor\n```\n\n"
    "```\nx = y\n```\n  ```python\n  1\n  ```\n"
    "```\n$ make it  # yes\nout\n```\n"
  )
  first, second, third, fourth = blocks.of_text("p.md", text)
  assert first.is_shell and first.why_not_run == "slow" and first.line == 4
  assert not second.is_shell and not second.marker
  assert third.text == "1\n"
  assert blocks.commands(fourth) == ["make it"]


# --- Commands ---------------------------------------------------------------


def _descend(parser, words) -> argparse.ArgumentParser:
  """Returns the parser of the command that the first words name."""
  for word in words:
    actions = [
      a for a in parser._actions if isinstance(a, argparse._SubParsersAction)
    ]
    if not actions:
      break
    assert word in actions[0].choices, f"no command {word}"
    parser = actions[0].choices[word]
  return parser


def _check_form(line: str) -> None:
  """Every word of a form exists: commands, options, values of choices."""
  known = collections.defaultdict(bool)
  for words in blocks.expanded(line):
    parser = _descend(main._parser(), words[1:])
    for word in words:
      if not word.startswith("--") or word.startswith("--config."):
        continue
      name, _, value = word.partition("=")
      action = parser._option_string_actions.get(name)
      known[name] |= action is not None
      is_word = value.isidentifier() and value.islower()
      if action is not None and action.choices and is_word:
        assert value in action.choices, f"{line}: {word}"
  assert all(known.values()), f"{line}: {dict(known)}"


def _check_overrides(args: argparse.Namespace, overrides: list[str]) -> None:
  """The config exists, and each override names a field and fits it."""
  path = pathlib.Path(args.config)
  assert path.is_file(), f"{path}: no such config"
  if args.command == "demo":
    config_files.read(path)
    return
  # What stands for a value of the reader's own.
  overrides = [x for x in overrides if not x.partition("=")[2].isupper()]
  read = config_files.read(path)
  start = read.get("init_from")
  if start and not pathlib.Path(start).exists():
    read.init_from = "runs/base"
  trainer.Train.filled(verbs.Config(read, overrides))


def check_prm_jax(line: str) -> None:
  """Raises unless a `prm-jax` line is one that the command takes."""
  if blocks.is_form(line):
    _check_form(line)
    return
  argv, overrides = main._split_overrides(shlex.split(line)[1:])
  args = main._parser().parse_args(argv)
  if getattr(args, "config", None):
    _check_overrides(args, overrides)
  else:
    assert not overrides, line


def check_make(line: str) -> None:
  targets = re.findall(
    r"^([a-z-]+):", (blocks.ROOT / "Makefile").read_text(), re.MULTILINE
  )
  for word in shlex.split(line)[1:]:
    assert "=" in word or word in targets, f"{line}: no target {word}"


def check_launch(line: str) -> None:
  """The script exists and has the options, and its command is checked."""
  before, _, command = line.partition(" -- ")
  script, *words = shlex.split(before)
  text = (blocks.ROOT / script).read_text()
  declared = re.findall(
    r"--[a-z-]+", text.partition("OPTIONS=(")[2].partition(")")[0]
  )
  for word in words:
    if word.startswith("--"):
      name = word.partition("=")[0]
      assert name in (*declared, "--dry-run"), f"{line}: no option {name}"
    else:
      assert re.search(rf"\b{word}\b", text), f"{line}: {word}"
  if command:
    check(command.replace("{i}/{n}", "0/1"))


def check(line: str) -> None:
  """Raises unless a command line is one that its program takes."""
  wrapped = re.search(r"--wrap '(.*)'", line)
  if wrapped:
    line = wrapped[1].replace("$SLURM_ARRAY_TASK_ID", "3")
  if line.startswith("python -m prm_jax "):
    line = line.replace("python -m prm_jax", "prm-jax", 1)
  if line.startswith("prm-jax "):
    check_prm_jax(line)
  elif line.startswith("make "):
    check_make(line)
  elif line.startswith("launch/"):
    check_launch(line)
  else:
    done = subprocess.run(["bash", "-n", "-c", line], capture_output=True)
    assert done.returncode == 0, done.stderr
    for path in re.findall(r"\b(?:experiments|benchmarks|tests)/\S+\.py", line):
      assert (blocks.ROOT / path).is_file(), f"{line}: no {path}"


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_each_command_is_one_that_its_program_takes(block, inside):
  lines = blocks.commands(block)
  assert lines
  for line in lines:
    check(line)


@pytest.mark.parametrize(
  "line",
  [
    "prm-jax score --checkpoint=a --input=b --output=c --layouts=tree",
    "prm-jax label judge|vote --input=a",
    "prm-jax data [--nothing=1] doctor|inspect",
    "prm-jax train --config=mine.py --workdir=a --config.model.d_modle=3",
    "prm-jax train --config=mine.py --workdir=a --config.fit.steps=many",
    "prm-jax train --config=nothing.py --workdir=a",
    "make nothing",
    "launch/tpu.sh run --projekt=a -- prm-jax doctor",
    "launch/local.sh --processes=2 -- prm-jax docter",
    "python experiments/nothing.py",
  ],
)
def test_a_wrong_command_is_found(line, inside):
  with pytest.raises((AssertionError, prm_jax.InputError)):
    check(line)


@pytest.mark.parametrize("block", [b for b in SHELL if not b.marker], ids=str)
def test_a_block_of_commands_runs(block, inside_copy, one_device, capsys):
  for line in blocks.commands(block):
    words = shlex.split(line)
    assert words[0] == "prm-jax", f"{block}: can't be run here: {line}"
    for word in words:  # a run of another config isn't resumed
      if word.startswith("--workdir="):
        shutil.rmtree(word.partition("=")[2], ignore_errors=True)
    code = main.main(words[1:])
    assert code == 0, f"{block}: {line}\n{capsys.readouterr().err}"


# --- Python -----------------------------------------------------------------


def _given() -> dict:
  """Returns the names that blocks use but don't make."""
  solutions = using_prm_jax.solutions()

  def generate(prefixes, n):
    return [[solutions[0]] * n for _ in prefixes]

  def verify(whole):
    return [s.steps[-1].endswith("14") for s in whole]

  c = config_files.read(CONFIG)
  return dict(
    solutions=solutions,
    problems=[prm_jax.Problem("p", solutions[0].problem, answer="14")],
    prefixes=[schema.Solution("p", "2 + 3", ())],
    generate=generate,
    verify=verify,
    c=c,
  )


def _check_config(c: ml_collections.ConfigDict) -> None:
  """A block that changes a config leaves one that `prm-jax train` takes."""
  filled = trainer.Train.filled(verbs.Config(c))
  train_run_config.sources_of(filled.data)


@pytest.mark.parametrize(
  "page", sorted({b.page for b in PYTHON if b.page != QUICKSTART})
)
def test_the_python_of_a_page_runs_in_order(page, inside_copy, one_device):
  names = _given()
  for block in PYTHON:
    if block.page != page:
      continue
    code = compile(block.text, str(block), "exec")
    if block.marker:
      continue
    exec(code, names)
    if re.search(r"^c\.", block.text, re.MULTILINE):
      _check_config(names["c"])


def test_the_pages_that_a_reader_starts_with_are_run():
  run = {b.page for b in PYTHON if not b.marker}
  assert {"README.md", "docs/python.md"} <= run


def test_the_api_page_has_every_public_name():
  page = (blocks.ROOT / "docs" / "api.md").read_text()
  names = set(re.findall(r"^::: prm_jax\.(\w+)$", page, re.MULTILINE))
  assert names == set(prm_jax.__all__) - {"__version__"}


def test_no_page_is_missing_in_the_index():
  index = (blocks.ROOT / "docs" / "index.md").read_text()
  site = (blocks.ROOT / "zensical.toml").read_text()
  for path in sorted((blocks.ROOT / "docs").glob("*.md")):
    if path.name != "index.md":
      assert f"]({path.name})" in index, f"docs/index.md: no {path.name}"
    assert f'"docs/{path.name}"' in site, f"zensical.toml: no {path.name}"
