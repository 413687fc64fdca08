"""`prm-jax label ... --plan`: its numbers are those of the run."""

import contextlib
import dataclasses
import hashlib
import json

import pytest
import random_models
import stub_server

import prm_jax
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.jobs import opened_policies
from prm_jax.jobs import policies
from prm_jax.labelling import label_plan
from prm_jax.labelling import omega_prm
from prm_jax.records import jsonl


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
  """The folder of a policy, random, which writes bytes."""
  return random_models.write(tmp_path_factory.mktemp("models")) / "policy"


def _solution(id_, problem, *steps, answer="2"):
  extra = dict(reference_answer=answer) if answer else {}
  extra["num_tokens"] = 5
  return schema.Solution(id_, problem, steps, extra=extra)


SOLUTIONS = [
  _solution("a", "1+1", "one", "and one", "is two", "answer 2"),
  _solution("b", "1+1", "one", "and one", "is three", "answer 3"),
  _solution("c", "1+1", "two", "answer 2"),
  _solution("d", "1+1", "answer 2"),
  _solution("e", "2+2", "one", "and one", "answer 4", answer="4"),
  _solution("f", "2+2", answer="4"),
  _solution("g", "9", "one", "and one", answer=None),
  _solution("h", "0+2", "one", "more", "and more", "answer 2"),
]


def _luck(*of):
  return hashlib.sha256(json.dumps(of).encode()).digest()[0]


def _complete(prefixes, n, tell):
  """A policy whose luck goes by id and number alone."""
  rows = [[_completion(p, i) for i in range(n)] for p in prefixes]
  tell(n * len(prefixes))
  return rows


def _completion(prefix, i):
  luck = _luck(prefix.id, i)
  new = [f"step {luck} {k}" for k in range(luck % 3)]
  answer = "2" if luck < 128 else "7"
  return dataclasses.replace(
    prefix,
    id=f"{prefix.id}/{i}",
    steps=(*prefix.steps, *new, f"answer {answer}"),
    extra=dict(prefix.extra, stopped="end", ended=True, num_tokens=5),
  )


def _weigh(groups):
  one = schema.Weighed(-1.0, 1)
  return [[[one for _ in texts] for _ in starts] for starts, texts in groups]


@pytest.fixture
def use(monkeypatch):
  """Puts a policy of this test in the folder's place, for the run."""

  def use(complete=_complete):
    @contextlib.contextmanager
    def opened(policy, sampling, seed, replies, counts):
      weigher = policies.Weigher(_weigh)
      depends_on = sampling.asked() | dict(seed=seed)
      yield policies.Writer(complete, depends_on, weigher=weigher)

    monkeypatch.setattr(opened_policies, "opened", opened)

  use()
  return use


@pytest.fixture
def label(policy, tmp_path, capsys):
  """Returns a function that labels, and returns what it said by name."""
  jsonl.write_solutions(tmp_path / "in.jsonl", SOLUTIONS)

  def run(kind, *options, code=0):
    words = ("label", kind, f"--input={tmp_path / 'in.jsonl'}")
    if not any(x.startswith("--policy") for x in options):
      options = (f"--policy={policy}", *options)
    capsys.readouterr()
    output = f"--output={tmp_path / 'out.jsonl'}"
    assert main.main([*words, output, *options]) == code
    said = capsys.readouterr()
    if code:
      return said.err
    rows = [x.split(None, 1) for x in said.out.splitlines() if x[:1] == " "]
    run.said = said.out
    return {name: int(count.replace(",", "")) for count, name in rows}

  return run


@pytest.fixture
def plan(label, tmp_path, monkeypatch):
  """Returns a function that plans, with a policy that may not be opened."""

  def content():
    return {x: x.read_bytes() for x in tmp_path.rglob("*") if x.is_file()}

  def run(kind, *options, code=0):
    def opened(*_):
      raise AssertionError("a plan opened the policy")

    before = content()
    with monkeypatch.context() as patched:
      patched.setattr(opened_policies, "opened", opened)
      said = label(kind, "--plan", *options, code=code)
    assert content() == before
    run.said = getattr(label, "said", "")
    return said

  return run


# --- monte_carlo ---------------------------------------------------------------


