"""Whole runs of a tiny policy: resumed, watched, stopped, and used."""

import dataclasses
import json
import math
import pathlib
import shutil

from flax.core import meta
import jax
from jax import monitoring
import ml_collections
import numpy as np
import pytest
import recipes
import rl_tiny

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.huggingface import import_model
from prm_jax.huggingface import origin_digests
from prm_jax.policy import sampler
from prm_jax.rl import credit
from prm_jax.rl import experience
from prm_jax.rl import hacking_monitor
from prm_jax.rl import rl_run
from prm_jax.rl import rl_run_config
from prm_jax.rl import roles as roles_lib
from prm_jax.rl import sample_files
from prm_jax.rl import tasks
from prm_jax.rl import updates
from prm_jax.runtime import checked_lines
from prm_jax.runtime import files
from prm_jax.text import policy_templates
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import warm_start

pytestmark = pytest.mark.usefixtures(
  "one_device", "equal_programs", "printed_log"
)

REWARDS = dict(prm=1.0, verifier=1.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """A policy, a PRM with a tokenizer of its own, and problems."""
  folder = tmp_path_factory.mktemp("models")
  train, test = rl_tiny.write_problems(folder)
  return dict(
    init_from=rl_tiny.save(folder / "policy"),
    prm=rl_tiny.save(
      folder / "prm", "prm", "step", vocabulary=tokenizer_lib.Bytes(), seed=1
    ),
    train=train,
    test=test,
  )


def _config(folders, **fields):
  models = {k: v for k, v in folders.items() if k not in ("train", "test")}
  return rl_tiny.config(**models | dict(rewards=REWARDS) | fields)


def _train(config, workdir, folders, **more):
  sources = folders["train"], folders["test"]
  return rl_tiny.train(config, workdir, sources, **more)


def _records(workdir, kind="train", name="metrics.jsonl"):
  lines = (workdir / name).read_text().splitlines()
  return [x for x in map(json.loads, lines) if x.get("kind", kind) == kind]


def _lasting(record):
  times = ("_s", "per_s", "crc32")  # the digest is of the times, too
  return {k: v for k, v in record.items() if not k.endswith(times)}


def _bits(tree):
  return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


GAE = dict(
  loss=dict(critic="separate", kl_placement="reward", kl=0.1, kl_target=0.01),
  credit=dict(baseline="gae"),
  minibatches=2,
  epochs=2,
)


@pytest.fixture(scope="module")
def whole(folders, tmp_path_factory):
  """A run of PPO with a critic, from beginning to end, and its compilations.

  compiled: how many programs were compiled by each rollout.
  """
  workdir = tmp_path_factory.mktemp("whole")
  compiled, counts = [0], []

  def listen(event, duration, **_):
    del duration
    compiled[0] += event.endswith("backend_compile_duration")

  monitoring.register_event_duration_secs_listener(listen)
  call = experience.Collector.__call__

  def counted(self, state):
    counts.append(compiled[0])
    return call(self, state)

  config = _config(folders, fit=dict(steps=5), **GAE)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(experience.Collector, "__call__", counted)
    state = _train(config, workdir, folders)
  return workdir, state, counts


def test_nothing_is_compiled_after_the_second_update(whole):
  _, _, counts = whole
  assert counts[1] > counts[0]
  assert counts[2:] == [counts[2]] * 3


def test_a_stopped_run_goes_on_to_the_same_bits(folders, whole, tmp_path):
  workdir, state, _ = whole
  call = experience.Collector.__call__
  met = []

  def stopping(self, state):
    met.append(int(state.step))
    if len(met) == 4:
      raise KeyboardInterrupt
    return call(self, state)

  config = _config(folders, fit=dict(steps=5, checkpoint_every=2), **GAE)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(experience.Collector, "__call__", stopping)
    with pytest.raises(KeyboardInterrupt):
      _train(config, tmp_path, folders)
    found = _train(config, tmp_path, folders)
  assert met == [0, 1, 2, 3, 2, 3, 4]
  assert _bits(found.params) == _bits(state.params)
  assert _bits(found.opt_state) == _bits(state.opt_state)
  for kind in ("train", "eval"):
    pairs = zip(_records(workdir, kind), _records(tmp_path, kind), strict=True)
    for a, b in pairs:
      assert _lasting(a) == _lasting(b)
  samples = [_records(x, name="samples.jsonl") for x in (workdir, tmp_path)]
  assert samples[0] == samples[1]


def test_a_run_doesnt_go_on_with_another_policys_description(
  folders, whole, tmp_path
):
  """What init_from holds may have been replaced since the saves were made."""
  workdir = shutil.copytree(whole[0], tmp_path / "run")
  other = shutil.copytree(folders["init_from"], tmp_path / "policy")
  record = json.loads((other / "model.json").read_text())
  record["encoding"]["max_tokens"] += 1
  (other / "model.json").write_text(json.dumps(record))
  before = (workdir / "model.json").read_bytes()
  config = _config(
    folders | dict(init_from=str(other)), fit=dict(steps=5), **GAE
  )
  with pytest.raises(errors.InputError, match=r"encoding\.max_tokens differ"):
    _train(config, workdir, folders)
  assert (workdir / "model.json").read_bytes() == before


def test_an_update_logs_the_truth_beside_what_is_rewarded(whole):
  workdir, _, _ = whole
  records = _records(workdir)
  assert [r["step"] for r in records] == [1, 2, 3, 4, 5]
  expected = {
    *("accuracy", "prm_return", "prm_score", "total_return", "kl_nats"),
    *("entropy_nats", "clipped", "advantage_mean", "advantage_std"),
    *("explained_variance", "tokens", "steps", "repetition", "distinct"),
    *(
      "without_answer",
      "all_steps_correct",
      "max_log_ratio",
      "skipped_updates",
    ),
    *("rollout_s", "scoring_s", "reference_s", "update_s", "slot_use"),
    *("sampled_tokens", "prefilled_tokens", "kl_weight", "value_loss"),
    *("scored_steps", "update_tokens"),
  }
  for record in records:
    assert not expected - record.keys()
    assert record["max_log_ratio"] < 1e-4
    assert record["solutions"] == 8
  first = _records(workdir, "eval")[0]
  assert first["step"] == 0
  assert {"accuracy", "all_steps_correct", "prm_score"} <= first.keys()
  samples = _records(workdir, name="samples.jsonl")
  assert len(samples) == 5 * sample_files.SHOWN
  assert all(len(x["prm"]) == len(x["steps"]) for x in samples)


def test_the_trained_policy_is_a_policy_of_every_command(
  folders, whole, tmp_path
):
  workdir, state, _ = whole
  policy = sampler.load(workdir)
  trained = {k: v for k, v in state.params.items() if k in policy.params}
  assert _bits(policy.params) == _bits(trained)
  assert not set(policy.params) & {"reference", "critic", "value_head"}
  again = _config(folders | dict(init_from=str(workdir)), fit=dict(steps=1))
  state = _train(again, tmp_path / "again", folders)
  assert _bits(state.params["reference"]) == _bits(policy.params)


# --- What stops a run ---------------------------------------------------------


@pytest.mark.parametrize("action", ["warn", "stop", "rollback"])
def test_an_alarm_warns_stops_or_goes_back_as_configured(
  folders, tmp_path, capsys, monkeypatch, action
):
  def alarms(records, config):
    if len(records) < 2:
      return []
    return [hacking_monitor.Alarm(len(records), "accuracy", 1, "it turned")]

  monkeypatch.setattr(hacking_monitor, "alarms", alarms)
  config = _config(
    folders, monitor=dict(action=action, window=1), fit=dict(keep_last=3)
  )
  state = _train(config, tmp_path, folders)
  out = capsys.readouterr().out
  assert "it turned" in out
  assert int(state.step) == dict(warn=3, stop=2, rollback=1)[action]
  assert saves.saved_steps(tmp_path)[-1] == int(state.step)
  assert ("halted at step 2" in out) == (action != "warn")


def test_updates_without_a_finite_gradient_stop_the_run_with_a_whole_save(
  folders, tmp_path
):
  wild = dataclasses.replace(rl_tiny.OPTIMIZER, peak_lr=1e38)
  fit = dict(steps=9, keep_last=9, max_skipped=2)
  config = _config(folders, optimizer=wild, fit=fit)
  with pytest.raises(errors.NotFiniteError, match="no finite gradient"):
    _train(config, tmp_path, folders)
  steps = saves.saved_steps(tmp_path)
  assert steps == [1, 2]
  first, last = (
    parameters.load_params(tmp_path, step=step)
    for step in (steps[0], steps[-1])
  )
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(last))
  # The first gradient was finite; those that weren't left no trace.
  assert _bits(first) == _bits(last)


