"""`prm_jax.Plan` and its command, with a compiler that only counts rows."""

import dataclasses
import json

import plan_tiny
import pytest

import prm_jax
from prm_jax.cli import main
from prm_jax.plan import collectives
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import plan_tables
from prm_jax.plan import topologies
from prm_jax.runtime import verbs

CONFIG = "experiments/prm800k_qwen2_5_math_7b.py"
TOPOLOGY = "v5e:4x4"
NEEDED = dataclasses.replace(
  plan_tiny.PLAN,
  sent=collectives.Sent({"all-gather": 1}, 1, {"all-gather": 1}),
)


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
  """An update of more than 32 rows at once is too large."""

  def of_update(update, topology, devices):
    fits = update.batch_size // update.microbatches <= 32
    return dataclasses.replace(
      NEEDED,
      rows=update.batch_size,
      mesh=update.mesh,
      microbatches=update.microbatches,
      **({} if fits else dict(peak=None, refused="no room")),
    )

  monkeypatch.setattr(plan_compile, "of_update", of_update)
  monkeypatch.setattr(topologies, "devices", lambda topology: ())


def test_a_plan_is_that_of_the_command_with_what_is_changed(tmp_path, capsys):
  overrides = ("packing.batch_size=32",)
  planned = prm_jax.Plan(
    verbs.Config(CONFIG, overrides), TOPOLOGY, mesh="2,8,1"
  )()
  assert (planned.rows, planned.mesh) == (32, (2, 8, 1))
  output = tmp_path / "plan.json"
  words = [f"--config={CONFIG}", f"--topology={TOPOLOGY}", "--mesh=2,8,1"]
  words += [f"--output={output}", "--config.packing.batch_size=32"]
  assert main.main(["plan", *words]) == 0
  saved = json.loads(output.read_text())
  assert saved == json.loads(json.dumps(plan_tables.record(planned)))
  assert capsys.readouterr().out == f"{plan_tables.table(planned)}\n"


@pytest.mark.parametrize("suggests", [True, False])
def test_what_doesnt_fit_ends_with_1_and_says_what_would(
  tmp_path, capsys, suggests
):
  output = tmp_path / "plan.json"
  words = [f"--config={CONFIG}", f"--topology={TOPOLOGY}"]
  words += [f"--output={output}", "--config.packing.batch_size=64"]
  more = [] if suggests else ["--no-suggest"]
  assert main.main(["plan", *words, *more]) == 1
  said = capsys.readouterr()
  assert said.err.endswith(f"{CONFIG}: doesn't fit {TOPOLOGY} as it is\n")
  changes = "--config.microbatches=2"
  found = json.loads(output.read_text()).get("fits_with")
  assert (found is not None) == suggests
  assert ("trying" in said.err) == suggests and "trying" not in said.out
  assert (f"\n\nIt fits with {changes}\n\n" in said.out) == suggests
  assert not suggests or found["overrides"] == changes


def test_runs_are_compared_with_their_budgets(tmp_path, capsys):
  path = tmp_path / "budgets.jsonl"
  budget = dict(config=CONFIG, topology=TOPOLOGY, sent_gib=1, flops_ratio=2)
  lines = [dict(budget, peak_gib=x) for x in (3, 1)]
  path.write_text("".join(json.dumps(x) + "\n" for x in lines))
  assert main.main(["plan", f"--check={path}"]) == 1
  out, err = capsys.readouterr()
  assert f"{path}: 1 of 2 runs need more than their budget" in err
  words = [x.split()[0] for x in out.split("\n\n") if x]
  assert words == ["within", "EXCEEDED"]


@pytest.mark.parametrize(
  "values",
  [dict(), dict(topology=TOPOLOGY), dict(config=verbs.Config(CONFIG))],
  ids=lambda x: next(iter(x), "nothing"),
)
def test_a_plan_of_nothing_is_refused_in_python(values):
  with pytest.raises(prm_jax.InputError, match="give `config=FILE` and"):
    prm_jax.Plan(**values)


def test_a_check_of_a_file_is_no_plan_in_python(tmp_path):
  with pytest.raises(prm_jax.InputError, match="a config and a topology"):
    prm_jax.Plan(check=tmp_path / "budgets.jsonl")()


def test_a_run_has_hours_and_with_a_price_a_cost(capsys, monkeypatch):
  seconds = dict(compute=0.5, memory=0.25, wire=0.0)
  timed = dataclasses.replace(NEEDED, steps=7_200, seconds=seconds)
  monkeypatch.setattr(plan_compile, "of_update", lambda *a, **k: timed)
  words = ["plan", f"--config={CONFIG}", f"--topology={TOPOLOGY}"]
  assert main.main([*words, "--price=1.25"]) == 0
  line = (
    "7,200 updates, at least 1.00 h and 16.00 chip-hours: 20.00 at 1.25 each"
  )
  assert line in capsys.readouterr().out
  assert timed.hours == 1 and NEEDED.hours is None
