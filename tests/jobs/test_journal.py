"""A long run: killed anywhere, sharded anyhow, it writes the same labels."""

from collections import Counter
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.jobs import shards
from prm_jax.records import jsonl
from prm_jax.runtime import checked_lines
from prm_jax.runtime import preemption

# Solutions of a problem are apart from each other, and uneven in number.
SOLUTIONS = [
  schema.Solution(f"s{i}", f"problem {(i * i) % 11}", (f"step {i}", "end"))
  for i in range(23)
]
CLAIM = dict(kind="fake", seed=0)


def label(batch):
  """Returns labels by luck that goes by content, and what they cost."""

  def luck(s, k):
    text = json.dumps([s.problem, *s.steps[:k]])
    return hashlib.sha256(text.encode()).digest()[0] / 255

  labelled = [
    dataclasses.replace(s, labels=(luck(s, 1), luck(s, 2))) for s in batch
  ]
  return labelled, dict(rollouts=2 * len(batch), problems=_num_problems(batch))


def _num_problems(solutions):
  return len({s.problem for s in solutions})


def _run(output, solutions=SOLUTIONS, claim=CLAIM, batch_size=4, **options):
  """Returns the work and what was there at the start."""
  batch_label = options.pop("label", label)
  are_new = options.pop("are_new", False)
  with journal.opened(output, solutions, claim, **options) as log:
    ran = journal.run(
      *(log, solutions, journal.in_turn(batch_label)),
      batch_size=batch_size,
      are_new=are_new,
    )
    journal.finish(log, solutions, output)
  return ran.work, log


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
  """Returns the bytes and the work of an uninterrupted run."""
  output = tmp_path_factory.mktemp("whole") / "out.jsonl"
  work, _ = _run(output)
  return output.read_bytes(), work


def test_each_solution_is_written_once_in_the_inputs_order(expected):
  lines, work = expected
  ids = [json.loads(line)["id"] for line in lines.splitlines()]
  assert ids == [s.id for s in SOLUTIONS]
  assert work == dict(rollouts=46, problems=_num_problems(SOLUTIONS))


@given(
  problems=st.lists(st.integers(0, 5), max_size=20),
  batch_size=st.integers(1, 9),
)
def test_a_batch_has_whole_problems_and_at_most_its_size(problems, batch_size):
  solutions = [
    schema.Solution(str(i), str(p), ()) for i, p in enumerate(problems)
  ]
  found = list(journal.batches(solutions, batch_size))
  ids = [s.id for batch in found for s in batch]
  assert Counter(ids) == Counter(s.id for s in solutions)
  sets = [{s.problem for s in batch} for batch in found]
  assert sum(map(len, sets)) == len(set(problems))
  for batch, of in zip(found, sets):
    assert len(batch) <= batch_size or len(of) == 1


def test_batches_change_neither_labels_nor_work(expected, tmp_path):
  for batch_size in (1, 7, 100):
    output = tmp_path / f"{batch_size}.jsonl"
    work, _ = _run(output, batch_size=batch_size)
    assert (output.read_bytes(), work) == expected


def test_a_batch_is_on_disk_before_the_next_one_begins(tmp_path, monkeypatch):
  output, fsync = tmp_path / "out.jsonl", os.fsync
  on_disk = []

  def counted(fd):
    fsync(fd)
    on_disk.append(os.fstat(fd).st_size)

  def after(batch):
    assert on_disk[-1] == journal.path_of(output).stat().st_size
    return label(batch)

  monkeypatch.setattr(os, "fsync", counted)
  # A new file's name is in its folder, which is put on disk, too.
  monkeypatch.setattr(journal, "_sync_folder", lambda folder: None)
  _run(output, label=after)
  assert len(on_disk) == 1 + _num_problems(SOLUTIONS) + 1


# --- Killed --------------------------------------------------------------------

