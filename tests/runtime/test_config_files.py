"""Config files: loading, overriding, listing; and the experiments' own."""

import dataclasses
import pathlib
import sys
import types
import typing

import ml_collections
import pytest

from prm_jax import errors
from prm_jax import trainer
from prm_jax.demo import default_config
from prm_jax.demo import demo_run
from prm_jax.demo import demo_run_config
from prm_jax.grading import pool
from prm_jax.records import chosen_tokenizer
from prm_jax.records import sources as sources_lib
from prm_jax.rl import rl_run_config
from prm_jax.rl import tasks
from prm_jax.runtime import config_files
from prm_jax.runtime import verbs
from prm_jax.text import encoding_records
from prm_jax.training import programs
from prm_jax.training import train_run_config

EXPERIMENTS = sorted(
  path
  for path in (pathlib.Path(__file__).parents[2] / "experiments").glob("*.py")
  if "def get_config" in path.read_text()
)
TEXT = """
import ml_collections

def get_config():
  c = ml_collections.ConfigDict()
  c.rows = 8
  c.rate = 0.1
  c.name = "a"
  c.scan = True
  c.above = ml_collections.config_dict.placeholder(float)
  c.mesh = (-1, 1)
  c.files = ()
  c.names = ["x"]
  c.inner = dict(rows=2, deeper=dict(value=3.0))
  return c
"""


@pytest.fixture
def path(tmp_path):
  path = tmp_path / "config.py"
  path.write_text(TEXT)
  return path


@pytest.mark.parametrize(
  "override, name, value",
  [
    ("rows=16", "rows", 16),
    ("rate=1", "rate", 1.0),
    ("rate=1e-3", "rate", 1e-3),
    ("name=3", "name", "3"),
    ("name=", "name", ""),
    ("name=null", "name", ""),
    ("name=None", "name", ""),
    ("name=none", "name", "none"),
    ("name=b=c", "name", "b=c"),
    ("scan=false", "scan", False),
    ("scan=True", "scan", True),
    ("above=0.5", "above", 0.5),
    ("above=None", "above", None),
    ("above=null", "above", None),
    ("mesh=(1, 2, 2)", "mesh", (1, 2, 2)),
    ("mesh=[4]", "mesh", (4,)),
    ('files=("jsonl:a (1).jsonl",)', "files", ("jsonl:a (1).jsonl",)),
    ("names=['y', 'z']", "names", ["y", "z"]),
    ("inner.deeper.value=2", "inner.deeper.value", 2.0),
  ],
)
def test_an_override_keeps_its_fields_type_and_changes_nothing_else(
  override, name, value, path
):
  before = config_files.fields(config_files.load(path))
  after = config_files.fields(config_files.load(path, [override]))
  assert after.pop(name) == value
  before.pop(name)
  assert after == before
  found = config_files.fields(config_files.load(path, [override]))[name]
  assert type(found) is type(value)


@pytest.mark.parametrize(
  "override, message",
  [
    ("rows=1.5", "`config.rows=1.5`: expected int, as in 8"),
    ("rows=None", "expected int"),
    ("rate=fast", "expected float"),
    ("rate=nan", "expected float"),
    ("rate=inf", "expected float"),
    ("scan=1", "expected bool"),
    ("rows=null", "expected int, as in 8"),
    ("above=x", "expected float or null"),
    ("mesh=1", "expected tuple"),
    ("mesh=(1, 'a')", "expected tuple"),
    ("mesh=(1, 0.5)", "expected tuple"),
    ("mesh=(1, __import__('os'))", "expected tuple"),
    ("files=a.jsonl", "expected tuple"),
    ("rowz=1", "did you mean `config.rows`?"),
    ("value=1", "did you mean `config.inner.deeper.value`?"),
    ("inner.row=1", "did you mean `config.inner.rows`?"),
    ("inner=3", "`config.inner`: no such field"),
    ("zzzzzz=1", "config.py` `help=True` lists the fields"),
    ("rows", "give a value: `config.rows=VALUE`"),
  ],
)
def test_an_override_that_doesnt_fit_is_refused(override, message, path):
  with pytest.raises(errors.InputError) as caught:
    config_files.load(path, [override])
  assert message in str(caught.value)


def test_a_whole_number_among_floats_is_one_of_them(tmp_path):
  path = tmp_path / "config.py"
  path.write_text(TEXT.replace("c.files = ()", "c.files = (0.5, 0.5)"))
  found = config_files.load(path, ["files=(1, 0.25)"]).files
  assert found == (1.0, 0.25) and type(found[0]) is float
  with pytest.raises(errors.InputError, match="expected tuple"):
    config_files.load(path, ["files=(1, True)"])


