"""`prm-jax label`: whole journeys, and what it makes of bad input."""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import http.server
import json
import os
import pathlib
import re
import shlex
import sys
import threading

import numpy as np
import pytest
import random_models

import prm_jax
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.grading import pool
from prm_jax.jobs import journal
from prm_jax.jobs import opened_policies
from prm_jax.jobs import policies
from prm_jax.labelling import monte_carlo
from prm_jax.labelling import omega_prm
from prm_jax.records import jsonl
from prm_jax.runtime import files as files_lib
from prm_jax.runtime import progress
from prm_jax.testbed import arithmetic
from prm_jax.text import answers


def _solutions(count=6, samples=3, seed=0):
  """Returns the annotator's solutions, those of a problem apart."""
  random = np.random.default_rng(seed)
  task = arithmetic.Task(max_turns=3)
  problems = arithmetic.problems(count, "train", task, random)
  return [
    dataclasses.replace(
      arithmetic.solve(p, random, task),
      id=f"{p.id}/{n}",
      extra=dict(reference_answer=arithmetic.answer(p.problem)),
    )
    for n in range(samples)
    for p in problems
  ]


def _complete(prefixes, n, tell):
  """A policy of the testbed; its luck goes by id, text and number alone."""
  rows = []
  for prefix in prefixes:
    rows.append([_completion(prefix, i) for i in range(n)])
    tell(n * len(rows))
  return rows


def _completion(prefix, i):
  text = json.dumps([prefix.id, prefix.problem, *prefix.steps, i])
  right = hashlib.sha256(text.encode()).digest()[0] < 128
  answer = int(arithmetic.answer(prefix.problem)) + (not right)
  return dataclasses.replace(
    prefix,
    id=f"{prefix.id}/{i}",
    steps=(*prefix.steps, f"answer {answer % arithmetic.POSITIONS}"),
    extra=dict(prefix.extra, stopped="end", ended=True, num_tokens=5),
  )


@pytest.fixture
def testbed(monkeypatch):
  """Puts the testbed's policy, or another one, in a checkpoint's place."""

  def use(complete=_complete):
    @contextlib.contextmanager
    def opened(policy, sampling, seed, replies, counts):
      depends_on = dict(policy="testbed", seed=seed)
      yield policies.Writer(complete, depends_on)

    monkeypatch.setattr(opened_policies, "opened", opened)

  use()
  return use


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """Returns a folder with policy/ and prm/: random, never trained."""
  return random_models.write(tmp_path_factory.mktemp("models"))


def _run(*arguments):
  return main.main([str(a) for a in arguments])


@pytest.fixture
def files(tmp_path):
  """Returns the paths of an input, with solutions, and of an output."""
  jsonl.write_solutions(tmp_path / "in.jsonl", _solutions())
  return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def _monte_carlo(files, *options, kind="monte_carlo"):
  return [
    *("label", kind, f"--input={files[0]}", f"--output={files[1]}"),
    *(() if kind == "select" else ("--policy=testbed", "--completions=4")),
    *options,
  ]


@pytest.fixture
def refused(capfd, tmp_path):
  """Returns a function that checks that a command is refused in one line.

  With exit code 1 and all the words, and nothing written or changed.
  """

  def content():
    return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

  def check(arguments, *words):
    before = content()
    capfd.readouterr()
    code = _run(*arguments)
    error = capfd.readouterr().err
    assert code == 1 and error.startswith("prm-jax: "), error
    assert error.count("\n") == 1 and error.endswith("\n"), error
    for word in words:
      assert word in error, error
    assert content() == before

  return check


def _said(out):
  """Returns the counts in what a command printed, by name."""
  rows = [line.split(None, 1) for line in out.splitlines() if line[:1] == " "]
  return {name: int(count.replace(",", "")) for count, name in rows}


# --- Journeys ---------------------------------------------------------------


def test_the_command_writes_what_the_labeller_says(testbed, files, capfd):
  assert _run(*_monte_carlo(files, "--batch=4")) == 0
  solutions = jsonl.read_solutions(files[0])

  def verify(whole):
    return [
      answers.extract(list(s.steps)) == arithmetic.answer(s.problem)
      for s in whole
    ]

  expected, work = monte_carlo.label(
    solutions,
    lambda prefixes, n: _complete(prefixes, n, lambda done: None),
    verify,
    monte_carlo.Options(completions=4),
  )
  found = jsonl.read_solutions(files[1])
  assert [s.id for s in found] == [s.id for s in solutions]
  assert [s.labels for s in found] == [s.labels for s in expected]
  assert {s.source for s in found} == {"monte_carlo"}
  said = _said(capfd.readouterr().out)
  assert said["solutions labelled"] == len(solutions)
  assert said["steps labelled"] == sum(len(s.steps) for s in solutions)
  for name, count in work.items():
    assert said[name.replace("_", " ")] == count, name
  graded = said["graded right"] + said["graded wrong"]
  assert graded == work["rollouts"] + len(solutions)