# --- Files --------------------------------------------------------------------


def test_of_a_problems_records_the_first_answer_counts(tmp_path):
  path = tmp_path / "problems.jsonl"
  records = [dict(id="a", problem="p"), dict(id="b", problem="p", answer="3")]
  records += [dict(id="c", problem="p", answer="4"), dict(id="d", problem="q")]
  files.write_records(path, records)
  found, counts = tasks.read_problems(f"problems:{path}")
  answers = [(x.problem, x.extra[schema.REFERENCE]) for x in found]
  assert answers == [("p", "3"), ("q", None)]
  assert counts == {"met before": 2, "without an answer": 1}


def test_problems_without_any_answer_are_refused_where_one_is_needed(
  folders, tmp_path
):
  path = tmp_path / "problems.jsonl"
  files.write_records(path, [dict(id="a", problem="p")])
  config = _config(folders)
  with pytest.raises(errors.InputError, match=r"none of its 1 problems has"):
    _train(config, tmp_path, folders | dict(train=f"problems:{path}"))


@pytest.mark.parametrize(
  "end", ["1", "{}", '{"step": null}', '{"step": 1, "pro']
)
def test_a_half_written_sample_is_dropped_with_what_is_made_again(
  tmp_path, end
):
  path = tmp_path / "samples.jsonl"
  whole = [dict(step=k, id=str(k)) for k in range(3)]
  lines = (checked_lines.line_of(json.dumps(x)) for x in whole)
  path.write_text("".join([*lines, end]))
  # A rollout of nothing: only what was there is left.
  sample_files.Samples(tmp_path, 2)(2, [], None, None, None)
  assert [x for _, x in checked_lines.read(path)] == whole[:2]


