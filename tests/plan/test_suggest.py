"""What is tried where a run doesn't fit, and in which order."""

import dataclasses

import plan_tiny

from prm_jax import errors
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import suggest
from prm_jax.plan import topologies

SIXTEEN = topologies.parse("v5e:4x4")


def _words(**changed):
  run = plan_tiny.update(**(dict(rows=64, mesh=(4, -1, 1)) | changed))
  return [words for words, _ in suggest.changes(run, SIXTEEN)]


def test_what_costs_least_time_is_tried_first_and_kept():
  kernel = "--config.model.attention=tree"
  full = f"{kernel} --config.model.remat=full"
  assert _words() == [
    kernel,
    f"{kernel} --config.model.remat=dots",
    full,
    f"{full} --mesh=1,16,1",
    f"{full} --mesh=1,16,1 --config.microbatches=2",
    f"{full} --mesh=1,16,1 --config.microbatches=4",
  ]


def test_what_a_run_has_already_is_not_tried():
  model = dict(attention="tree", remat="full")
  assert _words(model=model, mesh=(1, 16, 1), rows=16) == []


def test_an_update_keeps_its_rows_whatever_is_changed():
  run = plan_tiny.update(rows=64, mesh=(1, 16, 1))
  for _, changed in suggest.changes(run, SIXTEEN):
    assert (changed.batch_size, changed.sequence_length) == (
      64,
      run.sequence_length,
    )
    assert changed.batch_size // changed.microbatches >= SIXTEEN.size


_PLAN = plan_compile.Plan(
  topology="v5e:4x4",
  mesh=(1, 16, 1),
  parameters=1,
  rows=64,
  sequence_length=64,
  microbatches=1,
  steps=1,
  remat="none",
  attention="reference",
  memory=100,
  peak=50,
  arguments=10,
)


def test_the_search_ends_with_the_first_that_fits():
  tried, said = [], []

  def compiled(run):
    tried.append(run)
    fits = run.model.remat == "dots"
    return dataclasses.replace(_PLAN, peak=50 if fits else 200)

  words, found = suggest.search(
    plan_tiny.update(rows=64, mesh=(1, 16, 1)), SIXTEEN, compiled, said.append
  )
  assert words.endswith("--config.model.remat=dots")
  assert found.fits
  assert len(tried) == 2
  assert sum("trying" in x for x in said) == 2


def test_a_search_that_finds_nothing_says_so_and_skips_what_is_refused():
  said = []

  def refused(run):
    raise errors.InputError("no such kernel here")

  run = plan_tiny.update(rows=64, mesh=(1, 16, 1))
  assert suggest.search(run, SIXTEEN, refused, said.append) is None
  assert any("no such kernel here" in x for x in said)
