"""Laws of converting and splitting sets."""

import dataclasses
import itertools
import re
import typing

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.datasets import convert
from prm_jax.datasets import data_inputs
from prm_jax.datasets import datasets
from prm_jax.datasets import decontamination
from prm_jax.datasets import formats
from prm_jax.datasets.formats import prmbench
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import evaluate_prmbench
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.runtime import files
from prm_jax.text import encoding
from prm_jax.text import messages
from prm_jax.text import segmenters


def _solution(i=0, **changes):
  values = dict(
    id=f"s{i}",
    problem=f"What is {i}?",
    steps=("a", "b"),
    labels=(1.0, 0.0),
    answer="3",
    outcome=False,
    source="me",
  )
  return schema.Solution(**(values | changes))


def _write(path, *solutions):
  jsonl.write_solutions(path, solutions)
  return "jsonl", path


def _read(name, path):
  return sources.read(name, path)[0]


def test_what_the_form_has_no_place_for_is_counted(tmp_path):
  source = _write(
    tmp_path / "in.jsonl", _solution(0), _solution(1, answer=None)
  )
  output = tmp_path / "out.jsonl"
  done = convert.convert(source, "stepwise", output)
  assert (done.solutions, done.rows) == (2, 2)
  assert done.changed == dict(id=2, answer=1, outcome=2, source=2)
  a, b = _read("stepwise", output)
  assert a.problem == "What is 0?" and b.labels == (1.0, 0.0)
  same = convert.convert(source, "jsonl", tmp_path / "same.jsonl")
  assert same.changed == {}
  assert convert.texts(same, "in", "out", "jsonl")[1] == (
    "they read back the same"
  )


def test_further_fields_that_are_lost_are_counted_by_name(tmp_path):
  extra = dict(generator="g", level=3)
  source = _write(
    tmp_path / "in.jsonl", _solution(0, extra=extra), _solution(1)
  )
  kept = convert.convert(source, "jsonl", tmp_path / "same.jsonl")
  assert kept.changed == {}
  done = convert.convert(source, "processbench", tmp_path / "out.json")
  assert done.changed == dict(answer=2, source=2, level=1)
  said = convert.texts(done, "in", "out", "processbench")[1]
  assert said.endswith("but for: answer of 2, source of 2, level of 1")


def test_what_the_form_cant_hold_is_an_error_or_counted(tmp_path):
  solutions = [
    _solution(0),
    _solution(1, labels=(0.5, 0.0)),
    _solution(2, labels=(0.25, 1.0)),
    _solution(3, labels=(1.0, 1.0)),
    _solution(4, labels=None),
  ]
  source = _write(tmp_path / "in.jsonl", *solutions)
  output = tmp_path / "out.jsonl"
  with pytest.raises(errors.InputError, match="solution 's1': ProcessBench"):
    convert.convert(source, "processbench", output)
  assert not output.exists()
  done = convert.convert(source, "processbench", output, skip=True)
  assert [s.id for s in _read("processbench", output)] == ["s0", "s3"]
  assert sorted(done.left_out.values()) == [1, 2]
  assert all(why.startswith("solutions refused: ") for why in done.left_out)
  assert done.changed == dict(answer=2, source=2)


def test_forms_of_one_solution_for_each_label_say_so(tmp_path):
  source = _write(tmp_path / "in.jsonl", _solution())
  done = convert.convert(source, "math_aps", tmp_path / "out.jsonl")
  assert (done.solutions, done.rows, done.changed) == (1, 1, None)
  assert len(_read("math_aps", tmp_path / "out.jsonl")) == 2


def test_a_row_that_breaks_while_it_is_read_back_is_no_mismatch(
  tmp_path, monkeypatch
):
  """InputError is a ValueError, as is zip's for unequal lengths.

  The output isn't left there.
  """
  source = _write(tmp_path / "in.jsonl", _solution())
  real = sources.stream

  def stream(name, path, left_out):
    if name == "stepwise":
      raise errors.InputError("broken")
    return real(name, path, left_out)

  monkeypatch.setattr(sources, "stream", stream)
  with pytest.raises(errors.InputError, match="broken"):
    convert.convert(source, "stepwise", tmp_path / "out.jsonl")
  assert not (tmp_path / "out.jsonl").exists()