# A process of its own that kills itself, as kill -9 would, at a point that its
# argument names.
CHILD = """
import os, signal, sys
import test_journal
from prm_jax.jobs import journal

output, point = sys.argv[1:]
batches, writes = 0, 0
write, replace = os.write, os.replace

def die():
  os.kill(os.getpid(), signal.SIGKILL)

def label(batch):
  global batches
  batches += 1
  if point == f"batch {batches}":
    die()
  return test_journal.label(batch)

def torn(fd, data):
  global writes
  writes += 1
  if point == f"write {writes}":
    write(fd, data[: len(data) // 2])
    die()
  return write(fd, data)

def late(*paths):
  if point == "rename":
    die()
  replace(*paths)

os.write, os.replace = torn, late
test_journal._run(output, label=label)
"""


def _child(output, point):
  paths = os.pathsep.join(sys.path)
  done = subprocess.run(
    [sys.executable, "-c", CHILD, str(output), point],
    env=os.environ | dict(PYTHONPATH=paths),
    capture_output=True,
    timeout=60,
  )
  return done.returncode


def test_killed_anywhere_and_started_again_it_writes_the_same_bytes(
  expected, tmp_path
):
  for point, torn, resumed in (
    ("batch 1", False, 0),  # the journal holds its head alone
    ("batch 4", False, None),
    ("write 1", True, 0),  # in the middle of the head
    ("write 2", True, 0),  # in the middle of the first batch
    ("write 5", True, None),
    ("rename", False, len(SOLUTIONS)),  # all is journaled, nothing in place
  ):
    output = tmp_path / f"{point}.jsonl"
    assert _child(output, point) == -signal.SIGKILL, point
    assert not output.exists()
    work, log = _run(output)
    assert (output.read_bytes(), work) == expected, point
    assert (log.torn_bytes > 0) == torn, point
    if resumed is None:
      assert 0 < len(log.ids) < len(SOLUTIONS), point
    else:
      assert len(log.ids) == resumed, point


def test_killed_again_and_again_it_comes_to_an_end(expected, tmp_path):
  output, codes = tmp_path / "out.jsonl", []
  while not codes or codes[-1]:
    codes.append(_child(output, "batch 2"))
  assert codes == [-signal.SIGKILL] * (_num_problems(SOLUTIONS) - 1) + [0]
  assert output.read_bytes() == expected[0]


def test_what_is_done_is_not_done_again(expected, tmp_path):
  output = tmp_path / "out.jsonl"
  _run(output)
  output.unlink()

  def never(batch):
    raise AssertionError("labels what was labelled")

  work, log = _run(output, label=never)
  assert (output.read_bytes(), work) == expected
  assert log.ids == {s.id for s in SOLUTIONS}


@pytest.mark.parametrize("cut", [1, 2, 50])
def test_a_torn_last_line_is_cut_off_counted_and_labelled_again(
  cut, expected, tmp_path
):
  output = tmp_path / "out.jsonl"
  _run(output)
  path = journal.path_of(output)
  lines = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b"".join(lines)[:-cut])
  work, log = _run(output)
  assert log.torn_bytes == len(lines[-1]) - cut
  assert (output.read_bytes(), work) == expected
  # A power failure can leave blanks where the line should be.
  path.write_bytes(b"".join(lines[:-1]) + b"\0" * 9 + b"\n")
  _, log = _run(output)
  assert log.torn_bytes == 10 and output.read_bytes() == expected[0]


# --- Refused -------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("num", [0, 2])
def test_a_terminated_run_says_what_is_kept_and_how_to_go_on(
  num, fresh, tmp_path, caplog
):
  output, calls = tmp_path / "out.jsonl", []

  def ended(batch):
    if len(calls) == num:
      raise preemption.PreemptedError
    calls.append(len(batch))
    return label(batch)

  with (
    journal.opened(output, SOLUTIONS, CLAIM, fresh=fresh) as log,
    pytest.raises(preemption.PreemptedError),
  ):
    journal.run(log, SOLUTIONS, journal.in_turn(ended), batch_size=4)
  (record,) = caplog.records
  without = ", without `fresh=True`," if fresh else ""
  again = f"give the same command again{without} to do"
  of = len(SOLUTIONS)
  assert record.getMessage() == f"{output}.journal: SIGTERM: " + (
    f"keeps {sum(calls)} of {of} solutions, those of finished batches; {again}"
    " the rest"
    if num
    else f"no batch was finished yet; {again} all {of} solutions"
  )


