"""What `benchmarks/fits.py` says fits is what the programs say."""

import importlib
import pathlib
import sys

import jax
from jax import numpy as jnp
import pytest

from prm_jax.models import model_config as model_config
from prm_jax.plan import planned_memory
from prm_jax.plan import topologies
from prm_jax.rows import packing
from prm_jax.runtime import files
from prm_jax.scoring import prefix_programs
from prm_jax.scoring import scorer

ROOT = pathlib.Path(__file__).parents[1]
MODEL = model_config.ModelConfig(
  *(512, 64, 2, 4, 2, 16, 128), compute_dtype="bfloat16"
)


@pytest.fixture
def fits(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
  for name in ("results", "fit_programs", "fit_updates", "fits"):
    monkeypatch.delitem(sys.modules, name, raising=False)
  module = importlib.import_module("fits")
  # Programs of a size that a CPU compiles in a second.
  monkeypatch.setattr(module.fit_programs, "PROMPT", 32)
  monkeypatch.setattr(module.fit_programs, "COMPLETION", 64)
  monkeypatch.setattr(module.fit_programs, "ROW", 128)
  return module


def _target(fits, memory_bytes=1 << 40):
  chip = topologies.Chip("small", memory_bytes, 1e12, 1e12, 1e9)
  topology = topologies.Topology("small:1", chip, (1,))
  return fits.fit_programs.Target(topology, (jax.devices()[0],))


def _real(shapes):
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def test_a_scores_need_is_what_the_compiler_says_of_the_program_that_runs(fits):
  part, _ = fits.fit_programs.score(_target(fits), MODEL)
  rows = scorer.BATCH_TOKENS // 64
  params = _real(fits.fit_programs.imported(MODEL, "prm"))
  assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(params))
  compiled = scorer._forward.lower(
    *(params, packing.fill([[]] * rows, 64)),
    config=MODEL,
    program="prm",
    scoring=(),
  ).compile()
  assert fits.record_of(part)["need"] == planned_memory.peak(
    compiled.memory_analysis()
  )


def test_a_program_of_a_search_is_counted_with_all_that_the_other_model_holds(
  fits,
):
  parts = {
    part.name: part for part in fits.fit_programs.search(_target(fits), MODEL)
  }
  policy, prm = (
    sum(x.nbytes for x in jax.tree.leaves(_real(shapes)))
    for shapes in (
      fits.fit_programs.imported(MODEL, "sft"),
      fits.fit_programs.imported(MODEL, "prm"),
    )
  )
  # CachedScorer's default: 65,536 tokens.
  pages = 65_536 * 2 * (2 * 2 * 16) * 2
  assert parts["decode"].held == parts["prefill"].held == prm + pages
  scoring = [part for name, part in parts.items() if "behind" in name]
  assert {part.held for part in scoring} == {policy}
  record = fits.record_of(parts["prefill"])
  assert record["arguments"] > policy
  assert record["need"] >= record["arguments"] + prm + pages


def test_the_pages_of_a_search_are_the_cached_scorers(fits):
  num, size = fits.fit_programs._pages()
  assert num * size == 65_536
  pages = prefix_programs.empty_pages(MODEL, pages=1, page_tokens=size)
  assert sum(x.nbytes for x in pages) * num == 65_536 * 2 * (2 * 2 * 16) * 2


@pytest.mark.parametrize("task", ["LoRA", "whole"])
def test_rows_are_doubled_until_an_update_exceeds_the_limit(fits, task):
  bytes_of = dict(none=40, dots=20, full=10)
  measured = []

  def measure(part):
    measured.append((part.remat, part.rows))
    need = bytes_of[part.remat] * part.rows
    return dict(need=need, rows=part.rows, remat=part.remat, refused="")

  def found(limit):
    records = []
    fits.compile_task(
      task,
      _target(fits, limit),
      MODEL,
      lambda x: records.append(measure(x)) or records[-1],
    )
    return fits.cell(task, records, limit)

  assert found(39) == "dots 1, full 2"
  assert measured == [
    *(("none", 1), ("dots", 1), ("dots", 2)),
    *(("full", 1), ("full", 2), ("full", 4)),
  ]
  assert found(40) == "none 1, full 4"
  assert found(19) == "full 1"
  assert found(10 * 64) == "none 16, full 64+"
  assert found(9).startswith("no: ")