def _told(solutions):
  return [(s.id, s.steps, s.labels) for s in solutions]


@pytest.mark.parametrize("kind", ["monte_carlo", "omega_prm"])
def test_a_labeller_in_python_labels_as_its_command_does(
  kind, testbed, files, caplog
):
  solutions = [
    dataclasses.replace(s, extra=dict(s.extra, num_tokens=5))
    for s in _solutions()
  ]
  jsonl.write_solutions(files[0], solutions)
  assert _run(*_monte_carlo(files, kind=kind)) == 0
  kinds = dict(monte_carlo=prm_jax.MonteCarlo, omega_prm=prm_jax.OmegaPRM)
  labeller = kinds[kind]("testbed", completions=4)
  caplog.set_level("INFO")
  caplog.clear()
  found = _told(labeller(solutions))
  assert re.search(r"[1-9]\d*  rollouts", caplog.text)
  assert _told(labeller(iter(solutions))) == found
  assert found and found == _told(jsonl.read_solutions(files[1]))
  alone = [dataclasses.replace(solutions[0], extra={})]
  with pytest.raises(prm_jax.InputError, match="no 'reference_answer'"):
    labeller(alone)


def test_hard_labels_and_their_options_reach_the_labeller(
  testbed, files, capfd
):
  options = ("--hard", "--threshold=0.5", "--stop_early", "--stop_at_zero")
  assert _run(*_monte_carlo(files, *options)) == 0
  labels = {x for s in jsonl.read_solutions(files[1]) for x in s.labels}
  assert labels == {0.0, 1.0, None}
  assert _said(capfd.readouterr().out)["rollouts saved"] > 0
  soft = (files[0], files[1].with_name("soft.jsonl"))
  assert _run(*_monte_carlo(soft, "--max_width=0.9", "--confidence=0.5")) == 0
  assert _said(capfd.readouterr().out)["rollouts saved"] > 0
  assert "intervals" in jsonl.read_solutions(soft[1])[0].extra
  heads = [json.loads(_head_of(x[1]))["depends_on"] for x in (files, soft)]
  for name, values in dict(
    hard=(True, False),
    threshold=(0.5, 0),
    stop_early=(True, False),
    stop_at_zero=(True, False),
    max_width=(None, 0.9),
    confidence=(0.95, 0.5),
  ).items():
    assert tuple(head[name] for head in heads) == values, name


def test_it_says_how_far_it_is_and_what_that_has_cost(
  testbed, files, capfd, monkeypatch
):
  always = functools.partial(progress.showing, every_s=0.0)
  monkeypatch.setattr(progress, "showing", always)
  assert _run(*_monte_carlo(files, "--batch=9")) == 0
  said = capfd.readouterr()
  lines = [x for x in said.err.splitlines() if x.startswith("label ")]
  assert lines[0].startswith("label 0/18 ")
  assert lines[0].endswith(" unknown 4 rollouts")
  counts = _said(said.out)
  cost = f"{counts['tokens']:,} tokens, {counts['rollouts']:,} rollouts"
  assert lines[-1].startswith("label 18/18 ") and lines[-1].endswith(cost)
  # In the second batch the first one's cost stands before its own.
  assert any(line.endswith(" rollouts + 4 rollouts") for line in lines)


def test_a_real_policy_that_never_ends_is_counted_and_said(
  models, files, capfd
):
  """Random bytes hold no answer; four of them hold no end either."""
  few = [_short(f"s{i}", f"answer {i}") for i in range(3)]
  jsonl.write_solutions(files[0], few)

  def label(output, *options):
    return _run(
      *("label", "monte_carlo", f"--input={files[0]}", f"--output={output}"),
      *(f"--policy={models / 'policy'}", "--completions=2", "--max_tokens=4"),
      *options,
    )

  assert label(files[1]) == 0
  out = capfd.readouterr().out
  said = _said(out)
  assert said["prefixes"] == 6 and said["distinct prefixes"] == 2
  assert said["rollouts"] == said["unended"] == said["no answer"] == 4
  assert said["tokens"] == 16 and said["unverifiable"] == 0
  assert "no rollout ended within --max_tokens=4: give more" in out
  found = jsonl.read_solutions(files[1])
  assert [s.labels for s in found] == [(0, 0, 0), (0, 0, 0), (0, 0, 1)]
  # Its completions depend on the seed and on nothing else.
  for seed, same in ((0, True), (1, False)):
    head = _head(label, files[1].with_name(f"{seed}.jsonl"), f"--seed={seed}")
    assert (head == _head_of(files[1])) == same
  fields = json.loads(_head_of(files[1]))["depends_on"]
  assert fields["policy"].startswith("sha256:") and fields["max_tokens"] == 4


