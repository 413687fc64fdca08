"""Statistics of people recover what planted people are like."""

import desks
import numpy as np
import pytest
import view_files

from prm_jax import schema
from prm_jax.cli import main
from prm_jax.people import judgement_store
from prm_jax.people import people_folder
from prm_jax.people import people_quality
from prm_jax.people import work_queue
from prm_jax.runtime import files
from prm_jax.view import site
from prm_jax.view import view_inputs

NUM = 120


def solutions(num, prefix, random):
  """Returns solutions of five steps whose first error is drawn."""
  found = []
  for i in range(num):
    error = int(random.integers(-1, 5))
    ratings = [1] * 5 if error < 0 else [1] * error + [-1] + [0] * (4 - error)
    found.append(
      desks.solution(
        f"{prefix}{i}",
        [f"step {k} of {prefix}{i}" for k in range(5)],
        ratings=tuple(ratings),
      )
    )
  return found


def first_error(solution):
  return solution.ratings.index(-1) if -1 in solution.ratings else -1


def work(path, people, *, num_gold=NUM, num_pool=NUM, seed=0):
  """Has planted people judge everything; returns the folder.

  Args:
    path: The folder.
    people: {name: (P(the right first error), seconds a step)}, or of a function
      of the number of items so far.
  """
  random = np.random.default_rng(seed)
  gold, pool = (
    solutions(n, x, random) for n, x in ((num_gold, "g"), (num_pool, "p"))
  )
  bare = [schema.Solution(s.id, s.problem, s.steps) for s in pool]
  folder = people_folder.begin(
    path, "first_error", work_queue.Design(), bare, gold
  )
  items = {
    x.id: x
    for of in (gold, bare)
    for x in people_folder.items_of("first_error", of)
  }
  store = folder.store()
  copied: dict[str, int] = {}
  for name, (skill, pace) in people.items():
    order = random.permutation(2 * max(num_gold, num_pool))
    every = [*gold, *pool]
    for place, k in enumerate(x for x in order if x < len(every)):
      s = every[k]
      p = skill(place / len(every)) if callable(skill) else skill
      said = first_error(s)
      if p == "copies":
        said = copied[s.id]
      elif random.random() > p:
        said = int(random.choice([x for x in range(-1, 5) if x != said]))
      copied.setdefault(s.id, said)
      event = dict(kind="right") if said < 0 else dict(kind="error", step=said)
      num = 5 if said < 0 else said + 1
      store.add(
        *(items[s.id], name, event),
        id=f"{name} {s.id}",
        after=0,
        seconds=num * pace,
        at=0.0,
      )
  store.close()
  return folder


def test_an_interval_of_a_share_holds_it_as_often_as_it_says():
  random = np.random.default_rng(0)
  for p, num in ((0.95, 40), (0.5, 20), (0.1, 100)):
    held = [
      low <= p <= high
      for low, high in (
        people_quality.wilson(int(x), num)
        for x in random.binomial(num, p, 2_000)
      )
    ]
    assert 0.93 < np.mean(held) < 0.98
  assert people_quality.wilson(0, 0) == (0, 1)
  # Wilson's own bounds, by solving (p - s)^2 = z^2 p (1 - p) / n for p.
  low, high = people_quality.wilson(7, 10)
  for bound in (low, high):
    assert (0.7 - bound) ** 2 == pytest.approx(
      1.959963984540054**2 * bound * (1 - bound) / 10
    )


def test_what_people_are_like_is_recovered(tmp_path):
  people = dict(careful=(0.95, 9.0), fast=(0.8, 2.0), random=(1 / 6, 5.0))
  held, seeds = [], range(5)
  for seed in seeds:
    folder = work(tmp_path / str(seed), people, seed=seed)
    told = people_quality.report(folder, num_resamples=50)["people"]
    for name, (skill, pace) in people.items():
      low, high = told[name]["gold"]["interval"]
      held.append(low <= skill <= high)
      assert told[name]["gold"]["of"] == NUM
      assert told[name]["seconds_a_step"] == pytest.approx(pace)
      assert told[name]["items"] == 2 * NUM
    shares = [told[name]["gold"]["value"] for name in people]
    assert shares == sorted(shares, reverse=True)
  assert sum(held) >= 13  # of 15, each held with 95 %