@pytest.mark.parametrize(
  "options",
  [
    (),
    ("--hard", "--stop_early", "--stop_at_zero"),
    ("--max_width=0.9", "--confidence=0.5"),
    ("--shard=1/2",),
    ("--limit=3",),
  ],
)
def test_the_completions_planned_are_those_drawn_and_those_saved(
  options, use, plan, label
):
  options = ("--completions=6", *options)
  planned = plan("monte_carlo", *options)
  done = label("monte_carlo", *options)
  stops = len(options) > 2 and "limit" not in options[1]
  name = "completions, at most" if stops else "completions"
  assert planned[name] == done["rollouts"] + done["rollouts saved"] > 0
  assert planned["distinct prefixes"] == done["distinct prefixes"]
  without = {k: n for k, n in done.items() if k.startswith("without labels")}
  assert without == {
    k: n for k, n in planned.items() if k.startswith("without labels")
  }


def test_what_a_journal_holds_is_not_planned_again(use, plan, label, tmp_path):
  drawn = []

  def dies(prefixes, n, tell):
    if len(drawn) == 2:
      raise prm_jax.InputError("the power went out")
    return completes(prefixes, n, tell)

  def completes(prefixes, n, tell):
    drawn.append(n * len(prefixes))
    return _complete(prefixes, n, tell)

  use(dies)
  options = ("--completions=6", "--batch=1")
  before = plan("monte_carlo", *options)
  assert before["in the journal already"] == 0
  assert "the power went out" in label("monte_carlo", *options, code=1)
  after = plan("monte_carlo", *options)
  # All but the last problem, of whose solution there are three prefixes.
  assert after["in the journal already"] == 7 and after["solutions"] == 8
  assert after["completions"] == 3 * 6
  assert before["completions"] - after["completions"] == sum(drawn)
  with open(tmp_path / "out.jsonl.journal", "a") as f:
    f.write('{"ids": ["h"')  # the last words of a killed process
  assert plan("monte_carlo", *options) == after
  assert plan("monte_carlo", *options, "--fresh") == before
  drawn.clear()
  use(completes)
  label("monte_carlo", *options)
  assert sum(drawn) == after["completions"]
  done = plan("monte_carlo", *options)
  assert done["completions"] == 0 and done["tokens to read, about"] == 0


def test_tokens_are_those_of_the_folders_tokenizer(plan):
  """A byte is a token; a step has one more, its end."""
  said = plan("monte_carlo", "--completions=6", "--limit=1", "--max_tokens=9")
  (lengths,) = {tuple(map(len, SOLUTIONS[0].steps))}
  rest = [sum(n + 1 for n in lengths[k:]) for k in (1, 2, 3)]
  assert said["tokens to write, about"] == min(6 * sum(rest), 18 * 9)
  assert said["tokens to write, at most"] == 18 * 9
  said = plan("monte_carlo", "--completions=6", "--limit=1")
  assert said["tokens to write, about"] == 6 * sum(rest)
  assert said["tokens to write, at most"] == 18 * 512
  # The engine reads shorter prefixes with the longest one.
  problem = said["tokens to read, about"] - sum(n + 1 for n in lengths[:3])
  # The problem's three bytes, and what our form writes around it.
  assert 3 < problem <= 6
  assert "tokens are the policy's" in plan.said