def test_sample_takes_a_folder_as_policy_or_as_checkpoint(models, tmp_path):
  problems, outputs = tmp_path / "p.jsonl", []
  problems.write_text('{"id": "a", "problem": "1?"}\n')
  for option in ("policy", "checkpoint"):
    outputs.append(tmp_path / f"{option}.jsonl")
    assert not _run(
      *("sample", f"--{option}={models / 'policy'}", f"--input={problems}"),
      *(f"--output={outputs[-1]}", "--n=2", "--max_tokens=4"),
    )
  assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_slots_are_the_engines(models, files, capfd, refused):
  jsonl.write_solutions(files[0], [_short("a", "answer 1")])
  command = [
    *("label", "monte_carlo", f"--input={files[0]}", f"--output={files[1]}"),
    *(f"--policy={models / 'policy'}", "--completions=2", "--max_tokens=4"),
  ]
  refused([*command, "--slots=0"], "--slots=0: expected 1 or more")
  assert _run(*command, "--slots=2", "--fresh") == 0
  said = _said(capfd.readouterr().out)
  # Two prefixes with two rollouts of four tokens each, and no slot is idle.
  assert said["tokens"] == said["slot steps"] == 16


def _short(id_, *steps, **fields):
  """Returns a solution of few tokens: shapes cost a second each."""
  extra = dict(reference_answer="2")
  steps = ("1", "+1", *steps)
  return schema.Solution(id_, "1+1", steps, extra=extra, **fields)


def _head(label, output, *options):
  assert label(output, *options) == 0
  return _head_of(output)


def _head_of(output):
  return journal.path_of(output).read_text().splitlines()[0]


# --- The journal and shards --------------------------------------------------


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
  testbed, files, capfd, monkeypatch
):
  whole = (files[0], files[1].with_name("whole.jsonl"))
  assert _run(*_monte_carlo(whole, "--batch=4")) == 0
  expected = _said(capfd.readouterr().out)
  command = _monte_carlo(files, "--batch=4")
  write, left = os.write, [6_000]

  def full(fd, data):
    if left[0] <= 0:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    done = write(fd, data[: left[0]])
    left[0] -= done
    return done

  with monkeypatch.context() as patch:
    patch.setattr(os, "write", full)
    assert _run(*command) == 4
  error = capfd.readouterr().err
  assert error.count("\n") == 1
  assert "No space left" in error and "same command again" in error
  with monkeypatch.context() as patch:

    def full_at_the_end(*_):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "replace", full_at_the_end)
    assert _run(*command) == 4
  said = capfd.readouterr()
  assert "resumes after" in said.out
  assert said.err.count("\n") == 1 and "holds all of them" in said.err
  assert not files[1].exists()
  # A process that was killed while it wrote left half a line.
  log = journal.path_of(files[1])
  log.write_bytes(log.read_bytes()[:-30])
  assert _run(*command) == 0
  out = capfd.readouterr().out
  assert "cut off an unfinished last line" in out
  assert files[1].read_bytes() == whole[1].read_bytes()
  assert _said(out) == expected


def test_all_shards_together_are_the_whole_run(testbed, files):
  assert _run(*_monte_carlo(files)) == 0
  lines = []
  for i in range(3):
    shard = (files[0], files[1].with_name(f"{i}.jsonl"))
    assert _run(*_monte_carlo(shard, f"--shard={i}/3")) == 0
    lines += shard[1].read_bytes().splitlines()
  assert sorted(lines) == sorted(files[1].read_bytes().splitlines())


@pytest.mark.parametrize("kind", ["monte_carlo", "omega_prm"])
def test_a_shard_without_a_problem_writes_an_empty_file(kind, testbed, files):
  rows = _solutions(count=1)
  rows = [
    dataclasses.replace(s, extra=s.extra | dict(num_tokens=5)) for s in rows
  ]
  jsonl.write_solutions(files[0], rows)
  sizes = []
  for i in range(2):
    shard = (files[0], files[1].with_name(f"{i}.jsonl"))
    assert _run(*_monte_carlo(shard, f"--shard={i}/2", kind=kind)) == 0
    sizes.append(len(shard[1].read_text().splitlines()))
  assert sorted(sizes) == [0, dict(monte_carlo=3, omega_prm=10)[kind]]


