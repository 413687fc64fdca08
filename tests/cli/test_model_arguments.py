"""The options of how models are loaded: each command's models obey them."""

import collections
import dataclasses
import json

import command_options
import pytest
import random_models

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.cli import main
from prm_jax.jobs import policies
from prm_jax.policy import log_likelihood
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.records import jsonl
from prm_jax.scoring import saved
from prm_jax.scoring import scorer
from prm_jax.search import chunks
from prm_jax.search import own_models
from prm_jax.search import search
from prm_jax.search import search_models
from prm_jax.serving import server as server_lib

COMMANDS = command_options.commands()
POLICY, PRM = "--policy={0}/policy", "--checkpoint={0}/prm"
PROBLEMS, SOLUTIONS = (
  "--input={0}/problems.jsonl",
  "--input={0}/solutions.jsonl",
)
LABEL = (POLICY, SOLUTIONS)
SEARCH = (POLICY, "--scorer={0}/prm", PROBLEMS)
# Each command that loads models: how many, and what else it is given.
LOADS = {
  "sample": (1, POLICY, PROBLEMS),
  "score": (1, PRM, SOLUTIONS),
  "serve": (1, PRM, "--max_tokens=64", "--max_batch_tokens=64"),
  **{
    f"label {kind}": (1, *LABEL)
    for kind in ("monte_carlo", "omega_prm", "judge", "cpmi")
  },
  "probe faithfulness": (1, *LABEL, "--probe=rewrite"),
  "label people": (1, *LABEL, "--task=alternatives"),
  "label select": (1, PRM, SOLUTIONS, "--budget=1"),
  "eval processbench": (1, PRM, "--input=gsm8k={0}/processbench.jsonl"),
  **{
    f"eval {kind}": (1, PRM, SOLUTIONS, *more)
    for kind, *more in (
      ("best_of_n",),
      ("steps",),
      ("prmbench", "--format=jsonl"),
      ("turns", "--format=jsonl"),
    )
  },
  **{
    f"search {kind}": (2, *SEARCH)
    for kind in (
      *("best_of_n", "beam", "dvts", "rebase", "particle_filter", "mcts"),
      "reject_resample",
    )
  },
  "search adaptive_best_of_n": (2, *SEARCH, "--calibration={0}/chance.json"),
  "search speculate": (3, *SEARCH, "--draft={0}/policy"),
  "search chunk_guidance": (2, POLICY, "--scorer={0}/policy", PROBLEMS),
  "verify run": (2, *SEARCH, "--threshold=0.5"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Returns a folder of models that compute in bfloat16, and of inputs."""
  folder = random_models.write(tmp_path_factory.mktemp("models"))
  for name in ("policy", "prm"):
    described = model_json.read_description(folder / name)
    model = dataclasses.replace(described.model, compute_dtype="bfloat16")
    model_json.write_description(
      folder / name, dataclasses.replace(described, model=model)
    )
  solution = schema.Solution(
    "s",
    "2 + 2?",
    ("2 + 2", "answer 4"),
    labels=(1.0, 1.0),
    outcome=False,
    extra=dict(reference_answer="4", classification="circular"),
  )
  jsonl.write_solutions(folder / "solutions.jsonl", [solution])
  records = dict(
    problems=dict(id="p", problem="2 + 2?", answer="4"),
    processbench=dict(id="b", problem="2?", steps=["2"], label=-1),
  )
  for name, record in records.items():
    (folder / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
  chance = dict(calibration=dict(intercept=0.0, slope=1.0, quantile=0.1))
  (folder / "chance.json").write_text(json.dumps(chance))
  return folder


class _BegunError(errors.InputError):
  """Ends a command that has loaded its models and begins to use them."""


@pytest.fixture
def loaded(monkeypatch):
  """Returns the types of what is loaded, and the slots of what samples first.

  What they would compute is left out.
  """
  types, slots = [], []

  def end(*_, **__):
    raise _BegunError("begins")

  def sample(self, *_, **__):
    is_engine = isinstance(self, rollout_engine.Engine)
    slots.append(self.slots if is_engine else self.batch_samples)
    end()

  for module in (sampler, saved):

    def load(*args, plain=module.load, **options):
      model = plain(*args, **options)
      types.append(model.config.compute_dtype)
      return model

    monkeypatch.setattr(module, "load", load)
  monkeypatch.setattr(rollout_engine.Engine, "generate", sample)
  monkeypatch.setattr(sampler.Sampler, "generate", sample)
  monkeypatch.setattr(scorer.Scorer, "score", end)
  monkeypatch.setattr(log_likelihood, "weigh", end)
  monkeypatch.setattr(server_lib, "run", end)
  # Chunks need policies with a template.
  monkeypatch.setattr(
    chunks,
    "of_sampler",
    lambda x, how, chunk_tokens, **more: own_models.of_sampler(x, how, **more),
  )
  monkeypatch.setattr(
    chunks, "of_policy", lambda x, guidance: search_models.Verifier(end)
  )
  return types, slots


def test_the_table_has_every_command_that_loads_models():
  """import and export say by --dtype what is saved; data reads tokenizers."""
  takes = {
    name
    for name, parser in COMMANDS.items()
    if parser.flags() & {"policy", "checkpoint", "scorer", "dtype"}
  }
  others = {"import", "export", *(x for x in takes if x.startswith("data "))}
  assert takes - others == LOADS.keys()


@pytest.fixture
def run(folder, tmp_path, capsys):
  """Returns a function that runs a command until its models begin."""

  def run(command, *more):
    _, *options = LOADS[command]
    words = [*command.split(), *(x.format(folder) for x in options), *more]
    if "output" in COMMANDS[command].flags():
      words.append(f"--output={tmp_path / 'out.jsonl'}")
    if command == "serve":
      words.append("--port=0")
    assert main.main(words) == 1
    assert capsys.readouterr().err.endswith("prm-jax: begins\n")

  return run


@pytest.mark.parametrize("given", [None, "float32"])
@pytest.mark.parametrize("command", LOADS)
def test_models_compute_in_the_type_that_is_given_else_in_their_own(
  command, given, run, loaded
):
  run(command, *([f"--dtype={given}"] if given else []))
  types, _ = loaded
  assert types == [given or "bfloat16"] * LOADS[command][0]


@pytest.mark.parametrize(
  "command",
  [
    x
    for x in LOADS
    if "policy" in COMMANDS[x].flags() and x != "label cpmi"  # only reads
  ],
)
def test_a_folders_policy_samples_in_as_many_slots_as_are_given(
  command, run, loaded
):
  run(command, "--slots=3")
  _, slots = loaded
  assert slots == [3]


def test_an_option_of_two_models_is_of_the_one_that_is_given(
  folder, run, loaded, monkeypatch
):
  monkeypatch.setitem(LOADS, "label people", (1, PRM, SOLUTIONS))
  run("label people", "--dtype=float32")
  types, _ = loaded
  assert types == ["float32"]


def test_an_own_type_depends_on_nothing_more_and_another_one_does(folder):
  """So a run that asks for it resumes one that asks for none, and no other."""
  policy, prm = str(folder / "policy"), str(folder / "prm")
  writes, scores = [], []
  for dtype in (None, "bfloat16", "float32"):
    asked = policies.Policy(policy, dtype=dtype)
    loaded = asked.load()
    known = policies.depends_on("policy", policy, dtype, loaded)
    writes.append(known)
    searched = search.Search(policy=asked, scorer=prm)
    scores.append(searched._verifier(collections.Counter())[1])
  for found in (writes, scores):
    assert found[0] == found[1]
    assert found[2] == found[0] | dict(compute_dtype="float32")


def test_labels_in_another_type_are_refused_like_another_seed(
  folder, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(rollout_engine.Engine, "generate", _answers)
  words = [
    *("label", "monte_carlo", *(x.format(folder) for x in LABEL)),
    f"--output={tmp_path / 'out.jsonl'}",
  ]
  assert main.main(words) == 0
  assert "computed in: policy bfloat16\n" in capsys.readouterr().out
  monkeypatch.setattr(policies.Policy, "load", _never)
  assert main.main([*words, "--dtype=float32"]) == 1
  streams = capsys.readouterr()
  own = (
    "--dtype: --policy computes in its own type there, in float32 here; give"
  )
  assert own in streams.err
  assert "computed in:" not in streams.out
  assert main.main([*words, "--temperature=0.5", "--top_k=3"]) == 1
  error = capsys.readouterr().err
  assert "temperature was 1.0 and is 0.5; top_k was not given and is 3" in error
  (tmp_path / "out.jsonl.journal").rename(tmp_path / "kept")
  assert main.main(words) == 1
  assert "without a journal to resume" in capsys.readouterr().err
  (tmp_path / "kept").rename(tmp_path / "out.jsonl.journal")
  monkeypatch.undo()
  monkeypatch.setattr(rollout_engine.Engine, "generate", _answers)
  assert main.main([*words, "--dtype=bfloat16"]) == 0


def test_a_search_in_another_type_is_refused_before_a_model_is_loaded(
  folder, loaded, tmp_path, capsys
):
  words = [
    *("search", "beam", "--keep=1", "--expand=1", "--max_steps=1"),
    *(x.format(folder) for x in SEARCH),
    f"--output={tmp_path / 'out.jsonl'}",
  ]
  types, _ = loaded
  assert main.main(words) == 1 and len(types) == 2
  changed = ["--dtype=float32", "--max_tokens=9", "--aggregate=mean"]
  assert main.main([*words, *changed]) == 1 and len(types) == 2
  error = capsys.readouterr().err
  assert "max_tokens was 512 and is 9" in error and "is 'mean'" in error
  for name in ("policy", "scorer"):
    own = f"--dtype: --{name} computes in its own type there, in float32 here; "
    assert own in error


def _never(*_):
  raise AssertionError("a model is loaded")


def _answers(self, prefixes, n, *_):
  """Completes each prefix by an answer; of Engine.generate."""
  rows = [
    [
      dataclasses.replace(
        x,
        id=f"{x.id}/{i}",
        steps=(*x.steps, "answer 4"),
        extra=x.extra | dict(ended=True, stopped="end", num_tokens=1),
      )
      for i in range(n)
    ]
    for x in prefixes
  ]
  return rows, rollout_engine.Work()


def test_a_type_is_for_the_scorer_alone_if_a_server_writes(folder, capsys):
  """And is refused if no checkpoint is loaded."""
  words = [
    *("search", "best_of_n", PROBLEMS.format(folder), "--output=x.jsonl"),
    *("--policy=http://127.0.0.1:9/v1", "--model=m", "--dtype=float32"),
  ]
  assert main.main([*words, "--scorer=math:exp"]) == 1
  assert "--dtype=float32: is for a checkpoint" in capsys.readouterr().err
  serve = ["serve", "--checkpoint=math:exp", "--dtype=float32"]
  assert main.main(serve) == 1
  assert "--dtype=float32 is for checkpoints" in capsys.readouterr().err
  server = policies.Server(model="m")
  policies.Policy(
    "http://127.0.0.1:9/v1", dtype="float32", server=server
  ).check(loads_scorer=True)