def test_the_last_override_counts_and_the_config_is_locked(path):
  config = config_files.load(path, ["rows=1", "rows=2"])
  assert config.rows == 2
  with pytest.raises((AttributeError, KeyError)):
    config.rowz = 3


def test_loading_leaves_no_file_behind_and_reads_the_file_anew(path):
  assert config_files.load(path).rows == 8
  path.write_text(TEXT.replace("c.rows = 8", "c.rows = 9"))
  assert config_files.load(path).rows == 9
  assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
  "text, message",
  [
    ("def get_config(:", ":1: not Python"),
    ("\n\nimport no_such_module", ":3: ModuleNotFoundError"),
    ("def get_config():\n  return 1 / 0", ":2: ZeroDivisionError"),
    ("import sys\nsys.exit(0)", ":2: SystemExit: 0"),
    ("import ast\nast.parse('x = (')", ":2: SyntaxError"),
    ("def get_config():\n  return {}", "returns a ConfigDict"),
    ("get_config = None", "returns a ConfigDict"),
    ("", "has no get_config()"),
    ("x = '\0'", "not Python"),
  ],
)
def test_a_file_that_is_no_config_is_refused_by_line(text, message, tmp_path):
  path = tmp_path / "config.txt"
  path.write_text(text)
  with pytest.raises(errors.InputError) as caught:
    config_files.load(path)
  said = str(caught.value)
  assert said.startswith(str(path)) and message in said and "\n" not in said


def test_resolved_is_what_json_gives_back(path):
  assert config_files.resolved(config_files.load(path)) == dict(
    rows=8,
    rate=0.1,
    name="a",
    scan=True,
    above=None,
    mesh=[-1, 1],
    files=[],
    names=["x"],
    inner=dict(rows=2, deeper=dict(value=3.0)),
  )


# --- Forms ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Inner:
  rows: int
  deeper: dict


@dataclasses.dataclass(frozen=True)
class _Outer:
  rows: int
  rate: float
  inner: _Inner
  spare: int = 0
  bound: float | None = None


def _form(**options):
  more = dict.fromkeys(["name", "scan", "above", "mesh", "files", "names"])
  inner = config_files.form(_Inner)
  return config_files.form(_Outer, nested=more | dict(inner=inner), **options)


def test_a_config_has_all_fields_of_its_form_and_no_others(path):
  config = config_files.load(path)
  config_files.check(config, _form(), path)
  with pytest.raises(errors.InputError, match="missing field bound"):
    config_files.check(config, _form(complete=True), path)
  config_files.check(
    config, _form(complete=True, without=["spare", "bound"]), path
  )
  config.unlock()
  config.inner.row = 1
  with pytest.raises(errors.InputError, match=r"inner\.row; did you mean"):
    config_files.check(config, _form(), path)
  del config.inner["row"], config.inner["rows"]
  with pytest.raises(errors.InputError, match=r"missing field inner\.rows"):
    config_files.check(config, _form(), path)


def test_fields_that_are_left_out_get_defaults_and_can_be_overridden(path):
  config = config_files.load(path, expected=_form())
  assert config.spare == 0 and config.bound is None
  assert config_files.resolved(config)["bound"] is None
  config = config_files.load(path, ["spare=3", "bound=0.5"], _form())
  assert config.spare == 3 and config.bound == 0.5
  with pytest.raises(errors.InputError, match="expected float"):
    config_files.load(path, ["bound=high"], _form())
  with pytest.raises(errors.InputError, match="did you mean"):
    config_files.load(path, ["spar=3"], _form())


@dataclasses.dataclass(frozen=True)
class _Typed:
  count: int
  rate: float
  name: str
  flag: bool
  mesh: tuple[int, ...]
  bound: float | None
  other: dict


TYPED = dict(
  count=1, rate=1, name="a", flag=True, mesh=(1,), bound=None, other=3
)


def _typed(**changes):
  config = ml_collections.ConfigDict(dict(inner=TYPED | changes))
  form = config_files.Form(
    dict(inner=config_files.form(_Typed)), frozenset(["inner"])
  )
  config_files.check(config, form, "c.py")