def test_a_run_of_rl_fits_if_every_one_of_its_programs_does(fits):
  gib = topologies.GIB
  rest = dict(rows=0, remat="", refused="")
  update = dict(rows=1, refused="")
  records = [
    dict(rest, need=3 * gib),
    dict(rest, need=5 * gib),
    dict(update, remat="none", need=9 * gib),
    dict(update, remat="dots", need=4 * gib),
    dict(update, remat="full", need=2 * gib),
  ]
  assert fits.cell("RL, whole", records, 5 * gib) == "dots: 5.0"
  assert fits.cell("RL, whole", records, 9 * gib) == "none: 9.0"
  assert fits.cell("RL, whole", records, 4 * gib) == "no: 5.0"
  assert fits.cell("RL, whole", records[:2], 9 * gib) == "not compiled"
  unknown = [*records, dict(rest, need=None)]
  assert fits.cell("RL, whole", unknown, 9 * gib) == "not compiled"


def test_a_chip_without_results_takes_those_of_one_like_it(fits):
  record = dict(need=3 << 29, rows=1, remat="full", refused="")
  known = {
    f"{task}/7B/{chip}/program": record
    for task in ("score", "LoRA")
    for chip in ("h200:1", "v5e:1x1")
  }

  def line(start):
    lines = fits.table(known).splitlines()
    return next(x for x in lines if x.startswith(start))

  none = " | ".join(["not compiled"] * 7)
  assert line("| score") == f"| score, 0.5B | {none} |"
  score, lora = line("| score, 7B"), line("| LoRA, 7B")
  assert score == f"| score, 7B | {' | '.join(['1.5'] * 7)} |"
  assert lora == f"| LoRA, 7B | {' | '.join(['full 1+'] * 7)} |"
  known["score/7B/a100-40:1/program"] = dict(record, need=1 << 30)
  assert "| score, 7B | 1.5 | 1.0 | 1.5 |" in fits.table(known)


def test_a_gpus_update_tells_what_a_tpu_fits_if_a_tenth_changes_nothing(fits):
  def tpus(gib):
    need = int(gib * topologies.GIB)
    record = dict(need=need, rows=1, remat="full", refused="")
    known = {"whole/7B/h200:1/update": record}
    lines = fits.table(known).splitlines()
    (line,) = (x for x in lines if x.startswith("| whole, 7B"))
    return line.strip(" |").split(" | ")[-3:]

  # 15.75, 31.25 and 95.74 GiB.
  assert tpus(15.75 / 1.11) == ["full 1+", "full 1+", "full 1+"]
  assert tpus(15.75 / 1.09) == ["not compiled", "full 1+", "full 1+"]
  assert tpus(15.75 * 1.09) == ["not compiled", "full 1+", "full 1+"]
  assert tpus(15.75 * 1.11) == ["no", "full 1+", "full 1+"]
  assert tpus(110) == ["no", "no", "no"]


def test_what_a_compiler_refused_counts_by_what_it_said(fits):
  said = "the compiler needs 512.00 MiB"
  needs = fits.fit_programs.Needs(None, None, said)
  part = fits.fit_programs.Part("update", 1 << 29, lambda: needs, 1, "full")
  assert fits.record_of(part)["need"] == topologies.GIB


def test_a_calls_most_pages_hold_every_slots_completion(fits):
  num = fits.fit_programs.most_pages(64, 1024, 16)
  assert 64 * 64 <= num <= 1.5 * 64 * 64 + 64


def test_the_table_of_the_page_is_that_of_the_results(fits):
  stored = files.read_json(ROOT / "docs" / "results" / "fits.json")
  page = (ROOT / "docs" / "what_fits.md").read_text()
  assert fits.table(stored["programs"]) in page
