"""`--policy` of `sample` and `label`: its options, and a server as the policy."""

import dataclasses
import json

import command_options
import pytest
import small_config
import stub_server

from prm_jax import remote
from prm_jax import schema
from prm_jax.cli import flags as flags_lib
from prm_jax.cli import main
from prm_jax.cli import output
from prm_jax.jobs import opened_policies
from prm_jax.jobs import sample
from prm_jax.policy import sampler
from prm_jax.records import jsonl
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import tokenizer

COMMANDS = ("sample", "label monte_carlo", "label omega_prm", "label judge")
# Fields that have an option of another name.
NAMES = dict(url="policy", options="request_option", log_probs="no_log_probs")


@pytest.fixture
def stub():
  """A server that writes two steps, the second with the answer 4."""
  with stub_server.running(
    lambda handler, body, times: stub_server.reply(body, "2 + 2\n \nanswer 4")
  ) as stub:
    yield stub


@pytest.fixture
def inputs(tmp_path):
  problems = tmp_path / "problems.jsonl"
  lines = (
    dict(id="a", problem="2 + 2?", answer="4", text="mine", level=3),
    dict(id="b", problem="3 + 3?", answer="6"),
  )
  problems.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
  solutions = tmp_path / "solutions.jsonl"
  extra = {schema.REFERENCE: "4"}
  jsonl.write_solutions(
    solutions,
    [schema.Solution("s", "2 + 2?", ("2 + 2", "answer 4"), extra=extra)],
  )
  return tmp_path


@pytest.fixture
def refused(capsys, inputs):
  """Returns a function that checks that a command is refused in one line."""

  def files():
    return {p: p.read_bytes() for p in inputs.iterdir() if "out" not in p.name}

  def check(command, *words):
    before = files()
    capsys.readouterr()
    assert main.main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith("prm-jax: ") and error.count("\n") == 1, error
    for word in words:
      assert word in error, error
    assert files() == before

  return check


def _parser(command):
  return command_options.commands()[command]


def _served(stub, *words):
  return [*words, f"--policy={stub.url}", "--model=tiny"]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_setting_of_an_endpoint_is_an_option(command):
  flags = _parser(command).flags()
  names = {*flags_lib.options(sample.Sample)}
  for kind in (remote.Endpoint, remote.Template):
    for field in dataclasses.fields(kind):
      name = NAMES.get(field.name, field.name)
      assert name in flags and name in names, field.name


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_not_given_is_the_setting_of_the_endpoint(command):
  parser, url = _parser(command), "http://localhost:1/v1"
  needed = {
    action.option_strings[0]: "x"
    for action in parser._actions
    if action.required
  }
  needed |= {"--policy": url, "--model": "m"}
  args = parser.parse_args([f"{k}={v}" for k, v in needed.items()])
  verb, _ = flags_lib.value(args.verb, vars(args))
  endpoint, template = opened_policies.endpoint(verb.policy.server, url)
  assert endpoint == remote.Endpoint(url, "m")
  assert template == remote.Template()
  shown = parser.format_help()
  for field in dataclasses.fields(remote.Endpoint):
    if type(field.default) in (int, float):
      text = " ".join(shown.split(f"--{field.name}")[-1].split("--")[0].split())
      assert f"default: {field.default:g})" in text, field.name


def test_all_options_reach_the_endpoint():
  values = dict(
    policy="https://h/v1",
    model="m",
    chat=True,
    continues=True,
    stop_in_text=True,
    no_log_probs=True,
    key_variable="K",
    insecure_key=True,
    replica=["https://g/v1"],
    concurrency=2,
    connect_s=3.0,
    read_s=4.0,
    tries=5,
    backoff_s=0.0,
    max_wait_s=7.0,
    request_option=[("top_k", 0), ("a", {"b": "c"})],
    prompt="Q: {problem}",
    system="Brief.",
    separator="\n",
    segmenter="line",
    stop=["Q:", "END"],
  )
  verb, _ = flags_lib.value(sample.Sample, values | dict(input="x", output="x"))
  endpoint, template = opened_policies.endpoint(
    verb.policy.server, values["policy"]
  )
  for kind, found in ((remote.Endpoint, endpoint), (remote.Template, template)):
    plain = kind("http://h/v1", "m") if kind is remote.Endpoint else kind()
    for field in dataclasses.fields(kind):
      one, other = getattr(found, field.name), getattr(plain, field.name)
      assert one != other or field.name == "model", field.name
  assert endpoint.options == dict(top_k=0, a=dict(b="c"))
  assert template.stop == ("Q:", "END")


