"""Does a published policy's way work, from its folder to a PRM that others load?

Command:  python experiments/labelling_published.py
          [--workdir=runs/published] [--seed=0] [--small]
          [--output=docs/results/labelling_published.json]
Hardware, time and result: see experiments/README.md.

No published weights are at hand, so the folder is made here: Qwen2's shape with
random weights, a byte-level tokenizer with Qwen's split and control tokens, and
a chat template. What follows takes the way that a user of a published model
would take (docs/policies.md has the same commands with real names): import,
tune in the model's own template on dial problems, export, sample, label by
Monte-Carlo rollouts, train a PRM in Qwen2.5-Math-PRM's form, export it, and
compare its scores with those of transformers. Every `prm-jax` command is
printed as a user would give it. What exists already is not made again.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
import dataclasses
import filecmp
import importlib.util
import json
import os
import pathlib
import sys
from typing import Any

import commands
from flax.core import meta
import jax
import numpy as np
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers

from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.labelling import prefix_rollouts
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.policy import rollout_engine as engine_lib
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.testbed import arithmetic
from prm_jax.text import answers
from prm_jax.text import policy_templates
from prm_jax.text import templates

# As a user would name it: what is printed is a command to repeat.
HERE = pathlib.Path(os.path.relpath(pathlib.Path(__file__).parent))
OUTPUT = pathlib.Path("docs/results/labelling_published.json")
TASK = arithmetic.Task(min_turns=2, max_turns=4)
COMPLETIONS = 8
SAMPLING = ("--max_tokens=64", "--temperature=1.0", "--top_p=1.0")

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# How Qwen2's tokenizer splits a text, without its contractions.
SPLIT = (
  r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
  r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# A chat in ChatML, as Qwen2.5's writes it without tools.
CHAT = (
  "{%- if messages[0].role != 'system' %}"
  "{{- '<|im_start|>system\\nSYSTEM<|im_end|>\\n' }}{% endif %}"
  "{%- for m in messages %}"
  "{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}"
  "{%- endfor %}"
  "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How much is made and trained."""

  taught: int = 4_000
  problems: int = 300
  samples: int = 8
  policy_updates: int = 600
  prm_updates: int = 300


