"""An endpoint that is a real server: transformers serve, on this machine.

The model is tiny and random. Needs the extra `parity`.
"""

import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import recipes

from prm_jax import errors
from prm_jax import remote
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.records import jsonl

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not all(map(importlib.util.find_spec, ("fastapi", "uvicorn", "openai"))):
  pytest.skip("transformers[serving] isn't there", allow_module_level=True)


pytestmark = pytest.mark.parity
GREEDY = sampler.Sampling(max_tokens=24, temperature=0.0)
RANDOM = sampler.Sampling(max_tokens=24)
PREFIXES = [
  schema.Solution("a", "Janet has 3 eggs.", ()),
  schema.Solution("b", "Janet has 3 eggs.", ("She buys 12.",)),
  schema.Solution("c", "x^2 = 16", ("so x = 4", "or x = -4.")),
  schema.Solution("d", "How many eggs?", ("ки",)),
]
CHAT = (
  "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
  "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Writes a random Qwen2 that ends itself now and then."""
  folder = tmp_path_factory.mktemp("model")
  torch.manual_seed(0)
  config = transformers.Qwen2Config(
    vocab_size=recipes.tokenizer("qwen").text_ids + 4,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=512,
    initializer_range=0.4,
  )
  model = transformers.Qwen2ForCausalLM(config)
  # Any of these ids closes a completion.
  ends = list(range(5, config.vocab_size, 25))
  model.generation_config = transformers.GenerationConfig(
    do_sample=True, eos_token_id=ends, pad_token_id=0
  )
  model.save_pretrained(folder)
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=recipes.public("qwen"), chat_template=CHAT
  )
  tokenizer.save_pretrained(folder)
  return folder


