"""A run keeps every result, survives its workers, and goes on where it was."""

import dataclasses
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import prm_jax
from prm_jax import errors
from prm_jax.cli import main
from prm_jax.device_check import check_results
from prm_jax.device_check import check_run
from prm_jax.device_check import check_worker
from prm_jax.device_check import suite
from prm_jax.device_check import verdict

# A worker that does what the environment says, by check: a number, or "crash",
# "hang", "die" (before it begins), "restart".
FAKE = """
import json, os, sys, time
asked = json.loads(sys.argv[1])
plan = json.loads(os.environ["PLAN"])
open(os.environ["CALLS"], "a").write(json.dumps(asked) + "\\n")
def emit(**event):
  print(json.dumps(event), flush=True)
emit(
  machine=dict(platform="cpu", device_kind=os.environ.get("KIND", "cpu"),
               num_devices=1, memory=None, packages=dict(jax="0")),
  planned=[
    [name, "late" if name[:5] == "speed" else "right", name[:5] != "speed"]
    for name in plan
  ],
  stages=["right", "late"],
)
print("noise", file=sys.stderr)
for name, what in plan.items():
  stage = "late" if name.startswith("speed") else "right"
  if stage != asked["stage"] or name in asked["skip"]:
    continue
  if asked["only"] and name.split(".")[0] not in asked["only"]:
    continue
  if time.time() > asked["until_s"]:
    sys.exit(0)
  if what == "die":
    sys.exit(3)
  more = [n for n in plan if n.startswith(name + ".")]
  emit(begin=name, more=more, limit_s=60)
  if what == "crash":
    os.abort()
  if what == "hang":
    time.sleep(100)
  if what == "slow":
    time.sleep(0.4)
  number = what if isinstance(what, (int, float)) else 1
  status = "fail" if number < 0 else "pass"
  emit(result=dict(name=name, status=status, required=stage == "right",
                   number=number, seconds=0.1))
  if what == "restart":
    sys.exit(75)
"""
PLAN = {"a.one": 1, "a.two": 2, "b.three": 3, "speed.four": 4}


@pytest.fixture
def fake(tmp_path, monkeypatch):
  """Returns what runs a plan by fake workers: results, lines, calls."""
  script = tmp_path / "fake.py"
  script.write_text(FAKE)
  calls = tmp_path / "calls"
  output = tmp_path / "check.json"
  monkeypatch.setenv("CALLS", str(calls))

  def call(plan, **options):
    calls.write_text("")
    monkeypatch.setenv("PLAN", json.dumps(plan))
    lines = []
    record = check_run.check(
      check_run.Options(
        output, worker=(sys.executable, str(script)), **options
      ),
      dict(command="test"),
      lines.append,
    )
    assert check_results.read(output) == record
    asked = [json.loads(line) for line in calls.read_text().splitlines()]
    return record, lines, asked

  call.output = output
  return call


def _statuses(record):
  return {r.name: r.status for r in record.results}


def test_each_check_has_a_line_and_a_result_and_the_verdict_is_right(fake):
  record, lines, asked = fake(PLAN)
  assert _statuses(record) == dict.fromkeys(PLAN, "pass")
  assert [line.split()[:2] for line in lines] == [[n, "pass"] for n in PLAN]
  assert record.verdict["verdict"] == verdict.RIGHT
  assert [x["stage"] for x in asked] == ["right", "late"]
  assert asked[1]["known"] == {"a.one": 1, "a.two": 2, "b.three": 3}
  assert not list(fake.output.parent.glob(".check.json.lock"))


@pytest.mark.parametrize(
  ("what", "why"), [("crash", "SIGABRT"), ("hang", "doesn't end")]
)
def test_a_check_that_takes_its_process_along_fails_and_the_rest_runs(
  fake, what, why
):
  record, _, asked = fake(PLAN | {"a.two": what}, check_s=1.5)
  expected = dict.fromkeys(PLAN, "pass") | {"a.two": "fail"}
  assert _statuses(record) == expected
  assert len(asked) == 3
  [bad] = [r for r in record.results if r.status == "fail"]
  assert why in bad.note
  assert record.verdict["verdict"] == verdict.WRONG
  assert record.verdict["failed"] == ["a.two"]


