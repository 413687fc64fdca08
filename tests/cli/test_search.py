"""`prm-jax search` and `prm-jax verify`: whole journeys, and bad input."""

import contextlib
import http.server
import json
import pathlib
import re
import shutil
import threading

import numpy as np
import pytest
import random_models

from prm_jax.cli import main
from prm_jax.search import adaptive
from prm_jax.search import bill as bill_lib
from prm_jax.search import records
from prm_jax.search import search_models as search_models
from prm_jax.search import search_results
from prm_jax.search import writers
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy

EXACT = "prm_jax.testbed.arithmetic:verifier"
STRATEGIES = dict(
  best_of_n=["--num=4"],
  beam=["--keep=2", "--expand=2"],
  dvts=["--trees=2", "--expand=2"],
  rebase=["--width=4"],
  particle_filter=["--num=3", "--iterations=2"],
  mcts=["--simulations=2", "--expand=2"],
  reject_resample=["--attempts=3"],
  speculate=["--draft=weak"],
)


@pytest.fixture
def testbed(monkeypatch):
  """Puts the annotator in the place of --policy; "weak" slips more often."""

  @contextlib.contextmanager
  def opened(of, how, replies, counts):
    counts["engine_decoded"] += 1
    slips = dict(slip_shift=0.5) if of.source == "weak" else {}
    annotator = arithmetic_policy.Annotator(arithmetic.Task(**slips), how.seed)
    yield (
      search_models.Policy(
        annotator.step,
        annotator.whole,
        annotator.step,
        annotator.encode,
        bill_lib.Cost(10, 1),
      ),
      dict(policy=of.source, seed=how.seed),
    )

  monkeypatch.setattr(writers, "opened", opened)


@pytest.fixture
def problems(tmp_path):
  """Returns a file of problems with answers."""
  path = tmp_path / "problems.jsonl"
  made = arithmetic.problems(
    12, "test", arithmetic.Task(max_turns=4), np.random.default_rng(0)
  )
  path.write_text(
    "".join(
      json.dumps(dict(id=p.id, problem=p.problem, answer=p.answer)) + "\n"
      for p in made
    )
  )
  return path


def _search(strategy, problems, output, *more, scorer=EXACT):
  """Runs a search; returns the exit code."""
  return main.main(
    [
      *("search", strategy, "--policy=strong", f"--scorer={scorer}"),
      *(f"--input={problems}", f"--output={output}", "--batch=5"),
      *STRATEGIES.get(strategy, []),
      *more,
    ]
  )