def _refused(*words, output, **options):
  with pytest.raises(errors.InputError) as found:
    _run(output, **options)
  message = str(found.value)
  assert "\n" not in message
  for word in words:
    assert word in message, message


def test_another_config_or_input_is_refused_unless_fresh(tmp_path):
  output = tmp_path / "out.jsonl"
  _run(output)
  kept = journal.path_of(output).read_bytes()
  other = dict(kind="fake", seed=1, completions=8)
  _refused(
    "out.jsonl.journal",
    "seed was 0 and is 1; completions was not given and is 8",
    "fresh=True",
    output=output,
    claim=other,
  )
  for changed in (
    dict(steps=("x", "end")),
    dict(problem="x"),
    dict(extra=dict(reference_answer="4")),
  ):
    solutions = [*SOLUTIONS[:-1], dataclasses.replace(SOLUTIONS[-1], **changed)]
    _refused("input was", "fresh=True", output=output, solutions=solutions)
  _refused("solutions was 23", output=output, solutions=SOLUTIONS[1:])
  assert journal.path_of(output).read_bytes() == kept
  _, log = _run(output, claim=other, fresh=True)
  assert not log.ids
  assert journal.path_of(output).read_bytes() != kept


def test_what_isnt_a_journal_is_never_touched(tmp_path):
  output = tmp_path / "out.jsonl"
  path = journal.path_of(output)
  for text in (b"diary", b"diary\n", b'{"a": 1}\n', b"\0\0"):
    for fresh in (False, True):
      path.write_bytes(text)
      _refused("isn't a journal of ours", output=output, fresh=fresh)
      assert path.read_bytes() == text


def test_an_output_without_a_journal_is_replaced_only_if_fresh(tmp_path):
  output = tmp_path / "out.jsonl"
  output.write_text("hours of work\n")
  _refused("is there already", "fresh=True", output=output)
  assert output.read_text() == "hours of work\n"
  assert list(tmp_path.iterdir()) == [output]
  _run(output, fresh=True)
  assert len(jsonl.read_solutions(output)) == len(SOLUTIONS)


def _label_and_note(asked):
  """Returns a labeller that notes which solutions it was given."""

  def noting(batch):
    asked.extend(s.id for s in batch)
    return label(batch)

  return noting


def test_a_damaged_batch_is_labelled_again_and_no_other(
  expected, tmp_path, caplog
):
  output = tmp_path / "out.jsonl"
  _run(output)
  path = journal.path_of(output)
  lines = path.read_bytes().splitlines(keepends=True)
  batch = json.loads(lines[2])
  for bad in (
    b"{}\n",
    lines[2][:-9] + b"\n",
    b"\n",
    lines[2].replace(b'"labels": [0.', b'"labels": [1.', 1),
    lines[2].replace(b'"end"', b'"END"', 1),
    lines[2].replace(batch["ids"][0].encode(), lines[3][10:12], 1),
  ):
    assert bad != lines[2]
    caplog.clear()
    path.write_bytes(b"".join([*lines[:2], bad, *lines[3:]]))
    asked = []
    work, log = _run(output, label=_label_and_note(asked))
    assert asked == batch["ids"]
    assert (output.read_bytes(), work) == expected
    assert log.damaged == (3,) and not log.torn_bytes
    (message,) = caplog.messages
    assert message.startswith(f"{path}:3: WARNING: damaged and not used")
    # What was damaged stays to be looked at.
    content = path.read_bytes().splitlines(keepends=True)
    assert content[2] == bad and content[-1] == lines[2]
    assert len(content) == len(lines) + 1