# --- Roles --------------------------------------------------------------------


def test_a_policy_with_new_adapters_has_a_reference_without(folders):
  config = _config(
    folders,
    model=dict(lora_rank=2),
    trainable="lora",
    loss=dict(kl_placement="reward", kl=0.1, critic="separate"),
    credit=dict(baseline="gae"),
  )
  roles = roles_lib.read_roles(config.roles)
  program = rl_run.make_program(
    config, roles.models, shares_reference=roles.shares_reference
  )
  abstract = jax.eval_shape(program.init, jax.random.key(0)).params
  # Nothing that is frozen would stay as it was drawn.
  warm_start.check_frozen(program, meta.unbox(abstract), roles.init_from)
  ranks = [m and m.lora_rank for m in roles.models]
  assert ranks == [2, 0, None, 0]


def test_the_base_of_new_adapters_is_its_own_reference(folders):
  changes = dict(
    model=dict(lora_rank=2),
    trainable="lora",
    loss=dict(kl_placement="reward", kl=0.1, critic="shared"),
    credit=dict(baseline="gae"),
  )
  config = _config(folders, **changes)
  roles = roles_lib.read_roles(config.roles)
  program = rl_run.make_program(
    config, roles.models, shares_reference=roles.shares_reference
  )
  params = meta.unbox(jax.eval_shape(program.init, jax.random.key(0)).params)
  assert "reference" not in params and "lora_a" in str(params)
  trained = warm_start.warm_start(
    jax.tree.map(lambda x: jax.numpy.ones(x.shape), params), roles.init_from
  )
  # To the bit what a reference of its own is, without its memory.
  named = dict(changes, reference=folders["init_from"])
  own = roles_lib.read_roles(_config(folders, **named).roles)
  assert not own.shares_reference
  reference = updates.reference_of(trained)
  reference.pop("value_head")
  jax.tree.map(
    np.testing.assert_array_equal, reference, own.init_from["reference"]
  )
  # A policy that is trained as a whole, and one of another folder, have theirs.
  for other in (
    dict(changes, trainable="all", model={}),
    dict(changes, reference=folders["init_from"]),
  ):
    assert not roles_lib.read_roles(
      _config(folders, **other).roles
    ).shares_reference