def _records(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_result_is_what_its_tree_says(
  strategy, testbed, problems, tmp_path, capsys
):
  output = tmp_path / "found.jsonl"
  assert _search(strategy, problems, output) == 0
  text = capsys.readouterr().out
  assert re.search(r"^best: [\d.]+% of 12 right$", text, re.MULTILINE)
  found = search_results.read(output)
  assert [s.id for s in found] == [f"dial-test-{i}" for i in range(12)]
  for s, record in zip(found, _records(output), strict=True):
    tree = records.tree_from_record(record["tree"], "a line")
    assert (
      records.bill_record(tree.bill, {})["models"] == (record["bill"]["models"])
    )
    node = record["answers"]["best"]["node"]
    assert tree.nodes[node].solution.steps == s.steps
    assert s.outcome == (s.answer == s.extra["reference_answer"])


def test_shards_have_all_problems_and_the_trees_of_the_whole(
  testbed, problems, tmp_path
):
  assert _search("beam", problems, tmp_path / "whole.jsonl") == 0
  parts = []
  for i in range(3):
    output = tmp_path / f"{i}.jsonl"
    assert _search("beam", problems, output, f"--shard={i}/3") == 0
    parts += _records(output)
  whole = _records(tmp_path / "whole.jsonl")
  assert sorted(parts, key=str) == sorted(whole, key=str)


def test_a_shard_without_problems_has_an_empty_output(
  testbed, problems, tmp_path, capsys
):
  output = tmp_path / "found.jsonl"
  assert _search("beam", problems, output, "--shard=5/997") == 0
  assert output.read_bytes() == b""
  text = capsys.readouterr().out
  assert "found.jsonl: 0 problems" in text
  assert "no problem has" not in text


def test_seconds_are_in_a_file_of_their_own(testbed, problems, tmp_path):
  output = tmp_path / "found.jsonl"
  assert _search("best_of_n", problems, output) == 0
  assert _search("best_of_n", problems, output, "--fresh") == 0
  timing = _records(tmp_path / "found.jsonl.timing.jsonl")
  assert [len(x["problems"]) for x in timing] == [5, 5, 2]
  assert all(x["search_s"] > 0 for x in timing)
  assert not any(key.endswith("_s") for key in _records(output)[0]["bill"])


def test_a_journal_of_another_search_is_refused(
  testbed, problems, tmp_path, capsys
):
  output = tmp_path / "found.jsonl"
  assert _search("best_of_n", problems, output) == 0
  for more, says in (
    (["--num=5"], "rule"),
    (["--budget_tokens=50"], "limits"),
    (["--seed=1"], "seed"),
    (["--aggregate=min"], "aggregate"),
  ):
    assert _search("best_of_n", problems, output, *more) == 1
    assert says in capsys.readouterr().err
  assert _search("best_of_n", problems, output, "--seed=1", "--fresh") == 0


def test_a_budget_that_is_too_small_is_counted_and_said(
  testbed, problems, tmp_path, capsys
):
  output = tmp_path / "found.jsonl"
  assert _search("beam", problems, output, "--budget_tokens=1") == 0
  text = capsys.readouterr().out
  assert "12  ended by budget" in text
  assert "12  without candidate" in text
  assert "give a larger budget" in text
  assert all(r["answer"] is None and not r["outcome"] for r in _records(output))


def test_problems_without_answers_have_no_outcome(testbed, tmp_path, capsys):
  path = tmp_path / "problems.jsonl"
  path.write_text('{"id": "a", "problem": "Ann dials 3 up 4 ."}\n')
  output = tmp_path / "found.jsonl"
  assert _search("best_of_n", path, output) == 0
  (record,) = _records(output)
  assert record.get("outcome") is None
  assert {c["outcome"] for c in record["candidates"]} == {None}
  assert "% of" not in capsys.readouterr().out


def test_one_text_with_two_answers_is_refused_and_with_one_is_searched_twice(
  testbed, tmp_path, capsys
):
  path, output = tmp_path / "problems.jsonl", tmp_path / "found.jsonl"
  line = '{"id": "%s", "problem": "Ann dials 3 up 4 .", "answer": "%s"}\n'
  path.write_text(line % ("a", "7") + line % ("a/0", "8"))
  assert _search("best_of_n", path, output) == 1
  assert "'a/0': the reference answer is '8'" in capsys.readouterr().err
  path.write_text(line % ("a", "7") + line % ("a/0", "7"))
  assert _search("best_of_n", path, output) == 0
  rows = _records(output)
  assert [r["id"] for r in rows] == ["a", "a/0"]
  assert rows[0]["tree"]["nodes"] != rows[1]["tree"]["nodes"]


@pytest.mark.parametrize(
  ("arguments", "says"),
  [
    (["beam", "--keep=0"], "keep=0"),
    (["best_of_n", "--num=0"], "num=0"),
    (
      ["rebase", "--balance_temperature=0"],
      "--balance_temperature: '0' isn't a number above 0",
    ),
    (["reject_resample", "--threshold=2"], "threshold=2"),
    (["beam", "--batch=0"], "--batch=0"),
    (["beam", "--max_steps=0"], "max_steps=0"),
    (["beam", "--budget_flops=1e9"], "the FLOPs of a model aren't known"),
    (["adaptive_best_of_n", "--calibration=no.json"], "no.json"),
  ],
)
def test_bad_options_end_with_one_line(
  arguments, says, testbed, problems, tmp_path, capsys
):
  strategy, *more = arguments
  assert _search(strategy, problems, tmp_path / "found.jsonl", *more) == 1
  error = capsys.readouterr().err
  assert says in error
  assert "Traceback" not in error


def test_a_scorer_that_gives_nan_ends_with_one_line(
  testbed, problems, tmp_path, capsys
):
  scorer = tmp_path / "nan.py"
  scorer.write_text(
    "def score(solutions):\n"
    "  return [[float('nan')] * len(s.steps) for s in solutions]\n"
  )
  output = tmp_path / "found.jsonl"
  assert _search("beam", problems, output, scorer=f"{scorer}:score") == 1
  assert "nan" in capsys.readouterr().err.lower()


def test_searches_of_the_same_problems_are_compared(
  testbed, problems, tmp_path, capsys
):
  noisy = tmp_path / "noisy.py"
  noisy.write_text(
    "from prm_jax.testbed import policy\nscore = policy.NoisyVerifier(2.0)\n"
  )
  for name in ("best_of_n", "beam"):
    path = tmp_path / f"{name}.jsonl"
    assert _search(name, problems, path, scorer=f"{noisy}:score") == 0
  output, plot = tmp_path / "compared.json", tmp_path / "compared.svg"
  compare = [
    *("search", "compare", f"--input=bon={tmp_path}/best_of_n.jsonl"),
    *(f"--input={tmp_path}/beam.jsonl", f"--output={output}"),
  ]
  assert main.main([*compare, f"--plot={plot}"]) == 0
  found = json.loads(output.read_text())
  for name, x in found["searches"].items():
    path = tmp_path / f"{'best_of_n' if name == 'bon' else name}.jsonl"
    rows = _records(path)
    for how in ("best", "weighted", "majority"):
      right = [r["answers"][how]["outcome"] for r in rows]
      assert x["accuracy"][how]["mean"] == pytest.approx(np.mean(right))
    sampled = [r["bill"]["models"]["policy"]["sampled"] for r in rows]
    assert x["cost"]["sampled"] == pytest.approx(np.mean(sampled))
  (curve,) = found["curves"].values()
  assert curve["n"] == [1, 2, 4]
  accuracy = found["searches"]["bon"]["accuracy"]
  for how in ("best", "weighted", "majority", "oracle"):
    assert curve[how][-1] == pytest.approx(accuracy[how]["mean"], abs=0.09)
  difference = found["differences"]["beam"]["best"]["mean"]
  beam = found["searches"]["beam"]["accuracy"]["best"]["mean"]
  assert difference == pytest.approx(beam - accuracy["best"]["mean"])
  assert plot.read_text().startswith("<svg")
  assert "points" in capsys.readouterr().out
  assert main.main([*compare, f"--input=x={problems}"]) == 1
  assert 'has no "answers"' in capsys.readouterr().err
  rows = _records(tmp_path / "best_of_n.jsonl")
  for row in rows:
    right = [c for c in row["candidates"] if c["outcome"]]
    for c in right[1:] or row["candidates"]:
      c["outcome"] = None
  unknown = tmp_path / "unknown.jsonl"
  unknown.write_text("".join(json.dumps(row) + "\n" for row in rows))
  assert main.main([*compare, f"--input=x={unknown}"]) == 1
  assert "no known outcome" in capsys.readouterr().err
  short = tmp_path / "short.jsonl"
  short.write_text((tmp_path / "beam.jsonl").read_text().splitlines()[0] + "\n")
  assert main.main([*compare, f"--input=x={short}"]) == 1
  assert "other problems" in capsys.readouterr().err


def test_a_threshold_is_chosen_and_kept_to(testbed, problems, tmp_path, capsys):
  samples, chosen = tmp_path / "samples.jsonl", tmp_path / "chosen.json"
  assert _search("best_of_n", problems, samples, "--num=8") == 0
  choose = ["verify", "choose", f"--input={samples}", f"--output={chosen}"]
  assert main.main([*choose, "--precision=0.7", "--attempts=3"]) == 0
  found = json.loads(chosen.read_text())
  assert found["threshold"] == 1.0  # the exact verifier's
  assert found["chosen"]["precision"] == 1.0
  output = tmp_path / "verified.jsonl"
  run = [
    *("verify", "run", "--policy=strong", f"--scorer={EXACT}"),
    *(f"--threshold={chosen}", f"--input={problems}", f"--output={output}"),
  ]
  capsys.readouterr()
  assert main.main(run) == 0
  rows = _records(output)
  accepted = [r for r in rows if r["candidates"]]
  assert 0 < len(accepted) < len(rows)
  assert all(r["outcome"] for r in accepted)
  rest = [r for r in rows if not r["candidates"]]
  assert all(r["answer"] is None and len(r["tree"]["nodes"]) == 3 for r in rest)
  text = capsys.readouterr().out
  verified = tmp_path / "accepted.jsonl"
  verified.write_text("".join(json.dumps(r) + "\n" for r in accepted))
  choose[2] = f"--input={verified}"
  assert main.main([*choose, "--precision=0.5", "--attempts=1"]) == 1
  assert "chosen by their scores" in capsys.readouterr().err
  assert f"verified: {len(accepted)} of 12 problems" in text
  assert f"right among those verified: {len(accepted)} of" in text


def test_a_threshold_is_refused_by_other_models_than_chose_it(
  testbed, problems, tmp_path, capsys
):
  samples, chosen = tmp_path / "samples.jsonl", tmp_path / "chosen.json"
  assert _search("best_of_n", problems, samples, "--seed=3") == 0

  def choose():
    words = ("--precision=0.5", "--attempts=2", f"--output={chosen}")
    return main.main(["verify", "choose", f"--input={samples}", *words])

  run = [
    *("verify", "run", f"--scorer={EXACT}", "--fresh", f"--input={problems}"),
    *(f"--threshold={chosen}", f"--output={tmp_path / 'verified.jsonl'}"),
  ]
  assert choose() == 0
  capsys.readouterr()
  assert main.main([*run, "--policy=weak"]) == 1
  error = capsys.readouterr().err
  assert "policy.policy was 'strong' and is 'weak'; choose it again" in error
  number = error.strip().rpartition(" ")[2]
  assert main.main([*run, "--policy=weak", number]) == 0
  assert main.main([*run, "--policy=strong"]) == 0  # of another seed
  # Without the journal the types are known.
  pathlib.Path(f"{samples}.journal").unlink()
  rows = _records(samples)
  for row in rows:
    row["bill"]["compute_dtype"]["policy"] = "bfloat16"
  samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
  assert choose() == 0
  capsys.readouterr()
  assert main.main([*run, "--policy=weak"]) == 1
  error = capsys.readouterr().err
  assert "--policy computes in bfloat16 there, in its own type here" in error
  rows[0]["bill"]["compute_dtype"]["policy"] = "float32"
  samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
  assert choose() == 1
  assert "computed in different types" in capsys.readouterr().err


def test_a_threshold_knows_its_models_from_the_journal_of_its_samples_alone(
  testbed, problems, tmp_path, capsys
):
  samples, weak, chosen = (tmp_path / x for x in ("s.jsonl", "w.jsonl", "t"))
  assert _search("best_of_n", problems, samples) == 0
  assert _search("best_of_n", problems, weak, "--policy=weak") == 0

  def choose():
    """Returns the models, and what was printed."""
    words = ("--precision=0.3", "--attempts=2", f"--output={chosen}")
    capsys.readouterr()
    assert main.main(["verify", "choose", f"--input={samples}", *words]) == 0
    return json.loads(chosen.read_text())["models"], capsys.readouterr().out

  models, text = choose()
  assert models["policy"]["policy"] == "strong" and "no journal" not in text
  run = [
    *("verify", "run", f"--scorer={EXACT}", "--fresh", f"--input={problems}"),
    *(f"--threshold={chosen}", f"--output={tmp_path / 'verified.jsonl'}"),
  ]
  assert main.main([*run, "--policy=strong"]) == 0
  assert main.main([*run, "--policy=weak"]) == 1
  journal = pathlib.Path(f"{samples}.journal")
  whole = journal.read_bytes()
  for damaged in (whole.replace(b"strong", b"string"), b"\xff\0 no journal\n"):
    journal.write_bytes(damaged)
    models, text = choose()
    assert models == {
      name: dict(compute_dtype=None) for name in ("policy", "scorer")
    }
    assert f"{samples}: no journal of these samples is beside it: only" in text
  journal.write_bytes(whole)
  shutil.copy(weak, samples)
  models, text = choose()
  assert (
    set(models) == {"policy", "scorer"} and "policy" not in models["policy"]
  )
  assert f"{samples}: no journal of these samples is beside it: only" in text


def test_a_precision_that_nothing_reaches_is_refused(
  testbed, problems, tmp_path, capsys
):
  wrong = tmp_path / "wrong.py"
  wrong.write_text(
    "def score(solutions):\n  return [[0.5] * len(s.steps) for s in solutions]\n"
  )
  samples = tmp_path / "samples.jsonl"
  assert _search("best_of_n", problems, samples, scorer=f"{wrong}:score") == 0
  chosen = tmp_path / "chosen.json"
  choose = ["verify", "choose", f"--input={samples}", f"--output={chosen}"]
  assert main.main([*choose, "--precision=0.99", "--attempts=2"]) == 1
  assert "no threshold reaches it" in capsys.readouterr().err
  assert not chosen.exists()
  assert main.main([*choose, "--precision=0.5", "--attempts=9"]) == 1
  assert "--attempts=9" in capsys.readouterr().err


def test_the_adaptive_number_of_samples_is_calibrated(
  testbed, problems, tmp_path, capsys
):
  noisy = tmp_path / "noisy.py"
  noisy.write_text(
    "from prm_jax.testbed import policy\nscore = policy.NoisyVerifier(1.0)\n"
  )
  samples, fitted = tmp_path / "samples.jsonl", tmp_path / "fitted.json"
  scorer = f"{noisy}:score"
  assert _search("best_of_n", problems, samples, "--num=8", scorer=scorer) == 0
  calibrate = ["search", "calibrate", f"--input={samples}"]
  assert main.main([*calibrate, f"--output={fitted}", "--pilot=2"]) == 0
  output = tmp_path / "found.jsonl"
  more = [f"--calibration={fitted}", "--pilot=2", "--most=9"]
  strategy = "adaptive_best_of_n"
  assert _search(strategy, problems, output, *more, scorer=scorer) == 0
  calibration = adaptive.read(fitted)
  rule = adaptive.AdaptiveBestOfN(2, 9, 0.99, calibration)
  for record in _records(output):
    nodes = record["tree"]["nodes"]
    pilots = [node["log_odds"] for node in nodes[:2]]
    assert len(nodes) == rule.num_samples(pilots)
  assert main.main([*calibrate, f"--output={fitted}", "--pilot=8"]) == 1
  assert "--pilot=8" in capsys.readouterr().err
  beam = tmp_path / "beam.jsonl"
  assert _search("beam", problems, beam) == 0
  calibrate[-1] = f"--input={beam}"
  assert main.main([*calibrate, f"--output={fitted}"]) == 1
  assert "step by step" in capsys.readouterr().err


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """Returns a folder with policy/ and prm/: random, never trained."""
  return random_models.write(tmp_path_factory.mktemp("models"))


def test_the_bill_of_real_models_is_that_of_their_tokens(
  models, problems, tmp_path
):
  """Beam search with a policy and a PRM in checkpoint folders."""
  output = tmp_path / "found.jsonl"
  argv = [
    *("search", "beam", "--keep=2", "--expand=2", "--max_steps=2"),
    *("--max_tokens=12", "--max_step_tokens=6", "--limit=2", "--slots=8"),
    *(f"--policy={models}/policy", f"--scorer={models}/prm", "--lookahead=1"),
    *(f"--input={problems}", f"--output={output}"),
  ]
  assert main.main(argv) == 0
  costs = {
    "policy": bill_lib.cost_of(random_models.MODEL, writes=True),
    "scorer": bill_lib.cost_of(random_models.MODEL, writes=False),
  }
  for record in _records(output):
    tree = records.tree_from_record(record["tree"], "a line")
    assert record["bill"]["flops"] == bill_lib.flops(tree.bill, costs) > 0
    prompt = len(record["problem"].encode()) + 2
    assert record["bill"]["models"]["policy"]["read_once"] == prompt
    assert tree.nodes[1].cost["policy"].read == prompt
  (timing,) = _records(pathlib.Path(f"{output}.timing.jsonl"))
  machine = timing["machine"]
  sampled = sum(
    r["bill"]["models"]["policy"]["sampled"] for r in _records(output)
  )
  assert machine["engine_decoded"] - machine["engine_overshoot"] == sampled
  assert machine["scorer_computed"] > 0


def test_the_bill_names_the_type_that_each_model_computed_in(
  models, problems, tmp_path, capsys
):
  narrow = tmp_path / "narrow"
  shutil.copytree(models / "prm", narrow)
  description = json.loads((narrow / "model.json").read_text())
  description["model"]["compute_dtype"] = "bfloat16"
  (narrow / "model.json").write_text(json.dumps(description))
  output = tmp_path / "found.jsonl"
  argv = [
    *("verify", "run", "--threshold=0.5", "--attempts=2"),
    *("--max_tokens=6", "--limit=1", "--slots=2"),
    *(f"--policy={models}/policy", f"--scorer={narrow}"),
    *(f"--input={problems}", f"--output={output}"),
  ]
  assert main.main(argv) == 0
  (record,) = _records(output)
  types = dict(policy="float32", scorer="bfloat16")
  assert record["bill"]["compute_dtype"] == types
  text = capsys.readouterr().out
  assert "\ncomputed in: policy float32, scorer bfloat16\n" in text


class _Server(http.server.BaseHTTPRequestHandler):
  """Writes two steps of a solution, and then the answer, by the seed."""

  def log_message(self, *_):
    pass

  def do_POST(self):
    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    self.server.asked.append(body)
    done = body["prompt"].count("line")
    stops = done < 2 and "stop" in body
    text = f"line {body['seed'] % 9}" if done < 2 else "The answer is: 7"
    if done < 2 and not stops:
      text += "\n\nThe answer is: 7"
    choice = dict(
      text=text,
      finish_reason="stop",
      stop_reason=body["stop"][0] if stops else None,
      logprobs=dict(token_logprobs=[-0.5], tokens=["x"]),
    )
    usage = dict(
      prompt_tokens=len(body["prompt"].split()),
      completion_tokens=len(text.split()),
    )
    content = json.dumps(dict(choices=[choice], usage=usage)).encode()
    self.send_response(200)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)