def test_skipping_keeps_what_only_its_neighbours_complete(tmp_path):
  prefixes = [
    _solution(0, steps=("a",), labels=(0.5,)),
    _solution(0, id="deeper", labels=(None, 1.0)),
  ]
  source = _write(tmp_path / "in.jsonl", *prefixes)
  done = convert.convert(source, "math_aps", tmp_path / "out.jsonl", skip=True)
  assert (done.solutions, done.rows, dict(done.left_out)) == (2, 1, {})


def test_ratings_become_labels_only_by_a_policy(tmp_path):
  rated = _solution(labels=None, ratings=(0, -1))
  source = _write(tmp_path / "in.jsonl", rated)
  output = tmp_path / "out.jsonl"
  with pytest.raises(errors.InputError, match="`neutral=good`, bad or"):
    convert.convert(source, "stepwise", output, skip=True)
  for neutral, label in (("good", 1.0), ("bad", 0.0)):
    policy = encoding.LabelPolicy(neutral, "keep")
    convert.convert(source, "stepwise", output, policy=policy)
    assert _read("stepwise", output)[0].labels == (label, 0.0)
  # A form with ratings keeps them.
  convert.convert(source, "prm800k", output)
  assert _read("prm800k", output)[0].ratings == (0, -1)


def test_filling_cuts_behind_the_last_label_and_completes_before_it():
  policy = encoding.LabelPolicy("bad", "keep")

  def filled(labels, policy=policy, **extra):
    solution = _solution(
      steps=tuple("abcd"), labels=labels, ratings=None, extra=extra
    )
    found = convert.filled(solution, policy)
    return found.steps, found.labels

  assert filled((None, 0.5, None, None)) == (("a", "b"), (1.0, 0.5))
  assert filled((1.0, 0.0, 0.5, 1.0))[1] == (1.0, 0.0, 0.5, 1.0)
  nothing = (None,) * 4
  assert filled(nothing) == (tuple("abcd"), nothing)
  # What people rated on the path is not called right if it wasn't.
  last = (None, None, None, 1.0)
  path = dict(path_ratings=[1, 0, None])
  assert filled(last, **path)[1] == (1.0, 0.0, 1.0, 1.0)
  good = encoding.LabelPolicy("good", "keep")
  assert filled(last, good, **path)[1] == (1.0, 1.0, 1.0, 1.0)


def test_no_file_is_read_and_written_at_once(tmp_path, monkeypatch):
  source = _write(tmp_path / "in.jsonl", *map(_solution, range(50)))
  link = tmp_path / "link.jsonl"
  link.symlink_to(source[1])
  for output in (source[1], link):
    with pytest.raises(errors.InputError, match="give another"):
      convert.convert(source, "jsonl", output)
  with pytest.raises(errors.InputError, match="give another"):
    convert.split(source, "jsonl", tmp_path / "a", tmp_path / "a", 0.5)
  with pytest.raises(errors.InputError, match="give another"):
    convert.split(source, "jsonl", source[1], tmp_path / "a", 0.5)
  # Also where it lies below PRM_JAX_DATA.
  monkeypatch.setenv("PRM_JAX_DATA", str(tmp_path))
  with pytest.raises(errors.InputError, match="give another"):
    convert.convert(("jsonl", "in.jsonl"), "jsonl", source[1])
  assert len(_read(*source)) == 50


def test_a_form_that_isnt_one_is_named(tmp_path):
  source = _write(tmp_path / "in.jsonl", _solution())
  with pytest.raises(
    errors.InputError, match="`to=csv`: expected one of agent_process_bench"
  ):
    convert.convert(source, "csv", tmp_path / "out")


