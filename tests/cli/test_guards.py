"""No command writes over or into what it reads, or into a checkpoint folder."""

import os
import pathlib

import command_options
import pytest
import small_config

from prm_jax.cli import main
from prm_jax.runtime import verbs
from prm_jax.search import search

RECORD = (
  '{"id": "a", "problem": "1 + 1", "steps": ["2"], "labels": [1.0],'
  ' "outcome": true, "reference_answer": "2"}\n'
)
READ = ("--input=in.jsonl", "--checkpoint=model")
LABEL = ("--input=in.jsonl", "--policy=model")
SEARCH = (*LABEL, "--scorer=model")
# Strategies whose options name what is read.
READS = dict(speculate=("draft",), adaptive_best_of_n=("calibration",))
# Command and option -> the other words, and what it reads.
COMMANDS = {
  ("demo", "workdir"): (["--quick"], []),
  ("train", "workdir"): (["--config=config.py"], ["stored"]),
  ("import", "to"): (
    ["--from=hf", "--role=policy", "--prompt_file=b.jsonl", "--base=model"],
    ["hf", "b.jsonl", "model"],
  ),
  ("export", "to"): (
    ["--checkpoint=model", "--base=hf", "--sample=b.jsonl"],
    ["model", "hf", "b.jsonl"],
  ),
  ("sample", "output"): (READ, ["in.jsonl", "model"]),
  ("score", "output"): (
    [*READ, "--reference=stored"],
    ["in.jsonl", "model", "stored"],
  ),
  ("label monte_carlo", "output"): (LABEL, ["in.jsonl", "model"]),
  ("label omega_prm", "output"): (LABEL, ["in.jsonl", "model"]),
  ("label judge", "output"): (LABEL, ["in.jsonl", "model"]),
  ("label cpmi", "output"): (
    [*LABEL, "--problems=b.jsonl"],
    ["in.jsonl", "model", "b.jsonl"],
  ),
  ("label verify", "output"): (
    ["--input=in.jsonl", "--verifier=arithmetic"],
    ["in.jsonl"],
  ),
  ("probe faithfulness", "output"): (LABEL, ["in.jsonl", "model"]),
  ("label consensus", "output"): (
    ["--input=in.jsonl", "--input=b.jsonl", "--above_a=0", "--above_b=0"],
    ["in.jsonl", "b.jsonl"],
  ),
  ("label select", "output"): (
    [*READ, "--budget=1", "--labelled=b.jsonl"],
    ["in.jsonl", "model", "b.jsonl"],
  ),
  ("label people", "output"): (
    [*READ, "--gold=b.jsonl"],
    ["in.jsonl", "model", "b.jsonl"],
  ),
  ("label people_report", "output"): (["--input=stored"], ["stored"]),
  ("label people_report", "preferences"): (["--input=stored"], ["stored"]),
  ("label people_round", "output"): (
    ["--input=stored", "--config=config.py"],
    ["stored"],
  ),
  **{
    (f"search {name}", "output"): (
      [*SEARCH, *(f"--{option}=b.jsonl" for option in reads)],
      ["in.jsonl", "model", *(["b.jsonl"] if reads else [])],
    )
    for name, reads in (
      *((x.name, ()) for x in search.RULES if x.name not in READS),
      *READS.items(),
    )
  },
  **{
    (name, "output"): (["--input=in.jsonl", *more], ["in.jsonl"])
    for name, more in (
      ("search calibrate", ()),
      ("search compare", ()),
      ("verify choose", ("--precision=0.5",)),
    )
  },
  ("search compare", "plot"): (
    ["--input=in.jsonl", "--output=new.json"],
    ["in.jsonl"],
  ),
  ("verify run", "output"): (
    [*SEARCH, "--threshold=b.jsonl"],
    ["in.jsonl", "model", "b.jsonl"],
  ),
  **{
    (f"eval {kind}", option): (
      [*READ, *["--output=new.json"] * (option != "output")],
      ["in.jsonl", "model"],
    )
    for kind in ("best_of_n", "steps", "prmbench", "turns")
    for option in ("output", "samples", "plot", "table")
  },
  **{
    ("eval processbench", option): (
      [
        "--input=gsm8k=in.jsonl",
        "--scores=b.jsonl",
        *["--output=new.json"] * (option != "output"),
      ],
      ["in.jsonl", "b.jsonl"],
    )
    for option in ("output", "samples", "plot", "table")
  },
  ("data build", "output"): (["prm800k", "--input=hf"], ["hf"]),
  ("data convert", "output"): (["in.jsonl", "--to=jsonl"], ["in.jsonl"]),
  ("data doctor", "output"): (
    ["in.jsonl", "--checkpoint=model", "--against=jsonl:b.jsonl"],
    ["in.jsonl", "model", "b.jsonl"],
  ),
  ("data split", "train"): (
    ["in.jsonl", "--test=new.jsonl", "--against=jsonl:b.jsonl"],
    ["in.jsonl", "b.jsonl"],
  ),
  ("data split", "test"): (
    ["in.jsonl", "--train=new.jsonl", "--against=jsonl:b.jsonl"],
    ["in.jsonl", "b.jsonl"],
  ),
  ("view", "static"): (["in.jsonl"], ["in.jsonl"]),
  ("plan", "output"): (["--check=b.jsonl"], ["b.jsonl"]),
  ("check-device", "output"): (["--against=b.jsonl"], ["b.jsonl"]),
}
# What the names of these outputs end in.
ENDINGS = dict(plot=".svg", table=".csv")
# Those that read, so that a new option has to be put on one side.
ARE_READ = {
  *("source", "checkpoint", "input", "check", "against", "prompt_file"),
  *("base", "sample", "config", "problems", "labelled"),
  *("gold", "annotators", "reference"),
}


