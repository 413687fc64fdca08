"""Searches and what is made of them: as values in memory, and on files."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
import random_models
import stub_server

import prm_jax
from prm_jax import schema
from prm_jax.cli import flags
from prm_jax.cli import main
from prm_jax.records import jsonl
from prm_jax.reports import compare
from prm_jax.search import adaptive
from prm_jax.search import rules
from prm_jax.search import search
from prm_jax.search import solutions
from prm_jax.search import thresholds
from prm_jax.testbed import arithmetic
from tests.search import searches

COSTS = dict(policy=searches.COST, scorer=searches.COST)


def _results(rule):
  """Returns what a search of 20 problems finds."""
  random = np.random.default_rng(3)
  problems = [
    schema.Solution(p.id, p.problem, (), extra={schema.REFERENCE: p.answer})
    for p in arithmetic.problems(20, "test", searches.TASK, random)
  ]
  return solutions.results(
    searches.search(rule, problems, noise=0.7),
    COSTS,
    verify=lambda chosen: [
      s.steps[-1].split()[-1] == s.extra[schema.REFERENCE] for s in chosen
    ],
  )


@pytest.fixture(scope="module")
def found():
  return dict(bon=_results(rules.BestOfN(8)), beam=_results(rules.Beam(2, 3)))


@pytest.fixture
def written(found, tmp_path):
  for name, results in found.items():
    jsonl.write_solutions(tmp_path / f"{name}.jsonl", results)
  return tmp_path


def _ran(folder, *words):
  output = folder / "output.json"
  assert main.main([*words, f"--output={output}"]) == 0
  return output


def test_a_calibration_is_that_of_the_command(found, written):
  fitted = prm_jax.Calibrate(pilot=3)(found["bon"])
  words = ["search", "calibrate", "--pilot=3", f"--input={written}/bon.jsonl"]
  output = _ran(written, *words)
  assert adaptive.read(output) == fitted
  assert fitted.slope > 0


def test_a_comparison_is_that_of_the_command(found, written):
  compared = prm_jax.Compare(seed=5)(found)
  inputs = [f"--input={written / name}.jsonl" for name in found]
  output = _ran(written, "search", "compare", "--seed=5", *inputs)
  saved = json.loads(output.read_text())
  del saved["run"]
  assert saved == json.loads(json.dumps(compared))


def test_a_threshold_is_that_of_the_command(found, written):
  chosen = prm_jax.ChooseThreshold(0.5, attempts=4)(found["bon"])
  words = ["--precision=0.5", "--attempts=4", f"--input={written}/bon.jsonl"]
  output = _ran(written, "verify", "choose", *words)
  assert thresholds.read_threshold(str(output)) == chosen
  assert 0 < chosen.value < 1 and chosen.attempts == 4


PROBLEMS = [
  prm_jax.Problem("a", "Ann dials 3 up 4 .", "7"),
  prm_jax.Problem("b", "Bo dials 2 up 2 .", "4"),
  prm_jax.Problem("c", "Ann dials 3 up 4 .", "7"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """Returns a folder with policy/ and prm/, random, and problems.jsonl."""
  folder = random_models.write(tmp_path_factory.mktemp("models"), 128)
  (folder / "problems.jsonl").write_text(
    "".join(
      json.dumps(dict(id=p.id, problem=p.problem, answer=p.answer)) + "\n"
      for p in PROBLEMS
    )
  )
  return folder


@pytest.mark.parametrize(
  ("kind", "own", "words"),
  [
    (
      prm_jax.Search,
      dict(rule=prm_jax.Beam(keep=2, expand=2), max_step_tokens=5),
      ["search", "beam", "--keep=2", "--expand=2", "--max_step_tokens=5"],
    ),
    (
      prm_jax.Verify,
      dict(threshold=0.4, attempts=2, select="majority"),
      ["verify", "run", "--threshold=0.4", "--attempts=2", "--select=majority"],
    ),
  ],
)
def test_a_search_is_that_of_the_command(kind, own, words, models, tmp_path):
  verb = kind(
    policy=prm_jax.Policy(str(models / "policy"), slots=4),
    scorer=models / "prm",
    sampling=prm_jax.Sampling(max_tokens=12),
    limits=prm_jax.Limits(budget_tokens=60),
    seed=3,
    **own,
  )
  output = tmp_path / "found.jsonl"
  command = [
    *(*words, f"--policy={models}/policy", f"--scorer={models}/prm"),
    *("--slots=4", "--max_tokens=12", "--budget_tokens=60", "--seed=3"),
    *(f"--input={models}/problems.jsonl", f"--output={output}"),
  ]
  assert main.main(command) == 0
  written = jsonl.read_solutions(output)
  found = verb(iter(PROBLEMS))  # any iterable
  assert [jsonl.record_from_solution(s) for s in found] == [
    jsonl.record_from_solution(s) for s in written
  ]
  assert [s.id for s in found] == ["a", "b", "c"]


# What a journal says of each strategy if nothing is given; the other defaults
# are those of all. chunk_guidance has imported policies alone.
CLAIMS = dict(
  best_of_n=dict(num=16),
  beam=dict(keep=4, expand=4),
  dvts=dict(trees=4, expand=4),
  rebase=dict(width=16, balance_temperature=0.2),
  particle_filter=dict(
    num=16,
    softmax_temperature=1.0,
    resampling="multinomial",
    iterations=1,
  ),
  mcts=dict(simulations=4, expand=4, exploration=1.25, prior="policy"),
  reject_resample=dict(threshold=0.5, attempts=5),
  speculate=dict(threshold=0.7),
  adaptive_best_of_n=dict(
    pilot=4,
    most=64,
    confidence=0.99,
    calibration=dict(intercept=0.5, slope=1.0, quantile=0.1),
  ),
  accept_first=dict(threshold=0.5, attempts=8),
)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_journal_holds_what_it_always_held(name, models, tmp_path):
  """So runs of earlier versions resume, whatever they weren't given."""
  chance = dict(intercept=0.5, slope=1.0, quantile=0.1)
  (tmp_path / "chance.json").write_text(json.dumps(dict(calibration=chance)))
  needed = dict(
    speculate=[f"--draft={models}/policy"],
    adaptive_best_of_n=[f"--calibration={tmp_path}/chance.json"],
    accept_first=["--threshold=0.5"],
  )
  words = ["verify", "run"] if name == "accept_first" else ["search", name]
  output = tmp_path / "found.jsonl"
  words += [
    *(f"--policy={models}/policy", f"--scorer={models}/prm"),
    *(f"--input={models}/problems.jsonl", f"--output={output}"),
    *("--shard=5/997", "--budget_flops=2.5e12", *needed.get(name, [])),
  ]
  assert main.main(words) == 0
  head = (tmp_path / "found.jsonl.journal").read_text().splitlines()[0]
  claim = json.loads(head)["depends_on"]
  of_models = ["policies", "scorer", "aggregate"]
  assert [*claim][8:] == [*of_models, "solutions", "input"]
  assert [*claim["policies"]] == (
    ["draft", "target"] if name == "speculate" else ["policy"]
  )
  by_step = ("reject_resample", "speculate")
  assert claim["aggregate"] == ("last" if name in by_step else "min")
  limits = dict(
    max_steps=64,
    max_tokens=512,
    budget_tokens=None,
    budget_flops=2_500_000_000_000,
    lookahead=0,
  )
  expected = dict(
    kind=f"search {name}",
    shard="5/997",
    rule=CLAIMS[name],
    limits=limits,
    max_step_tokens=None,
    select="best",
    grader="rules",
    seed=0,
  )
  first = {k: claim[k] for k in [*claim][:8]}
  assert json.dumps(first) == json.dumps(expected)