@settings(max_examples=25)
@given(
  problems=st.lists(st.integers(0, 5), min_size=1, max_size=12),
  batch_size=st.integers(1, 6),
  data=st.data(),
)
def test_whatever_lines_are_lost_their_batches_come_again_as_they_were(
  problems, batch_size, data
):
  """So a model computes the same solutions together."""
  solutions = [
    schema.Solution(str(i), str(p), ("a", "b")) for i, p in enumerate(problems)
  ]
  batches = list(journal.batches(solutions, batch_size))
  lost = data.draw(st.sets(st.sampled_from(range(len(batches)))))
  with tempfile.TemporaryDirectory() as folder:
    output = pathlib.Path(folder, "out.jsonl")
    _run(output, solutions, batch_size=batch_size)
    path = journal.path_of(output)
    head, *lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for i, line in enumerate(lines) if i not in lost]
    path.write_bytes(b"".join([head, *kept]))
    again = []

    def noting(batch):
      again.append(batch)
      return [dataclasses.replace(s, labels=(1.0, 1.0)) for s in batch], {}

    _run(output, solutions, batch_size=batch_size, label=noting)
  assert again == [batches[i] for i in sorted(lost)]


def test_a_lost_batch_is_labelled_again_and_a_repeated_one_used_once(
  expected, tmp_path, caplog
):
  output = tmp_path / "out.jsonl"
  _run(output)
  path = journal.path_of(output)
  lines = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
  asked = []
  work, _ = _run(output, label=_label_and_note(asked))
  assert asked == json.loads(lines[2])["ids"]
  assert (output.read_bytes(), work) == expected
  path.write_bytes(b"".join([*lines[:3], lines[2], *lines[3:]]))
  asked.clear()
  caplog.clear()
  work, _ = _run(output, label=_label_and_note(asked))
  assert not asked
  assert (output.read_bytes(), work) == expected
  (message,) = [m for m in caplog.messages if "WARNING" in m]
  assert message.startswith(f"{path}:4: WARNING: there twice")


def test_two_different_lines_of_one_batch_are_refused(tmp_path):
  output = tmp_path / "out.jsonl"
  _run(output)
  path = journal.path_of(output)
  lines = path.read_bytes().splitlines(keepends=True)
  batch = {k: v for k, v in json.loads(lines[2]).items() if k != "crc32"}
  other = checked_lines.line_of(json.dumps(batch | dict(work={"tokens": 1})))
  path.write_bytes(b"".join([*lines, other.encode()]))
  where = f"{path}:{len(lines) + 1}: solution"
  _refused(where, "line out", output=output)


def test_a_damaged_first_line_is_refused_unless_fresh(expected, tmp_path):
  output = tmp_path / "out.jsonl"
  _run(output)
  path = journal.path_of(output)
  content = path.read_bytes()
  for bad in (
    content.replace(b'"seed": 0', b'"seed": 1', 1),
    content.replace(b'"depends_on": {', b'"depends_on": [', 1),
  ):
    path.write_bytes(bad)
    _refused(f"{path}:1: damaged", "fresh=True", output=output)
    assert path.read_bytes() == bad
  _run(output, fresh=True)
  assert output.read_bytes() == expected[0] and path.read_bytes() == content


def test_damage_during_the_run_never_shortens_the_output(expected, tmp_path):
  output = tmp_path / "out.jsonl"
  path = journal.path_of(output)

  def damaging(batch):
    content = path.read_bytes()
    if content.count(b"\n") == 3:
      path.write_bytes(content.replace(b'"labels": [0.', b'"labels": [1.', 1))
    return label(batch)

  with journal.opened(output, SOLUTIONS, CLAIM) as log:
    journal.run(log, SOLUTIONS, journal.in_turn(damaging), batch_size=4)
    with pytest.raises(errors.InputError, match="was damaged during the run"):
      journal.finish(log, SOLUTIONS, output)
  assert not output.exists()
  _run(output)
  assert output.read_bytes() == expected[0]


def test_a_journal_without_digests_is_resumed(expected, tmp_path):
  """One of a version before them; what is added has some."""
  output = tmp_path / "out.jsonl"
  _run(output)
  path = journal.path_of(output)
  old = []
  for line in path.read_bytes().splitlines()[:4]:
    record = json.loads(line)
    del record["crc32"]
    old.append(json.dumps(record).encode() + b"\n")
  path.write_bytes(b"".join(old))
  work, log = _run(output)
  assert (output.read_bytes(), work) == expected
  assert len(log.ids) == sum(len(json.loads(x)["ids"]) for x in old[1:])
  assert path.read_bytes().startswith(b"".join(old))