def test_those_who_agree_by_copying_are_seen_on_gold_alone(tmp_path):
  people = dict(random=(1 / 6, 5.0), copies=("copies", 1.0))
  told = people_quality.report(work(tmp_path / "w", people), num_resamples=20)
  (pair,) = told["agreement"]["pairs"]
  assert pair["first_error_same"]["value"] == 1
  assert told["people"]["copies"]["gold"]["interval"][1] < 0.35


def test_agreement_is_of_the_pool_and_that_of_the_careful_is_high(tmp_path):
  people = dict(a=(0.95, 1.0), b=(0.95, 1.0), c=(1 / 6, 1.0))
  told = people_quality.report(work(tmp_path / "w", people), num_resamples=50)
  pairs = {
    (x["a"], x["b"]): x["first_error_same"]["value"]
    for x in told["agreement"]["pairs"]
  }
  assert all(x["solutions"] == NUM for x in told["agreement"]["pairs"])
  # Both right, or both wrong in the same of five ways.
  assert pairs["a", "b"] == pytest.approx(0.95**2 + 0.05**2 / 5, abs=0.06)
  assert pairs["a", "c"] < 0.35 > pairs["b", "c"]


def test_drift_is_seen_between_the_halves(tmp_path):
  people = dict(tired=(lambda share: 0.95 if share < 0.5 else 0.4, 3.0))
  told = people_quality.report(work(tmp_path / "w", people))
  tired = told["people"]["tired"]
  assert tired["gold_first_half"]["interval"][0] > 0.8
  assert tired["gold_last_half"]["interval"][1] < 0.6
  assert told["agreement"] is None


def test_screening_is_not_what_drifts(tmp_path):
  folder = work(tmp_path / "w", dict(a=(1.0, 1.0)), num_gold=6, num_pool=1)
  store = folder.store()
  for name in ("g0", "g1"):
    given = judgement_store.Given("a", name, work_queue.SCREENING)
    store.give(given, 0.0)
  store.close()
  told = people_quality.report(folder)["people"]["a"]
  assert (told["screening"]["of"], told["gold"]["of"]) == (2, 4)
  assert told["gold_first_half"]["of"] == told["gold_last_half"]["of"] == 2


def test_what_isnt_judged_is_counted_apart(tmp_path):
  folder = work(tmp_path / "w", {}, num_gold=0, num_pool=4)
  store, items = folder.store(), folder.items()
  said = [
    dict(kind="end", reason="give_up"),
    dict(kind="end", reason="bad_problem"),
    dict(kind="right"),
    dict(kind="rate", step=0, alternative=0, rating=1),
  ]
  for item, event in zip(items, said, strict=True):
    store.add(item, "a", event, id=item.id, after=0, seconds=5.0, at=0.0)
  store.close()
  told = people_quality.report(folder)["people"]["a"]
  assert (told["items"], told["gave_up"], told["bad_problem"]) == (1, 1, 1)
  assert told["steps"] == 5 and told["seconds_a_step"] == 1.0


def test_the_interval_of_steps_rated_right_is_over_solutions(tmp_path):
  """Steps of a solution aren't independent: right ones end together."""
  folder = work(tmp_path / "w", dict(a=(1.0, 1.0)), num_gold=0)
  told = people_quality.report(folder, num_resamples=4_000)
  right = told["people"]["a"]["rated_right"]
  low, high = right["interval"]
  assert low < right["value"] < high
  # The delta method for a ratio of sums over solutions (Cochran 1977, 6.19).
  counts = np.array(
    [
      (x.values.count(1), sum(v is not None for v in x.values))
      for x in people_quality.judged(folder)
    ],
    float,
  )
  rest = counts[:, 0] - right["value"] * counts[:, 1]
  deviation = np.sqrt((rest**2).sum()) / counts[:, 1].sum()
  assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.1)