def test_further_results_of_a_check_that_crashed_are_not_run(fake):
  plan = PLAN | {"speed.four": "crash", "speed.four.five": 5}
  record, _, asked = fake(plan)
  assert _statuses(record)["speed.four"] == "fail"
  assert _statuses(record)["speed.four.five"] == "not run"
  assert len(asked) == 2  # nothing of it is tried again in this run
  record, _, asked = fake(plan | {"speed.four": 4})
  assert _statuses(record) == dict.fromkeys(plan, "pass")


def test_a_worker_that_doubts_its_devices_is_replaced(fake):
  record, _, asked = fake(PLAN | {"a.one": "restart"})
  assert _statuses(record) == dict.fromkeys(PLAN, "pass")
  assert len(asked) == 3 and asked[1]["skip"] == ["a.one"]


def test_when_the_time_is_up_the_rest_is_not_run_and_then_resumed(fake):
  plan = dict.fromkeys(PLAN, "slow")
  record, _, _ = fake(plan, minutes=0.5 / 60)
  statuses = _statuses(record)
  assert statuses["a.one"] == "pass" and statuses["b.three"] == "not run"
  assert record.verdict["verdict"] == verdict.UNKNOWN
  assert "call it again" in record.results[-1].note
  done = {name for name, status in statuses.items() if status == "pass"}
  before = {r.name: r for r in record.results if r.name in done}
  record, lines, asked = fake(plan)
  assert lines[0] == f"resumes {fake.output}: {len(done)} results done"
  assert len(lines) == 1 + len(PLAN) - len(done)
  assert {*asked[0]["skip"]} == done
  assert _statuses(record) == dict.fromkeys(PLAN, "pass")
  assert {r.name: r for r in record.results if r.name in done} == before


def test_only_runs_what_is_named_and_the_verdict_stays_unknown(fake):
  record, _, _ = fake(PLAN, only=("b", "speed"))
  assert _statuses(record) == {"b.three": "pass", "speed.four": "pass"}
  assert record.verdict["missing"] == ["a.one", "a.two"]
  with pytest.raises(errors.InputError, match=r"`only=c`: .* are a, b, speed"):
    fake(PLAN, only=("c",))


def test_results_of_another_machine_mode_or_code_are_refused_and_kept(
  fake, monkeypatch
):
  fake({"a.one": 1})
  before = fake.output.read_bytes()
  for match, change in (
    (r"another mode \(standard, now full\)", dict(mode="full")),
    (r"another code", dict()),
    (r"another machine \(other device_kind\)", dict()),
  ):
    with monkeypatch.context() as patch:
      if "code" in match:
        patch.setattr(check_results, "code", lambda: "0")
      if "machine" in match:
        patch.setenv("KIND", "TPU v5e")
      with pytest.raises(errors.InputError, match=match):
        fake(PLAN, **change)
    assert fake.output.read_bytes() == before
  damaged = before.decode().replace('"pass"', '"banana"')
  assert damaged != before.decode()
  for text in ("", "{}", "[]", '{"format": 9}', '{"format": 1}', damaged):
    fake.output.write_text(text)
    with pytest.raises(
      errors.InputError, match=r"check\.json: .*(format|isn't)"
    ):
      fake(PLAN)
    assert fake.output.read_text() == text


def test_a_worker_that_never_starts_is_one_line_and_no_file(fake):
  with pytest.raises(
    errors.InputError, match="jax doesn't start here: OSError"
  ):
    check_run.check(
      check_run.Options(
        fake.output, worker=(sys.executable, "-c", "raise OSError")
      ),
      {},
      print,
    )
  assert not [*fake.output.parent.glob("*check.json*")]