SMALL = Sizes(
  taught=200, problems=12, samples=4, policy_updates=4, prm_updates=2
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
  parser.add_argument(
    "--workdir", type=pathlib.Path, default=pathlib.Path("runs/published")
  )
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument(
    "--small", action="store_true", help="sizes at which nothing is learned"
  )
  args = parser.parse_args()
  sizes = SMALL if args.small else Sizes()
  args.workdir.mkdir(parents=True, exist_ok=True)
  way = Way(args.workdir, args.seed, sizes)
  facts = way.facts()
  files.write_json(
    args.output,
    dict(
      facts,
      command=f"python {' '.join(sys.argv)}",
      reports=way.reports,
      versions=environment.versions() | dict(revision=environment.revision()),
      machine=environment.machine(),
    ),
  )
  print(json.dumps(facts, indent=1))


@dataclasses.dataclass
class Way:
  """The folders and files of the way, and what each command said."""

  folder: pathlib.Path
  seed: int
  sizes: Sizes
  reports: list[dict[str, Any]] = dataclasses.field(default_factory=list)

  def facts(self) -> dict[str, Any]:
    """Goes the whole way; returns what is asked of it."""
    f = self.folder
    if not (f / "hf" / "config.json").exists():
      write_published(f / "hf", self.seed)
    self._run(
      *("import", f"--from={f / 'hf'}", f"--to={f / 'imported'}"),
      "--role=policy",
      makes=f / "imported" / "model.json",
    )
    self._write_problems()
    self._run(
      *("train", f"--config={HERE / 'published_policy_small.py'}"),
      *(f"--workdir={f / 'policy'}", f"--config.init_from={f / 'imported'}"),
      f"--config.data.train=('jsonl:{f / 'taught.jsonl'}',)",
      f"--config.fit.steps={self.sizes.policy_updates}",
      f"--config.seed={self.seed}",
      makes=f / "policy" / "model.json",
    )
    self._run(
      *("export", f"--checkpoint={f / 'policy'}", f"--to={f / 'hf_policy'}"),
      makes=f / "hf_policy" / "README.md",
    )
    self._run(
      *("sample", f"--policy={f / 'policy'}", *SAMPLING),
      *(f"--input={f / 'problems.jsonl'}", f"--n={self.sizes.samples}"),
      *(f"--output={f / 'samples.jsonl'}", f"--seed={self.seed}"),
      makes=f / "samples.jsonl",
    )
    self._run(
      *("label", "monte_carlo", f"--policy={f / 'policy'}", *SAMPLING),
      *(f"--input={f / 'samples.jsonl'}", f"--completions={COMPLETIONS}"),
      *(f"--output={f / 'labelled.jsonl'}", f"--seed={self.seed}"),
      makes=f / "labelled.jsonl",
    )
    self._run(
      *("train", f"--config={HERE / 'published_prm_small.py'}"),
      *(f"--workdir={f / 'prm'}", f"--config.init_from={f / 'policy'}"),
      f"--config.data.train=('jsonl:{f / 'labelled.jsonl'}',)",
      f"--config.fit.steps={self.sizes.prm_updates}",
      f"--config.seed={self.seed}",
      makes=f / "prm" / "model.json",
    )
    self._run(
      *("export", f"--checkpoint={f / 'prm'}", f"--to={f / 'hf_prm'}"),
      makes=f / "hf_prm" / "README.md",
    )
    if importlib.util.find_spec("transformers"):
      for name in ("hf_policy", "hf_prm"):
        self._run(
          *("import", f"--from={f / name}", f"--to={f / f'{name}_again'}"),
          "--verify",
          makes=f / f"{name}_again" / "model.json",
        )
    names = ("tokenizer_config.json", "generation_config.json")
    labelled = jsonl.read_solutions(f / "labelled.jsonl")
    return dict(
      seed=self.seed,
      right=_share_right(f / "samples.jsonl"),
      labels=_counts(labelled),
      recounted=self._recount(labelled),
      small_files_unchanged={
        name: filecmp.cmp(f / "hf" / name, f / "hf_policy" / name, False)
        for name in names
      },
    )

  def _write_problems(self) -> None:
    """Writes what is taught, and the problems to solve, of another split."""
    random = np.random.default_rng(self.seed)
    taught = arithmetic.problems(self.sizes.taught, "train", TASK, random)
    asked = arithmetic.problems(self.sizes.problems, "test", TASK, random)
    solutions = [in_words(arithmetic.solve(p, random, TASK)) for p in taught]
    jsonl.write_solutions(self.folder / "taught.jsonl", solutions)
    jsonl.write_problems(self.folder / "problems.jsonl", asked)

  def _recount(self, labelled: Sequence[schema.Solution]) -> dict[str, int]:
    """Draws every prefix's rollouts anew, in other slots, and counts right ends.

    Returns:
      The number of labels, and of those that differ from the recount.
    """
    loaded = sampler_lib.load(self.folder / "policy")
    starts = {}
    for s in labelled:
      for k in range(1, len(s.steps)):
        start = prefix_rollouts.prefix(s, k)
        starts.setdefault((s.problem, s.steps[:k]), start)
    keys = sorted(starts)
    rows, _ = engine_lib.of(loaded).generate(
      [starts[key] for key in keys],
      COMPLETIONS,
      sampler_lib.Sampling(64),
      jax.random.key(self.seed),
    )
    right = {
      key: sum(is_right(s) for s in row) / COMPLETIONS
      for key, row in zip(keys, rows, strict=True)
    }
    counts: Counter[str] = Counter(labels=0, differ=0)
    for s in labelled:
      expected = [right[s.problem, s.steps[:k]] for k in range(1, len(s.steps))]
      expected += [float(is_right(s))] * bool(s.steps)
      counts["labels"] += len(expected)
      counts["differ"] += sum(
        a != b for a, b in zip(s.labels or (), expected, strict=True)
      )
    return dict(counts)

  def _run(self, *arguments: Any, makes: pathlib.Path) -> None:
    """Runs a command, unless what it makes is there; keeps what it said."""
    if makes.exists():
      print(f"{makes}: is there")
      return
    self.reports.append(commands.run([*map(str, arguments)]))


# --- The folder that stands for a published model ---------------------------


def write_published(
  folder: pathlib.Path, seed: int, d_model: int = 128
) -> None:
  """Writes a Hugging Face folder of Qwen2's form with random weights."""
  tokenizer = _tokenizer(np.random.default_rng(seed))
  model = model_config.ModelConfig(
    vocab_size=tokenizer.get_vocab_size() + 2,
    d_model=d_model,
    num_layers=2,
    num_heads=d_model // 32,
    num_kv_heads=2,
    head_dim=32,
    d_ff=3 * d_model,
    qkv_bias=True,
    rope_theta=10_000.0,
  )
  params = meta.unbox(transformer.init(jax.random.key(seed), model, ("lm",)))
  tensors = huggingface.export_tensors("qwen2", model, params)
  huggingface.save(folder, "qwen2", model, tensors)
  tokenizer.save(str(folder / "tokenizer.json"))
  chat = CHAT.replace("SYSTEM", policy_templates.QWEN_SYSTEM)
  ends = [tokenizer.token_to_id(x) for x in (CONTROLS[2], CONTROLS[0])]
  files.write_json(
    folder / "tokenizer_config.json",
    dict(eos_token="<|im_end|>", chat_template=chat),
  )
  files.write_json(
    folder / "generation_config.json",
    dict(eos_token_id=ends, do_sample=True, temperature=0.7, top_p=0.8),
  )


def _tokenizer(random: np.random.Generator) -> tokenizers.Tokenizer:
  """Returns a byte-level BPE tokenizer of Qwen's kind, learned from problems."""
  model = tokenizers.Tokenizer(models.BPE())
  model.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  model.decoder = decoders.ByteLevel()
  systems = (policy_templates.QWEN_SYSTEM, templates.STEP_BY_STEP)
  texts = ["system\nuser\nassistant\n", *systems] * 20
  for p in arithmetic.problems(300, "train", TASK, random):
    steps = in_words(arithmetic.solve(p, random)).steps
    texts += [p.problem, "\n\n".join(steps)]
  trainer = trainers.BpeTrainer(
    vocab_size=600,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  model.train_from_iterator(texts, trainer)
  model.add_special_tokens([*CONTROLS, "<extra_0>"])
  return model


# --- Problems and their answers ---------------------------------------------


def in_words(solution: schema.Solution) -> schema.Solution:
  """Returns a dial solution that boxes its answer, as chat models do."""
  *steps, last = solution.steps
  answer = last.removeprefix("answer ")
  return dataclasses.replace(
    solution, steps=(*steps, rf"The answer is $\boxed{{{answer}}}$.")
  )


def is_right(solution: schema.Solution) -> bool:
  """Returns whether the answer that a solution states is the right digit."""
  stated = answers.of_solution(solution)
  return stated == arithmetic.answer(solution.problem)


def _share_right(path: pathlib.Path) -> float:
  """Returns the share of right answers among samples."""
  solutions = jsonl.read_solutions(path)
  return round(float(np.mean([is_right(s) for s in solutions])), 4)


def _counts(labelled: Sequence[schema.Solution]) -> dict[str, int]:
  """Returns how many labels are 0, 1 and between."""
  labels = [x for s in labelled for x in s.labels or () if x is not None]
  return dict(
    zero=sum(x == 0 for x in labels),
    one=sum(x == 1 for x in labels),
    between=sum(0 < x < 1 for x in labels),
  )


if __name__ == "__main__":
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"labelling_published.py: {e}")