def test_a_draft_is_written_by_its_own_server_alone(models, tmp_path):
  with contextlib.ExitStack() as stack:
    draft, *others = (
      stack.enter_context(stub_server.running()) for _ in range(3)
    )
    for stub in (draft, *others):
      stub.models = ["small" if stub is draft else "large"]
    words = ["search", "speculate", "--threshold=1", "--concurrency=1"]
    words += [f"--draft={draft.url}", "--draft_model=small", "--model=large"]
    urls = (stub.url for stub in others)
    words += [f"--policy={next(urls)}", f"--replica={next(urls)}"]
    words += [f"--scorer={models}/prm", f"--output={tmp_path / 'found.jsonl'}"]
    assert main.main([*words, f"--input={models}/problems.jsonl"]) == 0
    for stub in (draft, others[0]):
      assert {x["model"] for x in stub.seen} == set(stub.models)


def test_a_command_has_no_option_that_changes_nothing():
  of_steps = {"max_steps", "max_step_tokens", "lookahead"}
  left_out = dict(
    best_of_n=of_steps,
    adaptive_best_of_n=of_steps,
    accept_first=of_steps,
    chunk_guidance={
      *("aggregate", "cache_tokens", "max_step_tokens", "lookahead")
    },
  )
  verbs = {rule.name: search.by(rule) for rule in search.RULES}
  some = {"aggregate", "cache_tokens", *of_steps}
  for name, verb in dict(verbs, accept_first=prm_jax.Verify).items():
    options = flags.options(verb).keys()
    assert some - options == left_out.get(name, set()), name
    assert ("draft" in options) == (name == "speculate")