def test_other_options_or_input_on_the_same_journal_are_refused(
  testbed, files, refused
):
  assert _run(*_monte_carlo(files)) == 0
  for option, words in (
    ("--completions=5", "completions was 4 and is 5"),
    ("--seed=1", "seed was 0 and is 1"),
    ("--grader=prm800k", "grader was 'rules' and is 'prm800k'"),
    ("--shard=0/2", "shard was '0/1' and is '0/2'"),
    ("--hard", "hard was False and is True"),
  ):
    refused(_monte_carlo(files, option), words, "--fresh")
  jsonl.write_solutions(files[0], _solutions(seed=1))
  refused(_monte_carlo(files), "input was", "--fresh")
  assert _run(*_monte_carlo(files, "--fresh")) == 0
  with journal.opened(files[1], [], {}, fresh=True):
    refused(_monte_carlo(files), "another process")


# --- Bad input --------------------------------------------------------------


def test_answers_that_hang_the_grader_make_no_label(
  testbed, files, capfd, monkeypatch
):
  """In a process of its own, which is killed: null, and counted."""
  worker = """
import json, sys
print(json.dumps(dict(ready=True)), flush=True)
for line in sys.stdin:
  while json.loads(line)["given"] == "9!!!":
    pass
  print(json.dumps(dict(verdict="wrong")), flush=True)
"""
  grader = functools.partial(
    pool.Grader, command=(sys.executable, "-c", worker), time_s=0.3
  )
  monkeypatch.setattr(pool, "Grader", grader)

  def hangs(prefixes, n, tell):
    return [
      [
        dataclasses.replace(
          s, steps=(*s.steps[:-1], "answer 9!!!" if i else s.steps[-1])
        )
        for i, s in enumerate(row)
      ]
      for row in _complete(prefixes, n, tell)
    ]

  testbed(hangs)
  jsonl.write_solutions(files[0], _solutions(count=2, samples=1))
  command = _monte_carlo(files, "--grader=math_verify", "--completions=3")
  assert _run(*command) == 0
  said = _said(capfd.readouterr().out)
  prefixes = said["distinct prefixes"]
  assert said["graded timeout"] == said["unverifiable"] == 2 * prefixes
  for s in jsonl.read_solutions(files[1]):
    # Of what could be told: the first completion alone.
    assert {*s.labels[:-1]} <= {0.0, 1.0}


def test_what_no_completion_can_tell_is_null(
  testbed, files, capfd, monkeypatch
):
  def none_can_be_told(*_):
    return lambda solutions: [None] * len(solutions)

  monkeypatch.setattr(pool, "verifier", none_can_be_told)
  assert _run(*_monte_carlo(files)) == 0
  said = _said(capfd.readouterr().out)
  assert said["without labels: no step could be told"] == 18
  assert said["solutions labelled"] == said["steps labelled"] == 0


def test_empty_completions_and_those_without_an_answer_are_counted(
  testbed, files, capfd
):
  def says_little(prefixes, n, tell):
    """Empty, no answer, and an answer."""
    return [
      [
        dataclasses.replace(s, steps=p.steps if i == 0 else s.steps[:-1] + end)
        for i, (s, end) in enumerate(
          zip(row, ((), ("well",), (f"answer {_reference(p)}",)), strict=True)
        )
      ]
      for p, row in zip(prefixes, _complete(prefixes, n, tell), strict=True)
    ]

  testbed(says_little)
  assert _run(*_monte_carlo(files, "--completions=3")) == 0
  said = _said(capfd.readouterr().out)
  prefixes = said["distinct prefixes"]
  assert said["rollouts"] == 3 * prefixes
  assert said["empty"] == prefixes and said["no answer"] == 2 * prefixes
  for s in jsonl.read_solutions(files[1]):
    assert s.labels[:-1] == pytest.approx([1 / 3] * (len(s.steps) - 1))


def _reference(solution):
  return arithmetic.answer(solution.problem)