def test_models_of_tokens_compute_as_the_policy_and_scores_as_score_dtype_says(
  folders,
):
  config = _config(
    folders,
    model=dict(compute_dtype="bfloat16"),
    reference=folders["init_from"],
    critic=folders["init_from"],
    held_out_prm=folders["prm"],
    score_dtype="float16",
    loss=dict(kl_placement="reward", kl=0.1, critic="separate"),
    credit=dict(baseline="gae"),
  )
  roles = roles_lib.read_roles(config.roles)
  types = {m.compute_dtype for m in roles.models if m is not None}
  assert types == {"bfloat16"}
  assert roles.held_out.scorer.config.compute_dtype == "float16"


def test_every_other_role_has_its_say_in_a_run(folders, tmp_path):
  # A grader in a process of its own, steps as the PRM cuts them, a PRM that
  # rewards nothing, and a critic on the policy's trunk.
  config = _config(
    folders,
    rewards=dict(prm=1.0, prm_cut="line", verifier=1.0, format=0.1),
    held_out_prm=folders["prm"],
    loss=dict(critic="shared"),
    credit=dict(baseline="gae"),
    fit=dict(steps=2),
  )
  _train(config, tmp_path, folders, grader="rules")
  records = _records(tmp_path)
  for record in records:
    # The PRM that is held out is the one that rewards.
    assert record["heldout_prm"] == record["prm_score"]
    assert 0 <= record["accuracy"] <= 1
    assert math.isfinite(record["value_loss"])
    assert "all_steps_correct" not in record
    assert record["scored_steps"] > 0
  first, last = (_records(tmp_path, "eval")[k] for k in (0, -1))
  assert first["prm_score"] != last["prm_score"]
  samples = _records(tmp_path, name="samples.jsonl")
  assert all(len(s["prm"]) == len(s["steps"]) for s in samples)


# --- What is refused ----------------------------------------------------------


def test_roles_that_dont_fit_are_refused_by_name(folders, tmp_path):
  other = rl_tiny.save(
    tmp_path / "bytes", vocabulary=tokenizer_lib.Bytes(), seed=2
  )
  gae = dict(loss=dict(critic="separate"), credit=dict(baseline="gae"))
  for fields, said in (
    (dict(init_from=folders["prm"]), "init_from=.*holds a prm"),
    (dict(prm=folders["init_from"]), "prm=.*holds an sft"),
    (dict(critic=other, **gae), "critic=.*another tokenizer"),
    (dict(reference=other), "reference=.*another tokenizer"),
    (dict(test=folders["train"]), "are trained on"),
  ):
    with pytest.raises(errors.InputError, match=said):
      _train(_config(folders | fields), tmp_path / "run", folders | fields)