@pytest.fixture(scope="module")
def url(folder):
  """Starts the server; the address it answers at."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
  command = "from transformers.cli.transformers import app; app()"
  log = (folder / "log").open("w")
  server = subprocess.Popen(
    [
      *(sys.executable, "-c", command, "serve", str(folder)),
      *("--device", "cpu", "--dtype", "float32"),
      *("--host", "127.0.0.1", "--port", port),
    ],
    env=os.environ | dict(HF_HUB_OFFLINE="1", OMP_WAIT_POLICY="PASSIVE"),
    stdout=log,
    stderr=subprocess.STDOUT,
  )
  try:
    _wait(f"http://127.0.0.1:{port}/health", server, folder / "log")
    yield f"http://127.0.0.1:{port}/v1"
  finally:
    server.kill()
    server.wait()
    log.close()


def _wait(url, server, log):
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  for _ in range(240):
    try:
      if opener.open(url, timeout=5).status == 200:
        return
    except OSError:
      time.sleep(0.25)
    if server.poll() is not None:
      break
  pytest.fail(log.read_text())


def _client(url, folder, template=None, journal=None, **settings):
  return remote.Client(
    remote.Endpoint(url, str(folder), tries=1, **settings),
    template or remote.Template(),
    journal,
  )


def _greedy(folder, text):
  """Returns transformers' own greedy text and number of tokens."""
  model = transformers.Qwen2ForCausalLM.from_pretrained(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  ids = tokenizer(text, return_tensors="pt")
  out = model.generate(**ids, do_sample=False, max_new_tokens=24)
  new = out[0, ids["input_ids"].shape[1] :]
  return tokenizer.decode(new, skip_special_tokens=True), len(new)


def test_greedy_completions_are_transformers_own(url, folder):
  with _client(url, folder, concurrency=4) as client:
    rows = client.generate(PREFIXES, 2, GREEDY, 0)
  for p, row in zip(PREFIXES, rows, strict=True):
    prompt = "".join(f"{x}\n\n" for x in (p.problem, *p.steps))
    text, num_tokens = _greedy(folder, prompt)
    for s in row:
      assert s.extra["text"] == text
      assert s.extra["num_tokens"] == num_tokens
      assert s.extra["stopped"] == ("length" if num_tokens == 24 else "end")
      assert s.extra["log_prob_mean"] is None  # it doesn't tell
  assert {s.extra["stopped"] for (s, _) in rows} == {"end", "length"}


def test_a_step_is_the_greedy_text_up_to_the_separator(url, folder):
  stopped = set()
  for separator in (" ", "e"):
    template = remote.Template(separator=separator)
    with _client(url, folder, template, stop_in_text=True) as client:
      whole = client.generate(PREFIXES, 1, GREEDY, 0)
      found = client.generate(PREFIXES, 1, GREEDY, 0, stop_at_step=True)
    for p, (all_of_it,), (step,) in zip(PREFIXES, whole, found, strict=True):
      text = all_of_it.extra["text"]
      begin, at, _ = text.partition(separator)
      expected = "step" if at else all_of_it.extra["stopped"]
      assert step.extra["stopped"] == expected
      new = tuple(begin[a:b] for a, b in template.cut(begin))
      assert step.steps == (*p.steps, *new)
      assert all_of_it.raw_text == template.begun(p) + text
      assert all_of_it.raw_text.startswith(step.raw_text)
      stopped.add(expected)
  assert "step" in stopped and len(stopped) > 1


def test_a_seed_repeats_itself_one_request_at_a_time(url, folder, tmp_path):
  """With more at a time it wouldn't: this server has one generator for all."""

  def ask(seed, journal=None):
    client = _client(url, folder, journal=journal, concurrency=1)
    with client:
      return client.generate(PREFIXES, 3, RANDOM, seed), client.counts

  rows, _ = ask(1, tmp_path / "j.jsonl")
  assert ask(1)[0] == rows
  assert ask(2)[0] != rows
  assert len({s.extra["text"] for row in rows for s in row}) > 6
  again, counts = ask(1, tmp_path / "j.jsonl")
  assert again == rows
  assert (counts["from_journal"], counts["requests"]) == (12, 0)


def test_a_chat_without_steps_is_the_template_of_the_model(url, folder):
  prefix = PREFIXES[0]
  with _client(url, folder, chat=True) as client:
    ((found,),) = client.generate([prefix], 1, GREEDY, 0)
  prompt = (
    f"<|im_start|>user\n{prefix.problem}<|im_end|>\n<|im_start|>assistant\n"
  )
  # It takes the white space off.
  assert found.extra["text"] == _greedy(folder, prompt)[0].strip()


def test_a_stop_string_ends_the_greedy_text(url, folder):
  template = remote.Template(stop=("e",))
  with _client(url, folder, template, stop_in_text=True) as client:
    rows = client.generate(PREFIXES, 1, GREEDY, 0)
  stopped = 0
  for p, (s,) in zip(PREFIXES, rows, strict=True):
    text, _ = _greedy(folder, f"{p.problem}\n\n{template.begun(p)}")
    begin, found, _ = text.partition("e")
    assert s.raw_text == template.begun(p) + begin
    # What came with the string, in one token, is in the text still.
    assert text.startswith(s.extra["text"])
    assert s.extra["text"].startswith(begin + found)
    stopped += bool(found)
    if found:
      assert s.extra["stopped"] == "end"
  assert stopped


@pytest.mark.parametrize("chat", [False, True])
def test_the_command_samples_the_greedy_text_n_times(
  url, folder, tmp_path, chat
):
  problems = tmp_path / "p.jsonl"
  lines = [dict(id=p.id, problem=p.problem, answer="3") for p in PREFIXES[:3:2]]
  problems.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
  out = tmp_path / "out.jsonl"
  command = [
    *("sample", f"--policy={url}", f"--model={folder}", f"--output={out}"),
    *(f"--input={problems}", "--n=3", "--temperature=0", "--max_tokens=24"),
    *("--tries=1", *["--chat"] * chat),
  ]
  assert main.main(command) == 0
  found = jsonl.read_solutions(out)
  assert [s.id for s in found] == [f"{p}/{n}" for p in "ac" for n in range(3)]
  for s in found:
    prompt = f"{s.problem}\n\n"
    if chat:
      user = f"<|im_start|>user\n{s.problem}<|im_end|>\n"
      prompt = f"{user}<|im_start|>assistant\n"
    text, num_tokens = _greedy(folder, prompt)
    assert s.raw_text == (text.strip() if chat else text)
    if not chat:
      assert s.extra["num_tokens"] == num_tokens
    assert s.extra[schema.REFERENCE] == "3"


@pytest.mark.parametrize("name", ["top_k", "min_p"])
def test_this_server_takes_no_cut_of_its_own(url, folder, name):
  cut = dataclasses.replace(RANDOM, **{name: 1})
  with (
    _client(url, folder) as client,
    pytest.raises(errors.InputError, match=rf"422.*{name}.*vLLM, SGLang"),
  ):
    client.generate(PREFIXES[:1], 1, cut, 0)


def test_this_server_returns_no_token_ids(url, folder):
  request = rollout_engine.Request("a", [5, 6, 7], 1)
  with (
    _client(url, folder) as client,
    pytest.raises(
      errors.InputError, match=r"422.*return_token_ids.*vLLM or SGLang"
    ),
  ):
    client.complete([request], GREEDY, 0)


def test_what_this_server_cannot_do_is_said_in_one_line(url, folder):
  with (
    _client(url, folder, chat=True, continues=True) as client,
    pytest.raises(errors.InputError, match=r"422.*continue_final_message"),
  ):
    client.generate(PREFIXES, 1, GREEDY, 0)
  with (
    _client(url, "another") as client,
    pytest.raises(errors.InputError, match=r"status 400.*another"),
  ):
    client.generate(PREFIXES, 1, GREEDY, 0)
  with (
    _client(url, folder) as client,
    pytest.raises(errors.InputError, match="log-probabilities of a prompt"),
  ):
    client.log_likelihoods(PREFIXES, [" yes"])