def test_a_split_is_the_holdout_of_training(tmp_path):
  solutions = [
    _solution(2 * i + k, problem=f"{'Is ' * k}{i} + {i}?")
    for i, k in itertools.product(range(100), range(2))
  ]
  source = _write(tmp_path / "in.jsonl", *solutions)
  paths = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
  done = convert.split(source, "jsonl", *paths, 0.2)
  train, test = (_read("jsonl", path) for path in paths)
  config = sources.CorpusConfig((f"jsonl:{source[1]}",), holdout=0.2)
  held = sources.load(config)
  assert [s.id for s in train] == [s.id for s in held.train]
  assert [s.id for s in test] == [s.id for s in held.held_out]
  assert done.train == (len(train), len({s.problem for s in train}))
  assert done.test == (len(test), len({s.problem for s in test}))
  assert not done.left_out


def test_no_problem_is_on_both_sides_however_it_is_laid_out(tmp_path):
  solutions = [
    _solution(3 * i + k, problem=text.format(i))
    for i in range(60)
    for k, text in enumerate(("Is {} $x$?", "is  {} x", "IS {}X"))
  ]
  source = _write(tmp_path / "in.jsonl", *solutions)
  paths = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
  convert.split(source, "jsonl", *paths, 0.3)
  train, test = (
    {sources.problem_key(s.problem) for s in _read("jsonl", path)}
    for path in paths
  )
  assert not train & test and len(train) + len(test) == 60
  before = [path.read_bytes() for path in paths]
  convert.split(source, "jsonl", *paths, 0.3)
  assert [path.read_bytes() for path in paths] == before


def test_problems_of_a_test_set_never_get_into_training(tmp_path):
  source = _write(tmp_path / "in.jsonl", *map(_solution, range(60)))
  banned = [_solution(i, problem=f"  what is {i}") for i in range(30)]
  index = decontamination.index(banned)
  paths = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
  options = dict(share=0.3, against=index)
  with pytest.raises(errors.InputError, match="problems of its training side"):
    convert.split(source, "jsonl", *paths, **options)
  assert not paths[0].exists() and not paths[1].exists()
  done = convert.split(source, "jsonl", *paths, skip=True, **options)
  train, test = (_read("jsonl", path) for path in paths)
  keys = {sources.problem_key(s.problem) for s in train}
  assert not keys & index.by_key.keys()
  # The test side may hold them: it is no training.
  (left_out,) = done.left_out.values()
  assert len(train) + len(test) + left_out == 60
  assert left_out > 10 and done.train[0] == len(train)


def test_a_split_that_the_form_cant_hold_writes_neither_side(tmp_path):
  solutions = [_solution(i) for i in range(40)]
  sides = [sources.share(s.problem) < 0.3 for s in solutions]
  soft = solutions[sides.index(True)].id
  source = _write(
    tmp_path / "in.jsonl",
    *(
      _solution(i, labels=(0.5, 0.0)) if s.id == soft else s
      for i, s in enumerate(solutions)
    ),
  )
  paths = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
  with pytest.raises(errors.InputError, match=f"solution '{soft}'"):
    convert.split(source, "processbench", *paths, 0.3)
  assert not paths[0].exists() and not paths[1].exists()


def test_a_side_without_a_problem_is_refused(tmp_path):
  source = _write(tmp_path / "in.jsonl", *map(_solution, range(3)))
  paths = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
  for share, side in ((1e-6, "test"), (1 - 1e-6, "train")):
    with pytest.raises(errors.InputError, match=f"`{side}`: no problem"):
      convert.split(source, "jsonl", *paths, share)
  for share in (0.0, 1.0, float("nan")):
    with pytest.raises(errors.InputError, match="share"):
      datasets.Split(share=share)