def test_a_server_is_not_asked_and_a_token_is_four_characters(plan):
  with stub_server.running() as stub:
    server = (f"--policy={stub.url}", "--model=m", "--prompt=Q: {problem}!")
    how = (*server, "--completions=2", "--limit=1", "--max_tokens=7")
    said = plan("monte_carlo", *how, "--tokens_per_s=0.5")
    assert not stub.seen
  lengths = [len(step) + 2 for step in SOLUTIONS[0].steps]
  prompts = [len("Q: 1+1!\n\n") + sum(lengths[:k]) for k in (1, 2, 3)]
  assert said["tokens to read, about"] == -(-2 * sum(prompts) // 4)
  rest = -(-2 * sum(sum(lengths[k:]) for k in (1, 2, 3)) // 4)
  assert said["tokens to write, about"] == min(rest, 42) == 28
  assert said["tokens to write, at most"] == 6 * 7 == 42
  assert "a token is taken to have 4 characters" in plan.said
  assert (
    plan.said.splitlines()[-1] == "at 0.5 tokens/s: about: 56 s; at most: 84 s"
  )


# --- omega_prm -----------------------------------------------------------------


@pytest.mark.parametrize(
  "options",
  [
    (),
    ("--max_rollouts=9",),
    ("--searches=1", "--root_rollouts=40"),
    ("--max_tokens=4", "--root_rollouts=3"),
  ],
)
def test_omega_prm_draws_no_more_than_planned(options, use, plan, label):
  options = ("--completions=4", "--root_rollouts=8", *options)
  planned = plan("omega_prm", *options)
  done = label("omega_prm", *options)
  assert 0 < done["rollouts"] <= planned["completions, at most"]
  assert planned["without labels: no reference answer"] == 1


def test_the_most_completions_of_omega_prm_can_come_true():
  """Of 2 first rollouts one is wrong: 3 states among its 8 steps, of 2 each."""

  def generate(prefixes, n):
    rows = []
    for p in prefixes:
      new = tuple(f"{i}" for i in range(len(p.steps), 8))
      extra = dict(ended=True, num_tokens=8)
      rows.append(
        [schema.Solution(f"{i}", p.problem, p.steps + new, extra=extra)]
        for i in range(n)
      )
    return [[x for one in row for x in one] for row in rows]

  def verify(solutions):
    return [s.id == "0" for s in solutions]

  start = schema.Solution("a", "1+1", ())
  options = omega_prm.Options(completions=2, root_rollouts=2, searches=1)
  _, work = omega_prm.label([start], generate, verify, options)
  lengths = label_plan.Lengths(len, len, "", False)
  planned = label_plan.omega_prm([start], options, 8, lengths)
  assert work["rollouts"] == 2 + 3 * 2 == planned.completions
  assert planned.written is None and planned.read == 4 * len("1+1")
  limited = dataclasses.replace(options, searches=9, max_rollouts=3)
  planned = label_plan.omega_prm([start], limited, 8, lengths)
  # With 2 of 3 the second search begins no more.
  assert planned.completions == 2 + 3 * 2


def test_problems_alone_give_no_estimate_of_what_is_written(plan, tmp_path):
  problem = dict(id="a", problem="1+1", answer="2")
  (tmp_path / "in.jsonl").write_text(json.dumps(problem) + "\n")
  said = plan("omega_prm", "--tokens_per_s=1000")
  assert said["steps"] == 0 and "tokens to write, about" not in said
  most = said["completions, at most"] * 512
  assert said["tokens to write, at most"] == most
  assert plan.said.endswith(f"s: at most: {most / 60_000:.1f} min\n")


# --- judge ---------------------------------------------------------------------


def test_a_judge_is_asked_as_often_as_planned(use, plan, label, tmp_path):
  asked = []

  def complete(prefixes, n, tell):
    asked.extend(p.problem for p in prefixes for _ in range(n))
    return _complete(prefixes, n, tell)

  use(complete)
  again = dataclasses.replace(SOLUTIONS[0], id="again")
  jsonl.write_solutions(tmp_path / "in.jsonl", [*SOLUTIONS, again])
  options = ("--votes=3", "--template=thinkprm", "--policy=http://h/v1")
  planned = plan("judge", *options, "--model=m")
  label("judge", *options, "--model=m")
  assert planned["judge requests"] == len(asked) == 7 * 3
  assert planned["distinct solutions"] == 7
  assert planned["without labels: no steps"] == 1
  read = -(-sum(len(f"{x}\n\n") for x in asked) // 4)
  assert planned["tokens to read, about"] == read
  assert planned["tokens to write, at most"] == 21 * 512
  by_words = plan(
    *("judge", *options, "--model=m", "--vote=log_likelihood", "--fresh")
  )
  steps = sum(len(s.steps) for s in SOLUTIONS)
  assert by_words["weighed words, at most"] == 3 * 2 * (steps + 7)
  error = plan(
    *("judge", *options, "--model=m", "--vote=log_likelihood", "--chat"),
    *("--fresh",),
    code=1,
  )
  assert "no log-probabilities" in error


# --- cpmi ----------------------------------------------------------------------


@pytest.mark.parametrize(
  "options",
  [(), ("--form=increment", "--phrasing={problem}", "--phrasing=Q: {problem}")],
)
def test_cpmi_weighs_as_many_texts_as_planned(options, use, plan, label):
  planned = plan("cpmi", *options, "--tokens_per_s=100")
  done = label("cpmi", *options)
  assert planned["texts weighed"] == done["texts weighed"] > 0
  assert not any(name.startswith("tokens to write") for name in planned)
  read = planned["tokens to read, about"]
  assert (
    plan.said.splitlines()[-1] == f"at 100 tokens/s: about: {read / 100:.0f} s"
  )


def test_cpmi_at_a_server_reads_each_text_with_its_prompt(plan, label):
  server = ("--policy=http://h/v1", "--model=m")
  planned = plan("cpmi", *server, "--limit=1")
  answers = [f"The answer is: {x}" for x in ("2", "4", "0", "12", "-8")]
  shown = ["", *(f"{step}\n\n" for step in SOLUTIONS[0].steps)]
  sent = [f"1+1\n\n{steps}{x}\n\n" for steps in shown for x in answers]
  assert planned["texts weighed"] == len(sent) == 25
  assert planned["tokens to read, about"] == -(-sum(map(len, sent)) // 4)


# --- What is refused -----------------------------------------------------------


def test_a_plan_refuses_what_the_job_does(plan, label, use, tmp_path, policy):
  def refused(kind, *options, words):
    errors = [plan(kind, *options, code=1), label(kind, *options, code=1)]
    assert words in errors[0] and errors[0].count("\n") == 1
    return errors

  without = [dataclasses.replace(s, extra={}) for s in SOLUTIONS]
  chat = ("--policy=http://h/v1", "--model=m", "--chat")
  error = plan("monte_carlo", *chat, code=1)
  assert "has steps" in error and "give --continues" in error
  error = plan("omega_prm", *chat, code=1)
  assert "has steps" in error and "give --continues" in error
  assert "take --chat out" in plan("cpmi", *chat, code=1)
  server = (*chat[:2], "--segments=4")
  refused("omega_prm", *server, words="--segments=4: a server")
  for option, words in (
    ("--step=9", "no checkpoint of step 9"),
    ("--step=best", "no fit.best_metric"),
    ("--dtype=float8", "expected one of float32"),
  ):
    assert words in plan("monte_carlo", option, code=1)
  key = ("--policy=https://h/v1", "--model=m", "--key_variable=NO_SUCH_KEY")
  assert "NO_SUCH_KEY isn't set" in plan("judge", *key, code=1)
  (tmp_path / "empty").mkdir()
  error = plan("monte_carlo", f"--policy={tmp_path / 'empty'}", code=1)
  assert f"{tmp_path / 'empty'}: not a checkpoint folder" in error
  prm = policy.parent / "prm"
  assert "doesn't write" in plan("monte_carlo", f"--policy={prm}", code=1)
  error = label("monte_carlo", "--tokens_per_s=9", code=1)
  assert "--tokens_per_s=9: is for --plan, which isn't given" in error
  refused("cpmi", "--shard=0/2", words="is over the whole input")
  label("monte_carlo", "--completions=2")
  both = refused("monte_carlo", "--completions=3", words="holds another run's")
  assert both[0] == both[1]
  (tmp_path / "out.jsonl.journal").unlink()
  both = refused("monte_carlo", words="is there already, without a journal")
  assert both[0] == both[1]
  jsonl.write_solutions(tmp_path / "in.jsonl", without)
  both = refused("monte_carlo", "--fresh", words='no solution has a "reference')
  assert both[0] == both[1]


def test_a_plan_refuses_the_journal_of_another_server_run(plan, label):
  """All that a server's completions depend on is known without it."""
  with stub_server.running() as stub:
    how = ("monte_carlo", f"--policy={stub.url}", "--limit=2")
    label(*how, "--model=m", "--stop=Q", "--top_k=5")
  options = dict(model="m", stop="Q", top_k="5")
  for changes in (
    *(dict(model="x"), dict(stop="A"), dict(stop=None), dict(top_k=None)),
    *(dict(prompt="Q: {problem}"), dict(temperature="0.5")),
    dict(request_option="n_probs=1"),
  ):
    given = {k: x for k, x in (options | changes).items() if x is not None}
    words = [f"--{name}={x}" for name, x in given.items()]
    both = plan(*how, *words, code=1), label(*how, *words, code=1)
    assert both[0] == both[1] and "holds another run's results" in both[0]
  words = [f"--{name}={x}" for name, x in options.items()]
  done = plan(*how, *words, "--replica=http://h/v1")
  assert done["in the journal already"] == 2 and done["completions"] == 0


@pytest.mark.parametrize("kind", ["monte_carlo", "omega_prm", "judge", "cpmi"])
def test_a_plan_is_a_result_that_is_printed(kind):
  words = ["label", kind, "--policy=x", "--input=x", "--output=x"]
  parser = main._parser()
  assert main._prints_result(parser.parse([*words, "--plan"]))
  assert not main._prints_result(parser.parse(words))