@pytest.mark.parametrize(
  "change",
  [
    dict(rate=1.5),
    dict(rate=0),
    dict(mesh=[1, 2]),
    dict(mesh=()),
    dict(bound=0.5),
    dict(bound=1),
    dict(other="x"),
    dict(other=None),
  ],
  ids=str,
)
def test_a_value_of_its_fields_type_passes(change):
  _typed(**change)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (dict(count=1.5), "inner.count must be int, found 1.5"),
    (dict(count="8"), "inner.count must be int, found '8'"),
    (dict(count=True), "inner.count must be int, found True"),
    (dict(count=None), "inner.count must be int, found None"),
    (dict(count={"a": 1, "b": 2}), "inner.count must be int, found a: 1 b: 2"),
    (dict(rate="1e-3"), "inner.rate must be float, found '1e-3'"),
    (dict(rate=False), "inner.rate must be float, found False"),
    (dict(rate=float("nan")), "inner.rate must be float, found nan"),
    (dict(name=3), "inner.name must be str, found 3"),
    (dict(flag=1), "inner.flag must be bool, found 1"),
    (dict(mesh=1), "inner.mesh must be tuple[int, ...], found 1"),
    (dict(mesh="111"), "inner.mesh must be tuple[int, ...], found '111'"),
    (dict(mesh=(1, 0.5)), "inner.mesh must be tuple[int, ...], found (1, 0.5)"),
    (dict(bound="x"), "inner.bound must be float | None, found 'x'"),
  ],
  ids=str,
)
def test_a_value_of_another_type_is_refused_in_one_line(change, message):
  with pytest.raises(errors.InputError) as e:
    _typed(**change)
  assert str(e.value) == f"c.py: {message}"


def test_a_field_that_the_dataclass_lacks_may_have_a_type_too():
  form = config_files.form(_Inner, nested=dict(start=str), without=["deeper"])
  config = ml_collections.ConfigDict(dict(rows=1, start="x"))
  config_files.check(config, form, "c.py")
  config = ml_collections.ConfigDict(dict(rows=1, start=3))
  with pytest.raises(errors.InputError, match="start must be str, found 3"):
    config_files.check(config, form, "c.py")


# --- Optional fields --------------------------------------------------------

# Each kind of run, and the demo: a config of its own, and its form.
RUNS = dict.fromkeys(
  tuple(programs.TRAINED), ("prm800k_small.py", train_run_config.form)
)
RUNS |= {"rl": ("rl_arithmetic.py", rl_run_config.form)}
RUNS |= {
  "demo": (default_config.__file__, lambda config: demo_run_config.form())
}
SAMPLES = {int: ("4", 4), float: ("0.5", 0.5), str: ("x", "x")}


def _config_of(run):
  folder = pathlib.Path(__file__).parents[2] / "experiments"
  path = folder / RUNS[run][0]
  config = config_files.read(path)
  if run in tuple(programs.TRAINED):
    config.program, config.objective = run, {}
    if run == "prm":
      config.objective.labels = {}
  return config, path


def _filled(run, overrides, given):
  """Returns the fields of a run's config that first gets the given values."""
  config, path = _config_of(run)
  with config.unlocked(), config.ignore_type():
    for name, value in given.items():
      group, (*path_to, leaf) = config, name.split(".")
      for part in path_to:
        group = group[part]
      group[leaf] = value
  if run == "demo":
    filled = config_files.filled(
      config, path, overrides, demo_run_config.form()
    )
  else:
    filled = trainer.Train.filled(verbs.Config(config, overrides))
  return config_files.fields(filled)


@pytest.mark.parametrize("run", RUNS)
def test_every_optional_field_takes_null_and_values_of_its_type(run):
  """Whether the config leaves it out, says None, or has a value."""
  known = config_files.types_of(_config_of(run)[0], RUNS[run][1])
  present = _filled(run, [], {})
  kinds = {
    name: typing.get_args(kind)[0]
    for name, kind in known.items()
    if types.NoneType in typing.get_args(kind) and name in present
  }
  assert any(name.endswith("fit.best_metric") for name in kinds)
  values = {name: SAMPLES[kind][1] for name, kind in kinds.items()}
  nothing = dict.fromkeys(kinds)
  for given in ({}, nothing, values):
    for word in ("null", "None", None):
      found = _filled(
        run,
        [f"{name}={word or SAMPLES[kind][0]}" for name, kind in kinds.items()],
        given,
      )
      expected = nothing if word else values
      assert {name: found[name] for name in kinds} == expected