@pytest.mark.real_data
def test_prm800k_becomes_trls_form_with_every_rating(public_data, tmp_path):
  path = public_data("formats", "samples_prm800k.jsonl")
  output = tmp_path / "out.jsonl"
  policy = encoding.LabelPolicy("bad", "keep")
  source = ("prm800k", path)
  done = convert.convert(source, "stepwise", output, policy=policy, fill=True)
  assert done.solutions == done.rows == 35
  given = {-1: 0.0, 0: 0.0, 1: 1.0}
  zeros = 0
  pairs = zip(_read(*source), _read("stepwise", output), strict=True)
  for rated, labelled in pairs:
    end = len(labelled.steps)
    assert rated.steps[:end] == labelled.steps
    # One walk was given up behind a step that a person had written.
    assert set(rated.ratings[end:]) <= {None}
    path = rated.extra.get("path_ratings", ())
    ratings = [*path, *rated.ratings[len(path) :]]
    expected = tuple(given.get(rating, 1.0) for rating in ratings)
    assert labelled.labels == expected[:end]
    zeros += 0 in path
  assert zeros
  assert done.left_out == dict(screening_rows=1)


def test_prmbenchs_controls_are_those_that_its_evaluation_scores(
  tmp_path, capsys
):
  original = dict(problem="p?", steps=["a", "b"])
  rows = [
    _solution(
      problem="p?" if kind != "deception" else "q?",
      answer=None,
      outcome=None,
      extra=dict(classification=kind, problem_id=index, original=original),
    )
    for kind, index in (
      ("redundency", "p"),
      ("circular", "p"),
      ("redundency", "q"),
      ("deception", "r"),
    )
  ]
  source = "prmbench", tmp_path / "in.jsonl"
  prmbench.write(source[1], rows)
  output = tmp_path / "out.jsonl"
  words = ["data", "convert", f"--format={source[0]}", str(source[1])]
  words += ["--to=jsonl", f"--output={output}"]
  assert main.main(words) == 0
  assert len(_read("jsonl", output)) == 4
  assert main.main([*words, "--controls"]) == 0
  assert "6 solutions" in capsys.readouterr().out
  *_, first, second = written = _read("jsonl", output)
  assert first.id == "prmbench/correct/p" and second.id == "prmbench/correct/q"
  assert (first.steps, first.labels) == (("a", "b"), (1.0, 1.0))
  # Scores of the written file are all that its evaluation asks for.
  scores = tmp_path / "scores.jsonl"
  files.write_records(
    scores, [dict(id=s.id, step_scores=[0.9, 0.1]) for s in written]
  )
  solutions = evaluate.read(*source)
  found = evaluate_prmbench.EvaluatePRMBench(scores=scores)(solutions)
  assert sorted(x["id"] for x in found.samples) == sorted(s.id for s in written)
  assert "left out" not in capsys.readouterr().out
  for wrong in (("jsonl", output), source):
    with pytest.raises(errors.InputError, match="only jsonl holds"):
      to = "jsonl" if wrong is not source else "stepwise"
      convert.convert(wrong, to, tmp_path / "x", controls=True)


def test_what_a_verb_gives_in_memory_is_what_its_command_writes(tmp_path):
  rated = [_solution(i, labels=None, ratings=(1, i % 3 - 1)) for i in range(40)]
  given, output = _write(tmp_path / "in.jsonl", *rated)[1], tmp_path / "out"
  words = ("--to=jsonl", "--neutral=bad", "--fill", f"--output={output}")
  assert main.main(["data", "convert", str(given), *words]) == 0
  verb = datasets.Convert("jsonl", neutral="bad", fill=True)
  expected = [(s.id, s.steps, s.labels) for s in _read("jsonl", output)]
  assert [(s.id, s.steps, s.labels) for s in verb(rated)] == expected
  assert {x for *_, labels in expected for x in labels} == {0.0, 1.0}

  paths = tmp_path / "train", tmp_path / "test"
  against = (f"jsonl:{_write(tmp_path / 'b', *rated[:9])[1]}",)
  split = datasets.Split(against, share=0.3, skip=True)
  split.run(datasets.SplitJob(data_inputs.Source(given), *paths))
  written = [[s.id for s in _read("jsonl", path)] for path in paths]
  parts = split(rated)
  assert [[s.id for s in part] for part in parts] == written
  assert all(written) and sum(map(len, written)) < len(rated)