def test_solutions_without_a_reference_or_steps_keep_their_line(
  testbed, files, capfd, refused
):
  solutions = _solutions()
  lost = solutions[0].problem
  bare = [
    dataclasses.replace(s, extra={}, labels=(1.0,) * len(s.steps))
    if s.problem == lost
    else s
    for s in solutions
  ]
  bare[1] = dataclasses.replace(bare[1], steps=())
  jsonl.write_solutions(files[0], bare)
  # In a batch there may be nothing at all to label.
  assert _run(*_monte_carlo(files, "--batch=1")) == 0
  said = _said(capfd.readouterr().out)
  assert said["without labels: no reference answer"] == 3
  assert said["without labels: no steps"] == 1
  assert said["had labels already, which these replace"] == 3
  assert said["solutions labelled"] == 14
  # And nothing was rolled out from what can't be labelled.
  able = [s for s in bare if s.problem != lost and s.steps]
  assert said["prefixes"] == sum(len(s.steps) - 1 for s in able)
  found = jsonl.read_solutions(files[1])
  assert [s.id for s in found] == [s.id for s in bare]
  # Labels of before aren't taken for those of this run.
  assert all(s.labels is None for s in found if s.problem == lost)

  # Where none has one there is nothing to do, unless a file has the answers.
  none = [dataclasses.replace(s, extra={}) for s in solutions]
  jsonl.write_solutions(files[0], none)
  refused(_monte_carlo(files), "reference_answer", "--problems=FILE")
  problems = [
    schema.Problem(s.id, s.problem, arithmetic.answer(s.problem))
    for s in solutions[:6]
  ]
  path = files[0].with_name("problems.jsonl")
  jsonl.write_problems(path, problems)
  options = (f"--problems={path}", "--fresh")
  assert _run(*_monte_carlo(files, *options)) == 0
  by_file = files[1].read_bytes()
  jsonl.write_solutions(files[0], solutions)
  assert _run(*_monte_carlo(files, "--fresh")) == 0
  assert files[1].read_bytes() == by_file


def test_two_answers_to_one_problem_are_refused(testbed, files, refused):
  solutions = _solutions()
  wrong = dict(reference_answer="9")
  solutions[7] = dataclasses.replace(solutions[7], extra=wrong)
  jsonl.write_solutions(files[0], solutions)
  words = (solutions[1].id, solutions[7].id, "'9'", "same problem")
  refused(_monte_carlo(files), *words)
  other = dict(reference_answer=9)
  solutions[7] = dataclasses.replace(solutions[7], extra=other)
  jsonl.write_solutions(files[0], solutions)
  refused(_monte_carlo(files), solutions[7].id, "must be str, found int")


def test_what_cant_be_is_refused_before_any_work(
  testbed, files, refused, tmp_path
):
  for option, *words in (
    ("--shard=3/2", "--shard=3/2", "0 <= i < n"),
    ("--shard=1", "--shard=1", "such as 0/8"),
    ("--batch=0", "--batch=0"),
    ("--completions=0", "completions=0"),
    ("--threshold=0.5", "take hard labels"),
    ("--grader=sympy", "--grader", "math_verify"),
    ("--input=nowhere.jsonl", "nowhere.jsonl: no such file"),
    ("--seed=-1", "--seed"),
    (f"--output={files[0]}", "is read by this command"),
  ):
    refused(_monte_carlo(files, option), *words)
  refused(["label"], "KIND")
  with files[0].open("a") as f:
    f.write(json.dumps(dict(id="x", problem="1", steps=[])) + "\n")
    f.write(json.dumps(dict(id="x", problem="2", steps=[])) + "\n")
  refused(_monte_carlo(files), f"{files[0]}:20", "'x'", f"{files[0]}:19")
  files[0].write_text("")
  refused(_monte_carlo(files), "no solution")
  jsonl.write_solutions(files[0], _solutions())
  files[1].write_text("hours of work\n")
  refused(_monte_carlo(files), "is there already", "--fresh")


def test_a_policy_that_isnt_there_or_isnt_one_is_named(models, files, refused):
  for name, *words in (
    (models / "nowhere", "nowhere: not a checkpoint folder"),
    (models / "prm", "holds a prm", "policy"),
    ("gs://bucket/x", "aren't supported"),
  ):
    refused(_monte_carlo(files, f"--policy={name}"), *words)
  policy = f"--policy={models / 'policy'}"
  refused(_monte_carlo(files, policy, "--step=7"), "no checkpoint of step 7")
  refused(_monte_carlo(files, policy, "--top_p=0"), "top_p")


# --- An endpoint -------------------------------------------------------------


class _Served(http.server.BaseHTTPRequestHandler):
  """Says "answer 1" or "answer 2", by the request's seed."""

  def log_message(self, *_):
    pass

  def do_POST(self):
    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    self.server.asked.append(body)
    choice = dict(
      text=f"answer {body['seed'] % 2 + 1}",
      finish_reason="stop",
      logprobs=dict(token_logprobs=[-0.5], tokens=["x"]),
    )
    usage = dict(prompt_tokens=7, completion_tokens=2)
    content = json.dumps(dict(choices=[choice], usage=usage)).encode()
    self.send_response(200)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)