def test_a_field_of_the_policys_model_can_be_overridden_though_it_isnt_named():
  folder = pathlib.Path(__file__).parents[2] / "experiments"
  path = folder / "rl_gsm8k_small.py"
  assert "model" not in config_files.read(path)
  given = dict(
    remat="none", lora_rank=4, scan=False, window="null", query_scale=0.5
  )
  given["lora_targets"] = ("query", "value")
  overrides = tuple(f"model.{name}={value}" for name, value in given.items())
  config = rl_run_config.filled(
    verbs.Config(path, ("trainable=lora", *overrides))
  )
  run = rl_run_config.from_config(config)
  assert run.config.model == given | dict(window=None)
  for refused in ("model.remats=full", "model.lora_rank=a", "rollout=5"):
    with pytest.raises(errors.InputError, match=r"no such field|expected int"):
      rl_run_config.filled(verbs.Config(path, (refused,)))


def test_a_config_file_has_dataclasses_and_imports_what_is_beside_it(tmp_path):
  (tmp_path / "sizes_beside.py").write_text("STEPS = 7")
  path = tmp_path / "mine.py"
  path.write_text(
    "from __future__ import annotations\n"
    "import dataclasses, ml_collections, sizes_beside\n"
    "@dataclasses.dataclass\n"
    "class Own:\n  steps: int\n"
    "def get_config():\n"
    "  own = Own(sizes_beside.STEPS)\n"
    "  return ml_collections.ConfigDict(dataclasses.asdict(own))\n"
  )
  before = list(sys.path)
  assert config_files.read(path).steps == 7
  assert sys.path == before


# --- The experiments --------------------------------------------------------


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_is_a_run_that_can_be_built(path):
  config = config_files.load(path)
  config_files.resolved(config)
  if "runs" in config:
    built = demo_run_config.from_config(config)
    assert built.runs["base"].program == built.runs["policy"].program == "sft"
    if path.stem == "objectives_arithmetic":
      return
    assert set(built.runs) == set(demo_run.RUNS)
    assert built.runs["prm"].program == built.runs["prm_mc"].program == "prm"
    assert built.runs["orm"].program == "orm"
    return
  if config.program == "rl":
    config = rl_run_config.filled(verbs.Config(path))
    run = rl_run_config.from_config(config)
    assert run.config.init_from
    assert run.problems.grader in (tasks.ARITHMETIC, *pool.GRADERS)
    return
  if "init_from" in config and "d_model" not in config.model:
    # Its model is that of the checkpoint that it starts from.
    sizes = ("d_model", "num_layers", "num_heads", "num_kv_heads", "d_ff")
    with config.unlocked():
      config.model.update({**dict.fromkeys(sizes, 8), "head_dim": 8})
  if config.encoding.get("template") == encoding_records.OF_POLICY:
    # The policy is named on the command line; without it the run is refused.
    with pytest.raises(errors.InputError, match="set init_from to the policy"):
      train_run_config.from_config(config)
    with config.unlocked():
      config.encoding.template = None
  run = train_run_config.from_config(config)
  assert run.fit.best_metric is None or run.fit.eval_every
  sources = train_run_config.sources_of(config.data)
  for source in (*sources.train, *sources.evaluation, *sources.exclude):
    assert source.partition(":")[0] in sources_lib.format_names()
  chosen_tokenizer.TokenizerConfig(**config.tokenizer)


def test_the_reward_models_of_the_demo_have_the_same_compute():
  config = config_files.load(EXPERIMENTS[0].parent / "arithmetic.py")
  runs = demo_run_config.from_config(config).runs
  for name in ("prm_mc", "orm"):
    for field in ("model", "encoding", "packing"):
      assert getattr(runs[name], field) == getattr(runs["prm"], field)
    assert runs[name].fit.steps == runs["prm"].fit.steps


def test_all_objectives_are_compared_at_the_same_compute():
  config = config_files.load(EXPERIMENTS[0].parent / "objectives_arithmetic.py")
  runs = demo_run_config.from_config(config).runs
  compared = {k: v for k, v in runs.items() if k not in ("base", "policy")}
  assert {(x.program, x.objective.loss) for x in compared.values()} >= {
    *(("prm", loss) for loss in ("bce", "mse", "pqm", "bradley_terry")),
    ("orm", "bce"),
    *(("implicit", loss) for loss in ("implicit_ce", "implicit_dpo")),
  }
  for field in ("model", "encoding", "packing", "optimizer", "fit"):
    assert all(
      getattr(x, field) == getattr(runs["bce"], field)
      for x in compared.values()
    )