def test_a_server_samples_solutions_and_its_replies_are_kept(
  stub, inputs, capsys
):
  out = inputs / "out.jsonl"
  command = _served(
    stub,
    "sample",
    f"--input={inputs / 'problems.jsonl'}",
    f"--output={out}",
    "--n=3",
    "--prompt=Q: {problem}",
    "--stop=Q:",
    "--stop=END",
    "--request_option=repetition_penalty=1.1",
    "--max_tokens=9",
  )
  assert main.main(command) == 0
  said = capsys.readouterr().out
  assert f"{out}: 6 solutions, 6 ended by themselves" in said
  assert "6  endpoint completions" in said
  assert len(stub.seen) == 6
  body = stub.seen[0]
  assert body["prompt"] in ("Q: 2 + 2?\n\n", "Q: 3 + 3?\n\n")
  assert (body["stop"], body["max_tokens"]) == (["Q:", "END"], 9)
  assert body["repetition_penalty"] == 1.1
  found = jsonl.read_solutions(out)
  assert [s.id for s in found] == [f"{p}/{n}" for p in "ab" for n in range(3)]
  for s in found:
    assert s.steps == ("2 + 2", "answer 4") and s.answer == "4"
    assert s.raw_text == "2 + 2\n \nanswer 4"
    assert s.outcome == (s.id[0] == "a")
    assert {*schema.STATISTICS, schema.REFERENCE} <= s.extra.keys()
  # A problem's own fields stay.
  assert (found[0].extra["text"], found[0].extra["level"]) == ("mine", 3)
  assert "text" not in found[3].extra
  # A second run asks for what it lacks alone.
  kept = out.read_bytes()
  replies = out.with_name("out.jsonl.replies")
  lines = replies.read_bytes().splitlines(keepends=True)
  replies.write_bytes(b"".join(lines[:4]))
  out.unlink()
  assert main.main(command) == 0
  assert len(stub.seen) == 8 and out.read_bytes() == kept


def test_a_job_is_finished_at_other_servers_with_the_same_bytes(
  stub, inputs, capsys
):
  def label(output, *urls):
    first, *others = urls
    return [
      *("label", "monte_carlo", f"--input={inputs / 'solutions.jsonl'}"),
      *(f"--output={inputs / output}", "--model=tiny", "--completions=6"),
      *(f"--policy={first}", *(f"--replica={x}" for x in others)),
    ]

  with stub_server.running(stub.behave) as other:
    assert main.main(label("out1.jsonl", stub.url)) == 0
    stub.seen.clear()
    assert main.main(label("out2.jsonl", stub.url, other.url)) == 0
    assert len(stub.seen) + len(other.seen) == 6
    said = capsys.readouterr().out
    for x in (stub, other):
      assert f"{x.url}: answered {len(x.seen)} requests" in said
    kept = (inputs / "out1.jsonl").read_bytes()
    assert kept == (inputs / "out2.jsonl").read_bytes()
    (inputs / "out1.jsonl").unlink()
    assert main.main(label("out1.jsonl", other.url)) == 0
    assert kept == (inputs / "out1.jsonl").read_bytes()
    assert len(stub.seen) + len(other.seen) == 6


def test_a_server_samples_to_the_standard_output_without_a_journal(
  stub, inputs, capfd, monkeypatch
):
  monkeypatch.chdir(inputs)
  before = {*inputs.iterdir()}
  command = _served(stub, "sample", "--input=problems.jsonl", "--output=-")
  assert main.main([*command, "--n=1"]) == 0
  lines = capfd.readouterr().out.splitlines()
  assert [json.loads(line)["id"] for line in lines] == ["a/0", "b/0"]
  assert {*inputs.iterdir()} == before


def test_a_chat_labels_steps_where_the_server_continues_a_message(
  stub, inputs, refused
):
  out = inputs / "out.jsonl"
  command = _served(
    stub,
    "label",
    "monte_carlo",
    f"--input={inputs / 'solutions.jsonl'}",
    f"--output={out}",
    "--completions=2",
    "--chat",
    "--system=Be brief.",
  )
  refused(
    command, "vLLM, SGLang and llama.cpp give --continues", "transformers"
  )
  assert not stub.seen
  assert main.main([*command, "--fresh", "--continues"]) == 0
  (found,) = jsonl.read_solutions(out)
  assert found.labels == (1.0, 1.0)
  assert [message["role"] for message in stub.seen[0]["messages"]] == [
    "system",
    "user",
    "assistant",
  ]
  assert stub.seen[0]["messages"][2]["content"] == "2 + 2\n\n"