def test_what_no_value_of_a_verb_can_be_is_refused_in_python():
  for refused, message in (
    (
      lambda: datasets.Convert("csv"),
      "`to=csv`: expected one of agent_process_bench",
    ),
    (
      lambda: datasets.Split(to="csv"),
      "`to=csv`: expected one of agent_process_bench",
    ),
    (
      lambda: datasets.Convert("jsonl", after_first_error="bad"),
      "give `neutral` with it",
    ),
    (lambda: data_inputs.Source("x", "prm800k", "a=b"), "leave out `format="),
  ):
    with pytest.raises(errors.InputError, match=re.escape(message)):
      refused()
  # Ratings, where the format holds labels; a label that it can't express.
  for solution, to in (
    (_solution(labels=None, ratings=(1, 0)), "stepwise"),
    (_solution(labels=(0.5, 0.0)), "rlhflow"),
  ):
    with pytest.raises(errors.InputError, match="solution 's0'"):
      datasets.Convert(to)([solution])


def test_the_words_that_the_options_take_are_those_of_the_encoding():
  for words, known in (
    (data_inputs.Neutral, encoding.NEUTRAL),
    (data_inputs.AfterFirstError, encoding.AFTER_FIRST_ERROR),
  ):
    assert typing.get_args(words) == known


# --- Trajectories ------------------------------------------------------------

TRAJECTORY = messages.trajectory(
  [
    dict(role="user", content="How many?", name="ann"),
    dict(
      role="assistant",
      content="",
      tool_calls=[dict(id="c", function=dict(name="sql", arguments={}))],
    ),
    dict(role="tool", tool_call_id="c", content="1"),
    dict(role="assistant", content="One."),
  ],
  id="t",
  labels=(1.0, 0.0),
)
PLAIN = sorted({*formats.FORMATS} - {*formats.OF_TRAJECTORIES})


@pytest.mark.parametrize("to", PLAIN)
def test_no_form_of_plain_steps_takes_a_trajectory(to, tmp_path):
  source = _write(tmp_path / "in.jsonl", TRAJECTORY)
  output = tmp_path / "out.jsonl"
  split = (source, to, tmp_path / "train", tmp_path / "test", 0.5)
  for refused in (
    lambda: convert.convert(source, to, output),
    lambda: datasets.Convert(to)([TRAJECTORY]),
    lambda: convert.split(*split),
  ):
    with pytest.raises(errors.InputError, match=f"'t': .*{to} has no place f"):
      refused()
  assert not output.exists()
  done = convert.convert(source, to, output, skip=True)
  ((reason, count),) = done.left_out.items()
  assert (done.rows, count) == (0, 1) and f"{to} has no place" in reason


def test_what_a_trajectory_loses_in_another_form_is_counted(tmp_path):
  solutions = (TRAJECTORY, _solution())
  source = _write(tmp_path / "in.jsonl", *solutions)
  same = convert.convert(source, "jsonl", tmp_path / "same.jsonl")
  assert same.changed == {}
  done = convert.convert(source, "atif", tmp_path / "out", skip=True)
  # The user's name; and an agent needs a name.
  assert done.changed == dict(source=1, fields_of_messages=1)
  assert [*done.left_out] == ["solutions refused: no messages"]


def test_a_document_of_atif_comes_back_from_a_chat_record(tmp_path):
  document = dict(
    schema_version="ATIF-v1.7",
    agent=dict(name="a", version="1"),
    steps=[dict(step_id=1, source="user", message="Hm?", extra=dict(a=1))],
    trajectory_id="t",
    notes="n",
  )
  files.write_json(tmp_path / "in.json", document)
  source = ("atif", tmp_path / "in.json")
  done = convert.convert(source, "chat", tmp_path / "chat.jsonl")
  assert done.changed == {}
  again = convert.convert(
    ("chat", tmp_path / "chat.jsonl"), "atif", tmp_path / "again.json"
  )
  assert again.changed == {}
  assert files.read_json(tmp_path / "again.json") == document