def _of_two_types(results):
  first, *rest = results
  bill = dict(first.extra["bill"], compute_dtype=dict(policy="float16"))
  extra = dict(first.extra, bill=bill)
  return [dataclasses.replace(first, extra=extra), *rest]


def _search(**options):
  return prm_jax.Search(policy="p", scorer="s", **options)


@pytest.mark.parametrize(
  ("call", "words"),
  [
    (lambda r: _search(rule=prm_jax.Beam)([]), "rule must be Rule, found"),
    (lambda r: _search(rule=prm_jax.Speculate())([]), "`draft`: give the pol"),
    (lambda r: _search(select="first"), "`select='first'`: expected one of"),
    (lambda r: _search(grader="both", seed=-1), "`seed=-1`"),
    (lambda r: _search()([*PROBLEMS, PROBLEMS[0]]), "'a'"),
    (
      lambda r: _search()(
        [*PROBLEMS, prm_jax.Problem("d", "Bo dials 2 up 2 .", "5")]
      ),
      "problem 'd': the reference answer is '5', but at problem 'b' it was '4'",
    ),
    (
      lambda r: prm_jax.Verify(policy="p", scorer="s", threshold=1.5)([]),
      "`threshold=1.5`: expected a share",
    ),
    (lambda r: prm_jax.Calibrate(pilot=8)(r["bon"]), "`pilot=8`: a problem"),
    (lambda r: prm_jax.Calibrate()([]), "a problem has 0 samples"),
    (
      lambda r: prm_jax.Calibrate()([schema.Solution("a", "b", ())]),
      "'a' has no tree",
    ),
    (lambda r: prm_jax.Calibrate()(r["beam"]), "was searched step by step"),
    (lambda r: prm_jax.Calibrate(quantile=1.0)(r["bon"]), "`quantile=1.0`"),
    (lambda r: prm_jax.Compare()({}), "no search to compare"),
    (
      lambda r: prm_jax.Compare()(dict(r, less=r["bon"][1:])),
      "less: has other problems",
    ),
    (
      lambda r: compare.CompareJob(("a.jsonl", "a=b.jsonl"), "c.json"),
      "`input=a=b.jsonl`: the name 'a' comes twice",
    ),
    (lambda r: prm_jax.ChooseThreshold(2.0)(r["bon"]), "`precision=2.0`"),
    (
      lambda r: prm_jax.ChooseThreshold(0.5)(_of_two_types(r["bon"])),
      "computed in different types",
    ),
  ],
  ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cant_be_made_is_refused_in_python(found, call, words):
  with pytest.raises(prm_jax.InputError, match=words):
    call(found)


def test_a_searchs_job_takes_its_files_in_order():
  job = prm_jax.Search.job("in.jsonl", "out.jsonl")
  assert (str(job.input.path), job.batch) == ("in.jsonl", 16)