def test_an_option_that_does_not_fit_the_policy_is_refused(
  stub, inputs, refused
):
  label = [
    "label",
    "monte_carlo",
    f"--input={inputs / 'solutions.jsonl'}",
    f"--output={inputs / 'out.jsonl'}",
  ]
  sample = [
    "sample",
    f"--input={inputs / 'problems.jsonl'}",
    f"--output={inputs / 'out.jsonl'}",
  ]
  for command in (label, sample):
    for option in (
      "--model=m",
      "--chat",
      "--stop=x",
      "--tries=3",
      "--backoff_s=0",
      "--request_option=top_k=0",
      "--no_log_probs",
      "--segmenter=line",
      "--replica=http://h/v1",
    ):
      given = [*command, f"--policy={inputs / 'policy'}", option]
      refused(given, f"{option}: is for a server, and --policy is a folder")
  server = "is for a checkpoint folder, and --policy is a server"
  refused(_served(stub, *label, "--slots=4"), f"--slots=4: {server}")
  refused(_served(stub, *label, "--step=4"), f"--step=4: {server}")
  refused(
    _served(stub, *sample, "--dtype=bfloat16"), f"--dtype=bfloat16: {server}"
  )
  refused([*sample, f"--policy={stub.url}"], "give --model")
  refused(sample, "are required: --policy/--checkpoint")
  refused(
    [*sample, "--policy=x", "--checkpoint=x"],
    "give one of --policy, --checkpoint",
  )
  refused(_served(stub, *label, "--system=x"), "--system=x: only a chat")
  again = f"--replica={stub.url}/"
  refused(_served(stub, *label, again), f"{again}: this server is given twice")
  twice = ("--request_option=a=1", "--request_option=a=2")
  refused(_served(stub, *label, *twice), "a is given twice")
  refused(_served(stub, *label, "--request_option=a=b"), "isn't NAME=JSON")
  refused(
    _served(stub, *label, "--request_option=seed=1"), "seed: prm_jax sets"
  )
  assert not stub.seen


def test_replies_do_not_overwrite_what_is_read(stub, inputs, refused):
  problems = (inputs / "problems.jsonl").rename(inputs / "x.replies")
  kept = problems.read_bytes()
  refused(
    _served(stub, "sample", f"--input={problems}", f"--output={inputs / 'x'}"),
    "is read by this command",
  )
  assert problems.read_bytes() == kept and not stub.seen


@pytest.mark.parametrize(
  ("words", "template", "defaults", "says"),
  [
    ((), policy_templates.qwen2_5(), {}, "is sampled at temperature 1, since"),
    ((), policy_templates.qwen2_5(), dict(top_k=20), "at temperature 1, since"),
    ((), policy_templates.qwen2_5(), dict(temperature=0.7), None),
    (("--temperature=1",), policy_templates.qwen2_5(), {}, None),
    ((), policy_templates.plain(["</s>"]), {}, None),
    ((), policy_templates.gsm8k_4_shot(["</s>"]), {}, None),
    ((), own_form.OWN, {}, None),
  ],
)
@pytest.mark.parametrize("command", ["sample", "label monte_carlo"])
def test_a_chat_model_without_a_temperature_is_never_sampled_in_silence(
  command, words, template, defaults, says, capsys
):
  required = ["--input=a", "--output=b", "--policy=chat"]
  args = _parser(command).parse_args([*required, *words])
  verb, _ = flags_lib.value(args.verb, vars(args))
  model = small_config.model(300)
  policy = sampler.Sampler(
    model, {}, tokenizer.Bytes(), template=template, defaults=defaults
  )
  with output.printing_log({"temperature"}):
    sampling = verb.policy.sampling_of(policy, verb.sampling)
  err = capsys.readouterr().err
  assert sampling.temperature == defaults.get("temperature", 1)
  assert (says is None) == (err == "")
  if says:
    assert err.count("\n") == 1 and err.startswith("chat: ")
    assert says in err and err.endswith("give --temperature\n")