OUTPUT_TYPES = (verbs.output, verbs.writable, verbs.workdir)


def _written():
  return {
    (name, action.dest)
    for name, parser in command_options.commands().items()
    for action in parser._actions
    if command_options.parse_of(action) in OUTPUT_TYPES
  }


def test_the_table_has_every_output_of_every_command():
  assert _written() == {*COMMANDS}
  for name, parser in command_options.commands().items():
    for action in parser._actions:
      if command_options.parse_of(action) in (verbs.local, verbs.config_file):
        assert action.dest in ARE_READ, (name, action.option_strings)


@pytest.fixture
def stage(tmp_path, monkeypatch):
  """A current folder with what the commands name, and links to it."""
  monkeypatch.chdir(tmp_path)
  for name in ("in.jsonl", "b.jsonl"):
    (tmp_path / name).write_text(RECORD)
  (tmp_path / "hf").mkdir()
  (tmp_path / "hf" / "config.json").write_text("{}")
  (tmp_path / "stored").mkdir()
  (tmp_path / "model" / "checkpoints" / "1").mkdir(parents=True)
  (tmp_path / "model" / "model.json").write_text("{}")
  return tmp_path


def _paths(read, ending):
  """Yields paths to be refused, for what a command reads."""
  yield f"model/new{ending}"
  yield f"stored/../model/new/deeper{ending}"
  for i, name in enumerate(read):
    link = f"link{i}{ending}"
    os.symlink(name, link)
    if pathlib.Path(name).is_dir():
      yield f"{name}/new{ending}"
      yield f"{link}/new{ending}"
      continue
    os.link(name, f"hard{i}{ending}")
    yield from (link, f"hard{i}{ending}")
    if name.endswith(ending):
      yield from (name, f"./{name}")


def _content(folder):
  return {
    path: path.read_bytes() for path in folder.rglob("*") if path.is_file()
  }


@pytest.fixture
def config(stage):
  """config.py, of a run that trains on a stored data set."""
  text = small_config.text(
    data=dict(train=("arrayrecord:stored",), evaluation=(), holdout=0.0),
    model=dict(d_model=8, head_dim=4, d_ff=8),
    eval_rows=8,
    fit=dict(steps=1),
  )
  (stage / "config.py").write_text(text)


@pytest.mark.parametrize(
  ("command", "option"), COMMANDS, ids=lambda x: x.replace(" ", "-")
)
def test_an_output_that_harms_an_input_is_refused_and_nothing_touched(
  command, option, stage, config, capsys
):
  words, read = COMMANDS[command, option]
  for path in _paths(read, ENDINGS.get(option, "")):
    before = _content(stage)
    code = main.main([*command.split(), *words, f"--{option}={path}"])
    error = capsys.readouterr().err
    assert code == 1, (path, error)
    assert (
      error.startswith(f"prm-jax: {pathlib.Path(path)}: ")
      and error.count("\n") == 1
    )
    assert f"give another --{option}" in error, error
    assert any(
      x in error
      for x in ("is read by", "which this command reads", "checkpoint folder")
    )
    assert _content(stage) == before
