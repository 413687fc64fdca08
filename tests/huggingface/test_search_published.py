"""Searches with an imported chat policy, on GSM8K: the way, on random weights."""

import dataclasses
import gzip
import json

import policy_folders
import pytest
import test_import_export

from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.jobs import journal
from prm_jax.policy import log_likelihood
from prm_jax.policy import sampler
from prm_jax.search import chunks
from prm_jax.search import engine
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_results


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
  """Returns the checkpoint folder of a chat policy, random and imported."""
  folder = tmp_path_factory.mktemp("published")
  theirs = folder / "theirs"
  # Random weights would sample ids that no token has.
  size = policy_folders.tokenizer("qwen2_5").vocab_size
  model = dataclasses.replace(test_import_export.MODEL, vocab_size=size)
  params = test_import_export._params(model, "lm")
  tensors = huggingface.export_tensors("qwen2", model, params)
  huggingface.save(theirs, "qwen2", model, tensors, dtype="float32")
  policy_folders.write(theirs, "qwen2_5")
  words = ("import", f"--from={theirs}", f"--to={folder / 'ours'}")
  assert main.main([*words, "--role=policy", "--segmenter=line"]) == 0
  return folder / "ours"


@pytest.fixture
def problems(public_data, tmp_path):
  """Returns a file of two problems of GSM8K's test set, about as long."""
  path = tmp_path / "problems.jsonl"
  with gzip.open(public_data("gsm8k", "test.jsonl.gz"), "rt") as lines:
    rows = [json.loads(line) for line, _ in zip(lines, range(8))]
  path.write_text(
    "".join(
      json.dumps(
        dict(
          id=str(i),
          problem=row["question"],
          answer=row["answer"].rpartition("#### ")[2],
        )
      )
      + "\n"
      for i, row in enumerate((rows[0], rows[7]))
    )
  )
  return path


def test_gsm8k_is_searched_and_verified_with_an_imported_policy(
  imported, problems, tmp_path
):
  scorer = tmp_path / "scorer.py"
  scorer.write_text(
    "def score(solutions):\n"
    "  return [[len(x) % 7 / 7 for x in s.steps] for s in solutions]\n"
  )
  models = (f"--policy={imported}", f"--input={problems}", "--slots=8")
  limits = ("--max_tokens=24", "--temperature=1", "--top_k=0")
  by_step = ("--max_step_tokens=8", "--max_steps=3")
  own = f"--scorer={scorer}:score"
  for name, argv in dict(
    beam=("search", "beam", "--keep=1", "--expand=2", own, *by_step),
    chunk=(
      *("search", "chunk_guidance", "--expand=2", "--chunk_tokens=8"),
      f"--scorer={imported}",
    ),
    verify=("verify", "run", "--threshold=0.99", "--attempts=2", own),
  ).items():
    output = tmp_path / f"{name}.jsonl"
    words = [*argv, *models, *limits, "--batch=1", f"--output={output}"]
    assert main.main(words) == 0
    whole = output.read_bytes()
    log = journal.path_of(output)
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    assert main.main(words) == 0
    assert output.read_bytes() == whole
    for s in search_results.read(output):
      tree = search_results.from_solution(s, "a line").tree
      assert s.extra["reference_answer"] in ("18", "160")
      spent = s.extra["bill"]["models"]["policy"]
      assert spent["sampled"] > 0
      # What is sampled is no prompt, however the prompt is encoded.
      prompt = tree.nodes[1].cost["policy"].read
      assert spent["read_once"] == prompt
      if name == "chunk":
        # A policy guides itself nowhere.
        assert max(abs(n.log_odds) for n in tree.nodes[1:]) < 1e-4
        lengths = [n.cost["policy"].sampled for n in tree.nodes[1:]]
        assert max(lengths) == 8
  pages = tmp_path / "pages"
  shown = str(tmp_path / "beam.jsonl")
  assert main.main(["view", shown, f"--static={pages}"]) == 0
  assert "Janet" in (pages / "data" / "searches-0.js").read_text()


def test_a_chunk_is_scored_by_the_tokens_that_were_sampled(imported):
  """By the sum over each whole text, less that of its beginning."""
  loaded = sampler.load(imported)
  sampling = sampler.Sampling(24)
  writes = chunks.of_sampler(loaded, sampling, chunk_tokens=6, slots=4)
  guides = chunks.of_policy(loaded, guidance="likelihood")
  problem = schema.Solution("a", "What is 1 + 1?", ())
  (tree,) = engine.search(
    [problem], rules.Beam(1, 2), dict(policy=writes), guides,
    search_limits.Limits(max_tokens=18),
  )  # fmt: skip
  assert len(tree.nodes) > 4
  for node in tree.nodes[1:]:
    begun = tree.nodes[node.parent].solution
    whole = loaded.codec.prompt(node.solution).tokens
    start = len(loaded.codec.prompt(begun).tokens)
    (row,) = log_likelihood.of_ids(loaded.config, loaded.params, [whole])
    if node.stopped != "end":
      assert node.log_odds == pytest.approx(row[start:].mean(), abs=1e-4)
    text = begun.raw_text or ""
    assert node.solution.raw_text.startswith(text)
    mean = node.solution.extra["log_prob_mean"]
    assert node.log_odds == pytest.approx(mean, abs=1e-4)


def test_chunks_need_an_imported_policy(imported, tmp_path):
  ours = sampler.load(imported)
  own_form = sampler.Sampler(ours.config, ours.params, ours.tokenizer)
  with pytest.raises(errors.InputError, match="has a template"):
    chunks.of_sampler(own_form, sampler.Sampling(8), chunk_tokens=4)
  with pytest.raises(errors.InputError, match="imported"):
    chunks.of_policy(own_form)
  with pytest.raises(errors.InputError, match="guidance=no"):
    chunks.of_policy(ours, guidance="no")
  guides = chunks.of_policy(ours)
  solution = schema.Solution("a", "p", ("b",), extra=dict(stopped="step"))
  with pytest.raises(errors.InputError, match="another tokenizer"):
    guides.score([solution])