def test_an_endpoint_labels_and_what_it_said_is_kept(files, capfd, refused):
  jsonl.write_solutions(files[0], [_short("a", "answer 2")])
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Served)
  server.asked = asked = []
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    url = f"--policy=http://127.0.0.1:{server.server_port}/v1"
    options = (url, "--model=m", "--max_tokens=4", "--prompt=Q: {problem}")
    command = _monte_carlo(files, *options)
    assert _run(*command) == 0
    said = _said(capfd.readouterr().out)
    assert said["rollouts"] == said["endpoint completions"] == 8
    assert said["endpoint requests"] == len(asked) == 8
    assert {body["prompt"][:3] for body in asked} == {"Q: "}
    # The label of a step is the share of those that went on from it.
    seeds = {body["seed"]: body["prompt"] for body in asked}
    last = [n % 2 for n, x in seeds.items() if x.endswith("\n\n+1\n\n")]
    (found,) = jsonl.read_solutions(files[1])
    assert len(last) == 4 and found.labels[1:] == (sum(last) / 4, 1)
    # The journal is emptied, the replies aren't: nothing is asked again.
    kept = files[1].read_bytes()
    assert _run(*command, "--fresh") == 0
    assert len(asked) == 8 and files[1].read_bytes() == kept
    assert _said(capfd.readouterr().out)["endpoint from journal"] == 8
    refused(_monte_carlo(files, url), "--model")
    refused(_monte_carlo(files, *options, "--step=3"), "--step=3")
    in_clear = ("--policy=http://h/v1", "--model=m", "--key_variable=K")
    refused(_monte_carlo(files, *in_clear), "or set --insecure_key")
  finally:
    server.shutdown()
    server.server_close()


# --- omega_prm ---------------------------------------------------------------


def test_omega_prm_takes_problems_and_writes_the_rollouts_it_searched(
  testbed, files, capfd, refused
):
  random = np.random.default_rng(0)
  problems = arithmetic.problems(8, "train", arithmetic.Task(), random)
  problems = [
    dataclasses.replace(p, answer=arithmetic.answer(p.problem))
    for p in problems
  ]
  problems[3] = dataclasses.replace(problems[3], answer=None)
  jsonl.write_problems(files[0], problems)

  def omega(output, *options):
    return _run(
      *("label", "omega_prm", f"--input={files[0]}", f"--output={output}"),
      *("--policy=testbed", "--completions=4", "--root_rollouts=6"),
      *("--searches=3", *options),
    )

  assert omega(files[1], "--batch=2") == 0
  out = capfd.readouterr().out
  said = _said(out)
  able = [
    schema.Solution(p.id, p.problem, (), extra=dict(reference_answer=p.answer))
    for p in problems
    if p.answer is not None
  ]

  def verify(whole):
    return [
      answers.extract(list(s.steps)) == arithmetic.answer(s.problem)
      for s in whole
    ]

  expected, work = omega_prm.label(
    able,
    lambda prefixes, n: _complete(prefixes, n, lambda done: None),
    verify,
    omega_prm.Options(completions=4, root_rollouts=6, searches=3),
  )
  found = jsonl.read_solutions(files[1])
  assert found and found == expected
  for name, count in work.items():
    assert said[name.replace("_", " ")] == count, name
  assert said["without labels: no reference answer"] == 1
  assert f"{omega_prm.ratio(work):.1f} times the rollouts" in out
  options = ("--max_rollouts=9", "--segments=2", "--hard", "--fresh")
  code = omega(files[1].with_name("other.jsonl"), *options)
  assert code == 1 and "tokens" in capfd.readouterr().err  # pieces need them
  options = (options[0], *options[2:])
  other = _head(omega, files[1].with_name("other.jsonl"), *options)
  found = json.loads(other)["depends_on"]
  names = ("completions", "root_rollouts", "searches", "max_rollouts", "hard")
  assert [found[name] for name in names] == [4, 6, 3, 9, True]
  # Shards of problems, too.
  lines = []
  for i in range(2):
    shard = files[1].with_name(f"{i}.jsonl")
    assert omega(shard, f"--shard={i}/2") == 0
    lines += shard.read_bytes().splitlines()
  assert sorted(lines) == sorted(files[1].read_bytes().splitlines())
  jsonl.write_problems(files[0], [problems[0], problems[0]])
  twice = ("label", "omega_prm", f"--input={files[0]}", "--policy=testbed")
  refused([*twice, f"--output={files[1]}"], f"{files[0]}:2", "was used at")


# --- judge --------------------------------------------------------------------