@pytest.mark.parametrize(
  ("record", "is_kept"),
  [
    (dict(content="a"), True),
    (dict(content=None, logprobs=None), True),
    (dict(role="developer"), False),
    (dict(content=[dict(type="text", text="a", cache_control=dict(x=1))]), False),
    (dict(tool_calls=[dict(id="c", function=dict(name="f", arguments='{"a": [1]}'))]), True),
    (dict(tool_calls=[dict(id="c", function=dict(name="f", arguments={}), index=0)]), False),
    (dict(tool_calls=[dict(id="c", function=dict(name="f", arguments={}, x=[1]))]), False),
  ],
)  # fmt: skip
def test_what_is_lost_within_a_message_is_counted(record, is_kept, tmp_path):
  role = "assistant" if "tool_calls" in record else "user"
  given = messages.trajectory([dict(role=role, content="") | record])
  source = _write(tmp_path / "in.jsonl", given)
  done = convert.convert(source, "atif", tmp_path / "out.json")
  assert ("fields_of_messages" not in done.changed) is is_kept
  assert convert.convert(source, "jsonl", tmp_path / "out").changed == {}


def test_messages_and_tools_that_change_are_counted(tmp_path, monkeypatch):
  source = _write(tmp_path / "in.jsonl", TRAJECTORY)
  said = [dataclasses.replace(x, record={}) for x in TRAJECTORY.messages]
  said[0] = dataclasses.replace(said[0], text="Many?")
  other = dataclasses.replace(TRAJECTORY, messages=said, tools=({},))
  write = jsonl.write
  monkeypatch.setattr(
    jsonl, "write", lambda path, rows: write(path, [other for _ in rows])
  )
  done = convert.convert(source, "jsonl", tmp_path / "out.jsonl")
  assert done.changed == dict(messages=1, tools=1, fields_of_messages=1)


@pytest.mark.parametrize("to", formats.OF_TRAJECTORIES)
def test_ratings_of_turns_stay_ratings(to, tmp_path):
  rated = dataclasses.replace(TRAJECTORY, labels=None, ratings=(0, -1))
  output = tmp_path / "out.jsonl"
  convert.convert(_write(tmp_path / "in.jsonl", rated), to, output)
  assert _read(to, output)[0].ratings == (0, -1)


def test_a_trajectory_is_filled_up_to_its_last_labelled_turn():
  solution = dataclasses.replace(TRAJECTORY, labels=(0.0, None))
  found = convert.filled(solution)
  assert found.steps == TRAJECTORY.steps[:1] and found.labels == (0.0,)
  assert found.messages == TRAJECTORY.messages[:2]
  # With what the user says in the end.
  said = (*TRAJECTORY.messages, schema.Message("user", "Thanks."))
  whole = messages.trajectory(said, labels=(None, 0.0))
  assert convert.filled(whole).messages == said
  assert convert.filled(whole).labels == (1.0, 0.0)


def test_turns_are_cut_by_a_segmenter_and_only_our_form_holds_them(tmp_path):
  said = TRAJECTORY.messages[:-1]
  said += (schema.Message("assistant", "One.\n\nIt is open."),)
  bare = messages.trajectory(said, id="t")
  verb = datasets.Convert("jsonl", segmenter="paragraph")
  (cut,) = verb([bare])
  assert cut.steps == ("sql({})", "One.", "It is open.")
  source = data_inputs.Source(_write(tmp_path / "in.jsonl", bare)[1])
  verb.run(datasets.ConvertJob(source, tmp_path / "out.jsonl"))
  assert _read("jsonl", tmp_path / "out.jsonl")[0].steps == cut.steps
  for to, solution, reason in (
    ("chat", bare, "its turns are cut into steps"),
    ("jsonl", TRAJECTORY, "its labels are of whole turns"),
    ("jsonl", _solution(), "no trajectory of whole turns"),
  ):
    with pytest.raises(errors.InputError, match=reason):
      datasets.Convert(to, segmenter="paragraph")([solution])


def test_the_words_of_the_segmenter_are_those_that_need_no_tokenizer():
  assert {*typing.get_args(datasets.Segmenter)} == {*segmenters.KINDS} - {
    "tokens"
  }