def test_what_no_worker_gets_to_fails_the_rest_runs_and_it_is_tried_again(fake):
  record, _, asked = fake(PLAN | {"b.three": "die"})
  assert _statuses(record) == dict.fromkeys(PLAN, "pass") | {"b.three": "fail"}
  assert [x["stage"] for x in asked] == ["right"] * 3 + ["late"]
  record, lines, _ = fake(PLAN)
  assert _statuses(record) == dict.fromkeys(PLAN, "pass")
  assert len(lines) == 2


def test_two_runs_into_one_file_are_refused(fake):
  with (
    check_run._locked(fake.output),
    pytest.raises(errors.BusyError, match="another process writes it"),
  ):
    fake(PLAN)


def test_a_run_that_is_killed_keeps_its_results_and_its_worker_ends(
  fake, tmp_path
):
  """The real worker and a real check; see tests/faults for all of them."""
  plan = dict.fromkeys(PLAN, "slow") | {"b.three": "hang"}
  script = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(check_run.__file__).parents[2])!r})
from prm_jax.device_check import check_run
import pathlib
options = check_run.Options(
  pathlib.Path({str(fake.output)!r}),
  worker=(sys.executable, {str(tmp_path / "fake.py")!r}))
check_run.check(options, {{}}, print)
"""
  environment = os.environ | dict(PLAN=json.dumps(plan))
  process = subprocess.Popen([sys.executable, "-c", script], env=environment)
  until = time.monotonic() + 60
  while time.monotonic() < until:
    if (
      fake.output.exists() and len(check_results.read(fake.output).results) == 2
    ):
      break
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  process.wait()
  before = check_results.read(fake.output).results
  assert [r.name for r in before] == ["a.one", "a.two"]
  record, lines, _ = fake(PLAN)
  assert "2 results done" in lines[0]
  assert record.results[:2] == before
  assert _statuses(record) == dict.fromkeys(PLAN, "pass")


# A worker in which both checks are under way when its process ends, or hangs.
SIDE_BY_SIDE = """
import json, os, sys, time
asked = json.loads(sys.argv[1])
open(os.environ["CALLS"], "a").write(json.dumps(asked) + "\\n")
def emit(**event):
  print(json.dumps(event), flush=True)
names = ["a.bad", "a.good"]
emit(machine=dict(platform="cpu", device_kind="cpu", num_devices=1, memory=None,
                  packages=dict(jax="0")),
     planned=[[name, "right", True] for name in names], stages=["right"])
def end():
  if os.environ["HOW"] == "hang":
    time.sleep(100)
  os.abort()
left = [name for name in names if name not in asked["skip"]]
if asked["threads"] > 1:
  for name in left[:1] if os.environ["HOW"] == "doubt alone" else left:
    emit(begin=name, more=[], limit_s=60)
  if os.environ["HOW"].startswith("doubt"):
    emit(again="a.bad")
    sys.exit(75)
  end()
for name in left:
  emit(begin=name, more=[], limit_s=60)
  if name == "a.bad" and os.environ["HOW"].startswith("doubt"):
    emit(result=dict(name=name, status="fail", required=True, seconds=0.1))
    sys.exit(75)
  if name == "a.bad":
    end()
  emit(result=dict(name=name, status="pass", required=True, number=1, seconds=0.1))