def test_a_judge_marks_solutions_that_nobody_has_answers_to(
  testbed, files, capfd, refused
):
  def critic(prefixes, n, tell):
    """Says of the first paragraph that it is wrong, or can't be read."""
    tell(n * len(prefixes))
    texts = ("so \\boxed{0}", "so \\boxed{-1}", "nothing")
    extra = dict(stopped="end", ended=True, num_tokens=5)
    return [
      [
        schema.Solution(f"{p.id}/{i}", p.problem, (texts[i],), extra=extra)
        for i in range(n)
      ]
      for p in prefixes
    ]

  testbed(critic)
  solutions = [dataclasses.replace(s, extra={}) for s in _solutions()]
  solutions[2] = dataclasses.replace(solutions[2], steps=())
  jsonl.write_solutions(files[0], solutions)
  judge = [
    *("label", "judge", f"--input={files[0]}", f"--output={files[1]}"),
    *("--policy=testbed", "--template=processbench"),
  ]
  refused([*judge, "--min_votes=4", "--votes=3"], "votes")
  by_words = [*judge, "--vote=log_likelihood"]
  refused(by_words, "no word per step")
  refused([*by_words, "--template=thinkprm"], "no log-probabilities")
  assert _run(*judge, "--votes=3", "--min_votes=2", "--batch=5") == 0
  found = jsonl.read_solutions(files[1])
  assert [s.id for s in found] == [s.id for s in solutions]
  asked = prm_jax.Judge("testbed", votes=3, min_votes=2)
  whole = [s for s in solutions if s.steps]
  assert _told(asked(whole)) == _told(s for s in found if s.steps)
  for s in found:
    assert "critiques" not in s.extra
    assert s.labels == (None if not s.steps else (0.5,) * len(s.steps))
  said = _said(capfd.readouterr().out)
  assert said["solutions labelled"] == 17 and said["unparsable"] == 17
  assert said["without labels: no steps"] == 1
  refused([*judge, "--votes=3"], "min_votes was 2 and is 1", "--fresh")
  assert _run(*judge, "--votes=2", "--keep_texts", "--fresh") == 0
  kept = jsonl.read_solutions(files[1])[0].extra["critiques"]
  assert kept == ["so \\boxed{0}", "so \\boxed{-1}"]


# --- consensus ---------------------------------------------------------------


def test_consensus_keeps_what_two_files_agree_on(files, capfd, refused):
  a, b = files[0], files[0].with_name("b.jsonl")
  solution = schema.Solution("both", "p", ("x", "y", "z"))
  same = dataclasses.replace(solution, labels=(0.5, 0.0, 0.0))
  other = dataclasses.replace(solution, id="one")
  jsonl.write_solutions(
    a, [same, dataclasses.replace(other, labels=(1.0, 1.0, 0.2))]
  )
  jsonl.write_solutions(
    b,
    [
      dataclasses.replace(other, labels=(1.0, 1.0, 0.2)),
      dataclasses.replace(same, labels=(0.9, 0.4, 0.8)),
    ],
  )
  command = ["label", "consensus", f"--input={a}", f"--output={files[1]}"]
  both = [*command, f"--input={b}"]
  above = ("--above_a=0", "--above_b=0.5")
  assert _run(*both, *above) == 0
  assert jsonl.read_solutions(files[1])[0].labels == (1, 0, None)
  said, _, agreed = capfd.readouterr().out.partition("\nagreement of ")
  assert _said(said) == {"kept": 1, "error only in b": 1}
  assert agreed.startswith("2 labellers on 2 solutions of 1 problems\n")
  assert _run(*both, *above, "--labels=b") == 0
  assert jsonl.read_solutions(files[1])[0].labels == (0.9, 0.4, 0.8)
  refused([*both], "--above_a, --above_b")
  refused([*both, "--above_a=2", *above[1:]], "above_a=2")
  refused([*command, f"--input={files[1]}", *above], "is read by this command")
  refused([*command, *above], "1 x --input: give two")


# --- select -----------------------------------------------------------------


@pytest.fixture
def judged(files):
  """Puts outcomes into the input, and scores beside it."""
  random = np.random.default_rng(0)
  solutions = [
    dataclasses.replace(arithmetic.judge(s), labels=None)
    for s in _solutions(count=4, samples=8)
  ]
  jsonl.write_solutions(files[0], solutions)
  scores = files[0].with_name("scores.jsonl")
  rows = [
    dict(id=s.id, step_scores=random.uniform(size=len(s.steps)).tolist())
    for s in solutions
  ]
  files_lib.write_records(scores, rows)
  return files, scores, solutions, {r["id"]: r["step_scores"] for r in rows}