@pytest.mark.parametrize(
  ("fields", "said"),
  [
    (dict(rewards=dict(prm=0.0)), "every weight is 0"),
    (dict(prm="", rewards=dict(prm=1.0)), "which one"),
    (dict(credit=dict(baseline="gae")), "takes a critic"),
    (dict(loss=dict(critic="shared")), "takes a critic"),
    (dict(loss=dict(kind="reinforce"), epochs=2), "older policy"),
    (dict(loss=dict(kl=0.1)), "give both"),
    (dict(loss=dict(kl_placement="loss", kl=0.1)), "its gradient is 0"),
    (dict(minibatches=3), "can't be split evenly"),
    (dict(credit=dict(returns="min_to_go", discount=0.9)), "isn't a sum"),
    (dict(rollout=dict(samples=1)), "take 2 or more"),
    (dict(rewards=dict(implicit=1.0)), "go with prime"),
    (dict(rewards=dict(prm=1, accuracy_range=(0, 0.5, 1))), "two shares"),
    (dict(loss=dict(kind="rejection_sampling")), "take 'none'"),
    (dict(monitor=dict(action="rollback")), "keep 30 or more"),
    (dict(loss=dict(clip_low=0.0)), "clip_low"),
    (dict(rollout=dict(temperature=0.0)), "temperature"),
    (
      dict(reference="none", loss=dict(kl_placement="reward", kl=0.1)),
      "measured by",
    ),
    (
      dict(rewards=dict(verifier=1.0), credit=dict(baseline="group_step")),
      "no step reward",
    ),
    (
      dict(model=dict(attention="splash")),
      "splash' with packing.share_prefixes=True",
    ),
  ],
  ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_meant_is_refused_before_anything_is_read(fields, said):
  with pytest.raises(errors.InputError, match=said):
    rl_tiny.config(**dict(prm="-", rewards=dict(prm=1.0)) | fields)


def test_prompts_that_are_not_shared_are_rows_that_any_attention_knows():
  packed = dict(attention="splash")
  assert rl_tiny.config(model=packed, share_prompts=False).model == packed


# --- The command --------------------------------------------------------------

CONFIG = """
import ml_collections

def get_config():
  c = ml_collections.ConfigDict()
  c.program, c.seed = "rl", 0
  c.init_from, c.prm = {init_from!r}, {prm!r}
  c.problems = dict(
    train={train!r}, evaluation={test!r}, num_evaluation=4, grader="arithmetic"
  )
  c.rollout = dict(problems=4, samples=2, max_tokens=24, slots=8)
  c.rewards = dict(prm=1.0)
  c.credit = dict(baseline="leave_one_out_token", returns="soft_min")
  c.loss = dict(kind="ppo")
  c.packing = dict(batch_size=4, sequence_length=64, share_prefixes=True)
  c.optimizer = dict(peak_lr=1e-3, warmup_steps=0)
  c.fit = dict(steps=2, log_every=1, checkpoint_every=1)
  c.mesh = (1, 1, 1)
  return c
"""


def test_the_train_command_runs_a_config_of_reinforcement_learning(
  folders, tmp_path, capsys
):
  # An imported policy's small files go on to what is trained from it.
  policy = shutil.copytree(folders["init_from"], tmp_path / "policy")
  chat = pathlib.Path(import_model.ORIGIN) / "chat_template.jinja"
  (policy / chat).parent.mkdir()
  (policy / chat).write_text("{{ messages }}")
  origin_digests.write((policy / chat).parent)
  path = tmp_path / "rl.py"
  path.write_text(CONFIG.format(**folders | dict(init_from=str(policy))))
  workdir = tmp_path / "run"
  command = ["train", f"--config={path}", f"--workdir={workdir}"]
  assert main.main([*command, "--config.fit.steps=1"]) == 0
  assert saves.saved_steps(workdir) == [1]
  assert (workdir / chat).read_text() == "{{ messages }}"
  config = json.loads((workdir / "config.json").read_text())
  assert config["program"] == "rl" and config["monitor"]["action"] == "warn"
  report = workdir / "report"
  assert f"report: {report / 'index.html'}" in capsys.readouterr().out
  assert "A policy after 1 update " in (report / "data/runs-0.js").read_text()
  assert (report / "data/samples-0.js").exists()
  assert main.main([*command, "--config.credit.baseline=best"]) == 1
  assert "credit.baseline='best'" in capsys.readouterr().err
  assert main.main([*command, "--help"]) == 0
  assert "--config.loss.clip_low=0.2" in capsys.readouterr().out


def test_a_source_of_the_testbed_has_a_split_and_a_number():
  with pytest.raises(errors.InputError, match="expected arithmetic:SPLIT"):
    tasks.read_problems("arithmetic:train")
  found, counts = tasks.read_problems("arithmetic:train:9")
  assert len(found) + counts.get("met before", 0) == 9


def test_exact_rewards_need_a_verifier_that_knows_right_steps(
  folders, tmp_path
):
  config = _config(folders, rewards=dict(exact=1.0))
  with pytest.raises(errors.InputError, match="doesn't know right steps"):
    _train(config, tmp_path, folders, grader="rules")


def test_a_published_policy_is_rewarded_at_the_tokens_that_end_its_steps(
  folders, tmp_path
):
  tokenizer = recipes.tokenizer("qwen")
  template = policy_templates.plain(("<|im_end|>",), "{problem}\n")
  policy = rl_tiny.save(
    tmp_path / "policy",
    vocabulary=tokenizer,
    template=dataclasses.replace(
      template, segmenter=segmenters.LINE, separator="\n"
    ),
    sampling=dict(temperature=0.6, top_k=20),
  )
  seen = []
  assign = credit.assign

  def watched(rewards, *args, **kwargs):
    seen.append(rewards)
    return assign(rewards, *args, **kwargs)

  config = _config(
    folders | dict(init_from=policy),
    rewards=dict(prm=1.0, verifier=1.0),
    fit=dict(steps=1),
    sequence_length=128,
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(credit, "assign", watched)
    _train(config, tmp_path / "run", folders)
  (record,) = _records(tmp_path / "run")
  assert math.isfinite(record["loss"])
  (rewards,) = seen
  assert (rewards.step_mask.sum(1) > 1).any()
  for ends, mask, tokens in zip(
    *(rewards.step_ends, rewards.step_mask, rewards.token_mask), strict=True
  ):
    assert (ends[mask] < tokens.sum()).all()
    assert (np.diff(ends[mask]) >= 0).all()
  written = json.loads((tmp_path / "run" / "model.json").read_text())
  assert written["encoding"]["template"]["name"] == "plain"
  # Nor is the tuned policy sampled otherwise.
  assert written["sampling"] == dict(temperature=0.6, top_k=20)


def test_rejection_sampling_learns_from_what_it_selects(folders, tmp_path):
  config = _config(
    folders,
    rewards=dict(format=1.0),
    loss=dict(
      kind="rejection_sampling", return_threshold=-1.0, max_per_problem=1
    ),
    credit=dict(baseline="none"),
    epochs=2,
    fit=dict(steps=2),
  )
  _train(config, tmp_path, folders)
  selected = [r["selected"] for r in _records(tmp_path)]
  assert selected == [4, 4]  # one of each problem


def test_a_config_that_was_written_out_is_read_as_the_same_run():
  config = rl_tiny.config(
    rewards=dict(prm=0.5, accuracy_range=(0.2, 0.8)),
    prm="-",
    model=dict(remat="none"),
  )
  problems = tasks.ProblemsConfig("a", "b")
  written = dataclasses.asdict(config)
  written["problems"] = dataclasses.asdict(problems)
  written = json.loads(json.dumps(written))
  read = rl_run_config.from_config(ml_collections.ConfigDict(written))
  assert read == rl_run_config.Run(config, problems)