def test_a_person_without_gold_has_no_share_and_nobody_no_report(tmp_path):
  folder = work(tmp_path / "w", dict(a=(1.0, 1.0)), num_gold=0, num_pool=3)
  told = people_quality.report(folder)["people"]["a"]
  assert told["gold"] is None and told["items"] == 3
  empty = work(tmp_path / "v", {}, num_pool=3)
  assert people_quality.report(empty)["people"] == {}
  with pytest.raises(judgement_store.errors.InputError):
    people_folder.Folder(tmp_path)


def test_the_command_prints_a_table_and_writes_the_numbers(tmp_path, capsys):
  folder = work(tmp_path / "w", dict(a=(0.9, 4.0), b=(0.9, 6.0)))
  output = tmp_path / "people.json"
  command = ["label", "people_report", f"--input={folder.path}"]
  assert main.main([*command, f"--output={output}"]) == 0
  head, *rows = capsys.readouterr().out.splitlines()[:4]
  told = files.read_json(output)
  gold = told["people"]["a"]["gold"]
  low, high = (100 * x for x in gold["interval"])
  assert "gold right, %" in head
  steps = str(told["people"]["a"]["steps"])
  assert rows[0].split()[:6] == ["a", "240", steps, "0", "0", "4.0"]
  assert f"{100 * gold['value']:.1f} [{low:.1f}, {high:.1f}]" in rows[0]
  same = told["agreement"]["pairs"][0]["first_error_same"]["value"]
  assert rows[2].startswith("a and b") and f"{100 * same:.1f} [" in rows[2]
  assert main.main([*command, f"--preferences={tmp_path / 'p.jsonl'}"]) == 1
  assert "task first_error" in capsys.readouterr().err
  empty = work(tmp_path / "v", {}, num_pool=3)
  assert main.main(["label", "people_report", f"--input={empty.path}"]) == 1
  assert "nobody has ended" in capsys.readouterr().err


def test_preferences_are_written(tmp_path):
  given = [desks.solution("a"), desks.solution("b", ["2 + 2 = 5"])]
  given = [schema.Solution(s.id, "What?", s.steps) for s in given]
  folder = people_folder.begin(
    tmp_path / "w", "pairs", work_queue.Design(), given, []
  )
  (item,) = folder.items()
  store = folder.store()
  for name, choice in dict(ann=1, bob=None).items():
    event = dict(kind="prefer", solution=choice)
    store.add(item, name, event, id=name, after=0, seconds=1.0, at=0.0)
  output = tmp_path / "p.jsonl"
  command = ["label", "people_report", f"--input={folder.path}"]
  assert main.main([*command, f"--preferences={output}"]) == 0
  (record,) = (x for _, x in files.read_records(output))
  assert (record["chosen_id"], record["rejected_id"]) == ("b", "a")
  assert record["chosen"] == ["2 + 2 = 5"] and record["annotator"] == "ann"
  assert main.main(command) == 1


def test_the_viewer_shows_people_and_their_labels(tmp_path):
  folder = work(tmp_path / "w", dict(a=(0.9, 4.0), b=(0.9, 6.0)), num_pool=4)
  inputs = view_inputs.read([folder.path])
  made = site.pages(inputs)
  index, items = view_files.window(made)
  assert "judgements" in str(index["evaluations"]["key"])
  (page,) = items["evaluations"]
  table = page["sections"][0]["table"]
  assert [row[0] for row in table] == ["", "a", "b", "a and b"]
  # Gold items aren't shown.
  assert {x["id"][0] for x in items["samples"]} == {"p"}
  assert [x["labels"].keys() for x in items["samples"]] == [{"a", "b"}] * 4