def test_select_takes_the_convincing_wrong_ones_and_not_twice(judged, capfd):
  files, scores, solutions, by_id = judged
  select = functools.partial(_monte_carlo, kind="select")
  by = f"--scores={scores}"
  options = (by, "--budget=5", "--wrong_share=1", "--aggregate=min")
  assert _run(*select(files, *options)) == 0
  wrong = sorted(
    (s for s in solutions if not s.outcome), key=lambda s: -min(by_id[s.id])
  )
  found = jsonl.read_solutions(files[1])
  assert {s.id for s in found} == {s.id for s in wrong[:5]}
  said = _said(capfd.readouterr().out)
  assert said["convincing wrong"] == said["answer wrong"] == 5
  # What was chosen and labelled isn't chosen again,
  then = (files[0], files[1].with_name("then.jsonl"))
  assert _run(*select(then, *options, f"--labelled={files[1]}")) == 0
  found = jsonl.read_solutions(then[1])
  assert {s.id for s in found} == {s.id for s in wrong[5:10]}
  assert _said(capfd.readouterr().out)["labelled already"] == 5
  # nor is what has labels in the pool itself.
  first = {s.id for s in wrong[:5]}
  labelled = [
    dataclasses.replace(s, labels=(None,) * (len(s.steps) - 1) + (0.0,))
    if s.id in first
    else s
    for s in solutions
  ]
  jsonl.write_solutions(files[0], labelled)
  again = (files[0], files[1].with_name("again.jsonl"))
  assert _run(*select(again, *options)) == 0
  assert [s.id for s in jsonl.read_solutions(again[1])] == [s.id for s in found]


def test_select_per_problem_is_the_same_on_shards(judged):
  files, scores, _, _ = judged
  for how in (f"--scores={scores}", "--random"):
    options = (how, "--per_problem=2", "--seed=3")
    lines = []
    for i, shard in enumerate(("0/1", "0/2", "1/2")):
      at = (files[0], files[1].with_name(f"{i}.jsonl"))
      command = _monte_carlo(at, *options, f"--shard={shard}", kind="select")
      assert _run(*command) == 0
      lines.append(at[1].read_text().splitlines())
    assert sorted(lines[1] + lines[2]) == sorted(lines[0])
    assert len(lines[0]) == 8


def test_select_scores_by_a_checkpoint_as_it_says(files, models):
  pool = [_short(f"s{i}", f"{i}", outcome=i == 2) for i in range(9)]
  jsonl.write_solutions(files[0], pool)
  scores = files[0].with_name("by_prm.jsonl")
  by = f"--checkpoint={models / 'prm'}"
  assert _run("score", by, f"--input={files[0]}", f"--output={scores}") == 0
  ways = [(by,), (f"--scores={scores}", "--aggregate=min")]
  outputs = []
  for i, way in enumerate(ways):
    at = (files[0], files[1].with_name(f"{i}.jsonl"))
    assert _run(*_monte_carlo(at, *way, "--budget=5", kind="select")) == 0
    outputs.append(at[1].read_bytes())
  assert outputs[0] == outputs[1]


def test_select_refuses_what_it_cant_choose_from(judged, refused):
  files, scores, solutions, _ = judged
  select = functools.partial(_monte_carlo, files, kind="select")
  by = f"--scores={scores}"
  refused(select(by), "--budget", "--per_problem")
  refused(select(by, "--budget=0"), "1 or more")
  refused(select("--budget=3"), "--checkpoint or --scores")
  refused(select(by, "--budget=3", "--shard=0/2"), "--per_problem alone")
  refused(select(by, "--budget=3", "--wrong_share=2"), "wrong_share")
  refused(select(by, "--budget=3", "--labelled=no.jsonl"), "no.jsonl")
  unknown = [dataclasses.replace(s, outcome=None) for s in solutions]
  jsonl.write_solutions(files[0], unknown)
  refused(select(by, "--budget=3"), "outcome")


# --- The page ---------------------------------------------------------------


def test_the_page_on_labelling_prints_what_its_commands_print(
  tmp_path, monkeypatch, capsys
):
  page = pathlib.Path(__file__).parents[2] / "docs" / "labelling.md"
  blocks = page.read_text(encoding="utf-8").split("```")[1::2]
  names = ("pool", "scores", "mc", "judged")
  texts = [b.removeprefix("json\n") for b in blocks if b[:4] == "json"]
  monkeypatch.chdir(tmp_path)
  for name, text in zip(names, texts, strict=True):
    pathlib.Path(f"{name}.jsonl").write_text(text, encoding="utf-8")
  runs = [run for b in blocks for run in b.split("\n$ ")[1:]]
  assert [run.split()[2] for run in runs] == ["select", "consensus"]
  for run in runs:
    command, _, printed = run.partition("\n")
    assert _run(*shlex.split(command)[1:]) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).strip() == printed.strip(), command


def test_the_pages_commands_are_read_as_they_are_written():
  """Options that a page names but the command lacks would be refused."""
  docs = pathlib.Path(__file__).parents[2] / "docs"
  block = (docs / "labelling.md").read_text(encoding="utf-8")
  commands = re.findall(r"prm-jax (label (?:[^`'#\n]|\n  )+)", block)
  assert len(commands) >= 5
  parser = main._parser()
  for command in commands:
    if "KIND" not in command:
      words = shlex.split(command.replace("$SLURM_ARRAY_TASK_ID", "3"))
      assert parser.parse_args(words).command == words[1]