"""


@pytest.mark.parametrize("how", ["crash", "hang", "doubt", "doubt alone"])
def test_of_checks_side_by_side_only_that_which_took_the_process_along_fails(
  fake, tmp_path, monkeypatch, how
):
  (tmp_path / "fake.py").write_text(SIDE_BY_SIDE)
  monkeypatch.setenv("HOW", how)
  record, _, asked = fake({}, check_s=1.5, threads=4)
  assert _statuses(record) == {"a.bad": "fail", "a.good": "pass"}
  assert [x["threads"] for x in asked] == [4, 1, 1]


# --- The worker -------------------------------------------------------------


SETTING = check_results.Setting("quick", "cpu", "cpu", 1)


def _check(function, required=True):
  return check_results.Check("a.b", function, required)


def test_a_check_that_raises_is_a_failed_line_with_its_reason():
  def broken(setting):
    raise RuntimeError("no kernel\n  for this")

  [found], sound = check_worker.run(_check(broken), SETTING)
  assert sound and found.status == "fail"
  assert found.note == "RuntimeError: no kernel for this"
  assert "in broken" in found.details["traceback"]
  assert "RuntimeError: no kernel for this" in found.line()


def test_after_a_crash_the_devices_are_tried(monkeypatch):
  from prm_jax.device_check import machine

  def broken(setting):
    raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

  monkeypatch.setattr(machine, "wrong_devices", lambda: broken(None))
  _, sound = check_worker.run(_check(broken), SETTING)
  assert not sound


ASKED = dict(threads=2, until_s=float("inf"))


def test_lanes_run_side_by_side_and_the_checks_of_one_in_order():
  both = threading.Barrier(2, timeout=30)
  order = []

  def met(setting):
    both.wait()  # It takes two at the same time.
    return check_results.Measured(1.0)

  def noted(name, setting):
    order.append(name)
    return met(setting) if name == "a" else check_results.Measured(1.0)

  checks = [
    check_results.Check("x.met", met, lane="one"),
    *(
      check_results.Check(
        f"y.{name}", functools.partial(noted, name), lane="two"
      )
      for name in "abc"
    ),
  ]
  events = []
  assert not check_worker._side_by_side(checks, SETTING, ASKED, events.append)
  assert order == ["a", "b", "c"]
  ended = [x["result"]["name"] for x in events if "result" in x]
  assert sorted(ended) == ["x.met", "y.a", "y.b", "y.c"]


def test_what_crashes_beside_others_is_left_to_run_alone():
  def broken(setting):
    raise MemoryError("the others have it")

  checks = [
    check_results.Check("x.bad", broken, lane="one"),
    check_results.Check(
      "x.good", lambda s: check_results.Measured(1.0), lane="two"
    ),
  ]
  events = []
  raised = check_worker._side_by_side(checks, SETTING, ASKED, events.append)
  assert raised == {"x.bad": "MemoryError: the others have it"}
  [kept] = check_worker.run(checks[1], SETTING)[0]
  assert check_worker._with_first(kept, "X").note == "beside others: X"
  assert dict(again="x.bad") in events
  assert [x["result"]["name"] for x in events if "result" in x] == ["x.good"]


def test_what_is_no_number_counts_at_once_also_beside_others():
  nan = check_results.Measured(float("nan"), limit=1.0)
  checks = [check_results.Check("x.nan", lambda s: nan, lane="one")]
  events = []
  assert not check_worker._side_by_side(checks, SETTING, ASKED, events.append)
  [ended] = [x["result"] for x in events if "result" in x]
  assert ended["status"] == "fail"


def test_beside_others_a_device_in_doubt_ends_the_process_without_a_result(
  monkeypatch,
):
  def broken(setting):
    raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

  class Ended(Exception):
    pass

  events = []

  def emit(event, code=None):
    events.append(event)
    if code == check_worker.RESTART:
      raise Ended

  monkeypatch.setattr(check_worker, "_is_sound", lambda: False)
  with pytest.raises(Ended):
    check_worker._side_by_side(
      [check_results.Check("x.bad", broken, lane="one")], SETTING, ASKED, emit
    )
  assert not [x for x in events if "result" in x]


def test_no_check_that_measures_a_speed_runs_beside_others():
  for devices in (1, 2):
    setting = dataclasses.replace(SETTING, num_devices=devices)
    for check in suite.checks(setting):
      is_alone = check.name.startswith(("machine", "speed", "peers"))
      is_alone |= "sharded" in check.name
      assert is_alone == (not check.lane), check.name


def test_what_cant_be_done_is_not_run_and_says_why():
  def absent(setting):
    raise check_results.NotRun("no torch")

  [found], sound = check_worker.run(_check(absent), SETTING)
  assert sound and (found.status, found.note) == ("not run", "no torch")


def test_one_run_may_give_several_results_and_fails_for_all():
  several = check_results.Check(
    "a.b", lambda s: None, False, more=("a.c", "a.d")
  )
  numbers = {
    "a.b": check_results.Measured(1.0),
    "a.c": check_results.Measured(2.0),
  }
  found, _ = check_worker.run(several._replace(run=lambda s: numbers), SETTING)
  assert [(r.name, r.status) for r in found] == [
    ("a.b", "pass"),
    ("a.c", "pass"),
    ("a.d", "not run"),
  ]

  def broken(setting):
    raise MemoryError("too much")

  found, _ = check_worker.run(several._replace(run=broken), SETTING)
  assert [r.status for r in found] == ["fail", "not run", "not run"]
  assert {r.note for r in found[1:]} == {"a.b failed"}


@pytest.mark.parametrize(
  ("measured", "status"),
  [
    (check_results.Measured(1.0), "pass"),
    (check_results.Measured(1.0, limit=1.0), "pass"),
    (check_results.Measured(1.1, limit=1.0), "fail"),
    (check_results.Measured(0.9, limit=1.0, at_least=True), "fail"),
    (check_results.Measured(float("nan"), limit=1.0), "fail"),
    (check_results.Measured(float("inf"), limit=1.0, at_least=True), "fail"),
    (check_results.Measured(float("nan")), "fail"),
  ],
)
def test_a_number_keeps_its_limit_or_fails(measured, status):
  [found], _ = check_worker.run(_check(lambda setting: measured), SETTING)
  assert found.status == status
  json.dumps(dataclasses.asdict(found), allow_nan=False)


# --- The verdict ------------------------------------------------------------


def _record(**statuses):
  names = [name.replace("_", ".", 1) for name in statuses]
  planned = [
    check_results.Planned(name, "right", not name.startswith("speed"))
    for name in names
  ]
  found = [
    check_results.Result(x.name, status, x.required)
    for x, status in zip(planned, statuses.values(), strict=True)
    if status
  ]
  machine = dict(device_kind="x", num_devices=1, packages=dict(jax="0"))
  return check_results.Record("standard", "0", {}, machine, planned, found)


def test_the_verdict_is_of_required_checks():
  cases = {
    verdict.RIGHT: dict(a_1="pass", speed_2="fail", speed_3=None),
    verdict.WRONG: dict(a_1="fail", a_2=None, a_3="not run"),
    verdict.UNKNOWN: dict(a_1="pass", a_2=None),
  }
  for expected, statuses in cases.items():
    record = _record(**statuses)
    found = verdict.of(record)
    assert found["verdict"] == expected
    assert verdict.table(record).splitlines()[-1].endswith(expected)
  assert verdict.of(_record(a_1="pass", a_2="not run"))["missing"] == ["a.2"]
  assert verdict.of(_record())["verdict"] == verdict.UNKNOWN


def test_a_wrong_kernel_is_answered_by_the_reference_a_wrong_model_isnt():
  record = _record(**{"attention_tree.x": "fail"})
  [found] = verdict.of(record)["set"]
  assert (found["field"], found["value"]) == ("model.attention", "reference")
  also = {"model_packed_is_alone.reference.float32": "fail"}
  statuses = {"attention_tree.x": "fail"} | also
  assert verdict.of(_record(**statuses))["set"] == []
  assert verdict.of(_record(model_greedy_is_argmax="fail"))["set"] == []


def test_fields_to_set_are_those_that_fit_as_they_were_measured():
  fit = dict(remat="full", rows=8, sequence_length=4096)
  fit |= dict(trainable="lora", lora_rank=16)
  fit |= dict(momentum_dtype="float32", memory_fraction="0.92")
  record = _record(a_1="pass")
  update = check_results.Result(
    "speed.update.7b", "pass", False, 1.0, details=dict(fit=fit)
  )
  record.results.append(update)
  assert {x["field"]: x["value"] for x in verdict.of(record)["set"]} == {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",
    "model.remat": "full",
    "packing.batch_size": "8",
    "packing.sequence_length": "4096",
    "trainable": "lora",
    "model.lora_rank": "16",
    "optimizer.momentum_dtype": "float32",
  }


def test_what_differs_from_an_older_result_is_said_worst_first():
  old = _record(a_1="pass", a_2="pass", speed_3="pass", speed_5="pass")
  new = _record(a_1="pass", a_2="fail", speed_3="pass", speed_4="pass")
  for record, number in ((old, 2.0), (new, 1.0)):
    record.results = [
      dataclasses.replace(r, number=number) if r.name == "speed.3" else r
      for r in record.results
    ]
  assert verdict.compared(new, old) == [
    "a.2: pass before, fail now",
    "speed.3: 2 before, 1 now: 0.50 times",
    "speed.4: not in the older result",
    "speed.5: only in the older result",
  ]


# --- The command ------------------------------------------------------------


@pytest.mark.parametrize(
  ("words", "said"),
  [
    (["--minutes=0"], "isn't a number above 0"),
    (["--quick", "--full"], "not allowed with"),
    (["--output=."], "is a folder"),
    (["--against=absent.json"], "absent.json: no such file"),
    (["--only=a,"], "--only=a,: give names or groups"),
  ],
)
def test_wrong_words_are_one_line_and_write_nothing(
  words, said, capsys, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  assert main.main(["check-device", *words]) == 1
  err = capsys.readouterr().err
  assert said in err and err.count("\n") == 1
  assert not list(tmp_path.iterdir())


@pytest.fixture
def faked(fake, monkeypatch):
  """Returns what makes the command's workers fake ones, with a plan."""
  script = fake.output.with_name("fake.py")
  options = functools.partial(
    check_run.Options, worker=(sys.executable, str(script))
  )
  monkeypatch.setattr(check_run, "Options", options)
  return lambda plan: monkeypatch.setenv("PLAN", json.dumps(plan))