def test_two_processes_dont_write_one_output(tmp_path):
  output = tmp_path / "out.jsonl"
  with journal.opened(output, SOLUTIONS, CLAIM):
    for fresh in (False, True):
      _refused("another process", output=output, fresh=fresh)
    assert _child(output, "") == 1
  _run(output)


def test_two_solutions_of_one_id_are_refused(tmp_path):
  _refused(
    "'s3'", output=tmp_path / "out.jsonl", solutions=[*SOLUTIONS, SOLUTIONS[3]]
  )
  assert not list(tmp_path.iterdir())


def test_a_labeller_that_loses_a_solution_is_refused(tmp_path):
  with pytest.raises(ValueError, match="other solutions than it was given"):
    _run(tmp_path / "out.jsonl", label=lambda batch: (batch[1:], {}))
  other = schema.Solution("x", "another problem", ())
  with pytest.raises(ValueError, match="solutions of other problems"):
    _run(
      tmp_path / "out.jsonl",
      label=lambda batch: ([other], {}),
      are_new=True,
    )


def _rollouts(batch):
  """Returns new solutions, a few of each problem, as a tree search does."""
  labelled = []
  for problem in dict.fromkeys(s.problem for s in batch):
    name = next(s.id for s in batch if s.problem == problem)
    labelled += [
      schema.Solution(f"{name}/{i}", problem, ("x",), (1.0,))
      for i in range(int(name[1:]) % 3)
    ]
  return labelled, dict(rollouts=len(labelled))


def test_new_solutions_stand_where_their_problem_first_came(tmp_path):
  found = []
  for batch_size in (1, 4, 100):
    output = tmp_path / f"{batch_size}.jsonl"
    new = dict(label=_rollouts, batch_size=batch_size, are_new=True)
    work, _ = _run(output, **new)
    # Half of it, and again.
    path = journal.path_of(output)
    kept = path.read_bytes()
    path.write_bytes(kept[: len(kept) // 2])
    again, _ = _run(output, **new)
    assert again == work == dict(rollouts=len(_rollouts(SOLUTIONS)[0]))
    found.append(jsonl.read_solutions(output))
  assert found == [_rollouts(SOLUTIONS)[0]] * 3


# --- A full disk ---------------------------------------------------------------


def test_a_full_disk_costs_one_batch_and_no_more(
  expected, tmp_path, monkeypatch
):
  output = tmp_path / "out.jsonl"
  write, budget = os.write, [2_500]

  def full(fd, data):
    if budget[0] <= 0:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    done = write(fd, data[: budget[0]])
    budget[0] -= done
    return done

  with monkeypatch.context() as patch:
    patch.setattr(os, "write", full)
    _refused("No space left", "make room", output=output)
    assert not output.exists()
    # Each of its lines is whole, and a second try is refused in the same way.
    path = journal.path_of(output)
    kept = path.read_bytes()
    assert len([json.loads(line) for line in kept.splitlines()]) > 2
    _refused("No space left", output=output)
    assert path.read_bytes() == kept
  work, log = _run(output)
  assert log.ids and not log.torn_bytes
  assert (output.read_bytes(), work) == expected


def test_a_disk_that_is_full_at_the_end_leaves_the_journal_whole(
  expected, tmp_path, monkeypatch
):
  output = tmp_path / "out.jsonl"

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with monkeypatch.context() as patch:
    patch.setattr(os, "replace", full)
    _refused("No space left", "holds all of them", output=output)
    assert list(tmp_path.iterdir()) == [journal.path_of(output)]
  work, log = _run(output)
  assert len(log.ids) == len(SOLUTIONS)
  assert (output.read_bytes(), work) == expected


# --- Shards --------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5])
def test_the_shards_together_are_the_run_of_one(count, expected, tmp_path):
  lines, works = [], Counter()
  for index in range(count):
    shard = shards.parse(f"{index}/{count}")
    mine = [s for s in SOLUTIONS if shard.holds(s.problem)]
    output = tmp_path / f"{index}.jsonl"
    work, _ = _run(output, mine, CLAIM | dict(shard=str(shard)))
    works.update(work)
    lines += output.read_bytes().splitlines()
  assert sorted(lines) == sorted(expected[0].splitlines())
  assert dict(works) == expected[1]