def test_a_server_is_searched_step_by_step_and_its_counts_are_the_bill(
  tmp_path,
):
  problems = tmp_path / "problems.jsonl"
  problems.write_text('{"id": "a", "problem": "one two", "answer": "7"}\n')
  scorer = tmp_path / "scorer.py"
  scorer.write_text(
    "def score(solutions):\n  return [[0.5] * len(s.steps) for s in solutions]\n"
  )
  output = tmp_path / "found.jsonl"
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
  server.asked = asked = []
  threading.Thread(target=server.serve_forever, daemon=True).start()
  argv = [
    *("search", "beam", "--keep=1", "--expand=2", "--model=m"),
    *(f"--policy=http://127.0.0.1:{server.server_port}/v1",),
    *(f"--scorer={scorer}:score", f"--input={problems}"),
    *(f"--output={output}", "--max_tokens=20"),
  ]
  try:
    assert main.main(argv) == 0
    (record,) = _records(output)
    assert len(record["steps"]) == 3
    assert record["outcome"] is True
    spent = record["bill"]["models"]["policy"]
    prompts = [len(body["prompt"].split()) for body in asked]
    assert spent["calls"] == len(asked) == 6
    assert spent["read"] == sum(prompts)
    assert spent["read_once"] == min(prompts) == 2
    assert record["bill"]["flops"] is None
    # What was asked is kept with the output, so nothing is asked again.
    whole = output.read_bytes()
    assert main.main([*argv, "--fresh"]) == 0
    assert len(asked) == 6
    assert output.read_bytes() == whole
  finally:
    server.shutdown()
    server.server_close()