def test_the_value_finds_what_the_command_writes(fake, faked, capsys):
  faked(PLAN)
  other = fake.output.with_name("other.json")
  record = prm_jax.CheckDevice(str(other), only="a")()
  assert check_results.read(other) == record
  words = [f"--output={fake.output}", "--only=a", f"--against={other}"]
  assert main.main(["check-device", *words]) == 0
  written = check_results.read(fake.output)
  assert written.results == record.results
  assert [r.name for r in written.results] == ["a.one", "a.two"]
  *_, title, same, last = capsys.readouterr().out.splitlines()
  assert title == f"against {other}:"
  assert (same, last) == ("nothing that counts", f"results: {fake.output}")


@pytest.mark.parametrize(
  ("only", "code", "said"),
  [
    ("a", 1, "wrong here: 1 required checks failed, the first is a.two"),
    ("speed", 1, "1 checks crashed, the first is speed.four"),
    ("b", 0, ""),
  ],
)
def test_the_command_ends_with_1_if_what_was_asked_for_is_wrong(
  fake, faked, capsys, only, code, said
):
  faked(PLAN | {"a.two": -1, "speed.four": "crash"})
  words = [f"--output={fake.output}", f"--only={only}"]
  assert main.main(["check-device", *words]) == code
  assert said in capsys.readouterr().err


@pytest.mark.parametrize(
  ("values", "words"),
  [
    (dict(quick=True, full=True), "`full=True`: not allowed with"),
    (dict(minutes=0.0), "minutes=0.0`: '0.0' isn't a number above 0"),
    (dict(only=",a"), "`only=,a`: give names or groups"),
  ],
  ids=lambda x: "" if isinstance(x, str) else next(iter(x)),
)
def test_a_wrong_value_is_refused_in_python(values, words):
  with pytest.raises(prm_jax.InputError, match=words):
    prm_jax.CheckDevice(**values)
